"""Which machine and session a record names after a write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.identity import NOBODY, Identity, attribute, merge
from agentcoord.protocol.records import IDENTITY
from tests.protocol.strategies import Json, records

SOURCE = "agent_coord_session_id"
M1 = {"machine_id": "m1"}
S1 = {"session_id": "s1", "session_source": SOURCE}
M2 = {"machine_id": "m2"}
S2 = {"session_id": "s2", "session_source": "codex_thread_id"}


def said(fields: Json) -> Identity:
    return Identity(**fields)


@pytest.mark.parametrize(
    ("stored", "environment", "written"),
    [
        pytest.param({}, {}, {}, id="nothing anywhere"),
        pytest.param({}, M1 | S1, M1 | S1, id="machine and session, nothing stored"),
        pytest.param(M1 | S1, M2 | S2, M2 | S2, id="machine and session replace both"),
        pytest.param(M1 | S1, M1 | S2, M1 | S2, id="same machine, other session"),
        pytest.param(M1 | S1, M2 | S1, M2 | S1, id="other machine, same session"),
        pytest.param(M1 | S1, {}, M1 | S1, id="silence keeps"),
        pytest.param(M1 | S1, M1, M1 | S1, id="same machine keeps its session"),
        pytest.param(M1 | S1, M2, M2, id="other machine clears the session"),
        pytest.param(S1, M1, M1, id="a machine where none was clears the session"),
        pytest.param(M1, M2, M2, id="other machine, no session"),
        pytest.param(M1 | S1, S1, M1 | S1, id="same session keeps its machine"),
        pytest.param(M1 | S1, S2, S2, id="other session clears the machine"),
        pytest.param(M1, S1, S1, id="a session where none was clears the machine"),
        pytest.param(
            M1 | S1,
            {"session_id": "s1", "session_source": "codex_thread_id"},
            M1 | {"session_id": "s1", "session_source": "codex_thread_id"},
            id="same session from another source",
        ),
        pytest.param({"machine_id": None, **S1}, {}, S1, id="a stored null is absent"),
    ],
)
def test_merging(stored: Json, environment: Json, written: Json) -> None:
    assert merge(stored, said(environment)) == written


def test_the_fields_keep_their_order() -> None:
    assert IDENTITY == ("machine_id", "session_id", "session_source")
    assert list(merge(S1 | M1, NOBODY)) == list(IDENTITY)
    assert list(Identity(session_id="s", session_source=SOURCE, machine_id="m").fields()) == list(IDENTITY)
    assert NOBODY.fields() == {}


machines = st.none() | st.sampled_from(["m1", "m2"])
sessions = st.none() | st.sampled_from(["s1", "s2"])


def environment_of(machine: str | None, session: str | None) -> Identity:
    return Identity(machine_id=machine, session_id=session, session_source=None if session is None else SOURCE)


environments = st.builds(environment_of, machines, sessions)


@given(st.lists(environments, max_size=12))
def test_a_machine_and_a_session_stand_together_only_if_one_write_declared_both(writes: list[Identity]) -> None:
    stored: Json = {}
    declared: set[tuple[str | None, str | None]] = set()
    for identity in writes:
        if identity.machine_id and identity.session_id:
            declared.add((identity.machine_id, identity.session_id))
        stored = merge(stored, identity)
        pair = (stored.get("machine_id"), stored.get("session_id"))
        assert None in pair or pair in declared
        assert ("session_id" in stored) == ("session_source" in stored)


@given(records(IDENTITY), environments)
def test_what_the_environment_declares_is_what_the_record_says(stored: Json, identity: Identity) -> None:
    written = merge(stored, identity)
    assert written.items() >= identity.fields().items()
    assert merge(written, identity) == written
    assert None not in written.values()


@given(records(IDENTITY), records(IDENTITY), environments)
def test_attributing_touches_the_tuple_alone(document: Json, stored: Json, identity: Identity) -> None:
    before = dict(document)
    attribute(document, stored, identity)
    assert {name: document[name] for name in IDENTITY if name in document} == merge(stored, identity)
    assert {k: v for k, v in document.items() if k not in IDENTITY} == {
        k: v for k, v in before.items() if k not in IDENTITY
    }
