"""What tests are called is printed wherever they run."""

import pytest

from tests.conftest import SECRET


def test_no_test_is_named_after_a_secret(request: pytest.FixtureRequest) -> None:
    assert not [item.name for item in request.session.items if SECRET.search(item.name)]
