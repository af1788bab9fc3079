"""Pages show the user file, which has to be private up to the root."""

from tests.settings.conftest import private

__all__ = ["private"]
