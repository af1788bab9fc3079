"""What a lane waits for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.dependencies import blocked_on, lane_key, lane_state
from agentcoord.protocol.statuses import CANONICAL, SATISFYING
from tests.protocol.strategies import values

MET = ["done", "merged", "ready", "ready_gates_clean", "ready_no_merge_authority", "complete", "completed"]


@pytest.mark.parametrize("state", [*CANONICAL, "complete", "completed", "released", "unknown", "Done", ""])
def test_a_dependency_is_met_by_some_states_only(state: str) -> None:
    assert blocked_on(["b1:w"], {"b1:w": state}) == ([] if state in MET else ["b1:w"])


def test_a_lane_nobody_knows_is_not_met_and_order_is_kept() -> None:
    states = {"b1:w": "done", "b:1:w": "failed"}
    assert blocked_on(["x", "b1:w", "b:1:w", "b1:W"], states) == ["x", "b:1:w", "b1:W"]
    assert lane_key("b:1", "w") == "b:1:w"


@given(st.lists(st.text(max_size=3)), st.dictionaries(st.text(max_size=3), st.sampled_from([*CANONICAL, "x"])))
def test_what_is_blocked_is_what_is_not_met(refs: list[str], states: dict[str, str]) -> None:
    assert blocked_on(refs, states) == [ref for ref in refs if ref not in states or states[ref] not in SATISFYING]


@pytest.mark.parametrize(
    ("terminal", "beat", "declared", "state"),
    [
        ("done", "in_progress", "blocked", "done"),
        (None, "in_progress", "blocked", "in_progress"),
        (None, None, "blocked", "blocked"),
        (None, None, None, "unknown"),
        ("", "", "", "unknown"),
        (None, 5, None, "5"),
    ],
)
def test_a_declared_end_goes_before_the_heartbeat(terminal: object, beat: object, declared: object, state: str) -> None:
    assert lane_state(terminal, beat, declared) == state


@given(values, values, values)
def test_a_state_is_always_a_word(terminal: object, beat: object, declared: object) -> None:
    assert lane_state(terminal, beat, declared)
