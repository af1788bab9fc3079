"""How status spellings fold onto the vocabulary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.statuses import (
    ALIASES,
    CANONICAL,
    SATISFYING,
    TERMINAL,
    WORKING,
    Status,
    normalize,
    unknown_warning,
)

VOCABULARY = (
    "in_progress blocked blocked_user_input waiting_on_checks_or_review external_gate_failing no_pr_evidence failed "
    "done merged ready ready_gates_clean ready_no_merge_authority abandoned superseded"
)
spellings = st.text(max_size=12) | st.sampled_from([*CANONICAL, *ALIASES, "released"]).flatmap(
    lambda word: st.sampled_from([word, word.upper(), word.title(), word.replace("_", "-"), f" {word}\n"])
)


def test_the_vocabulary_and_its_order() -> None:
    assert list(CANONICAL) == VOCABULARY.split()
    assert list(WORKING) == VOCABULARY.split()[:7]
    assert list(TERMINAL) == VOCABULARY.split()[7:]


def test_what_a_dependent_lane_may_build_on() -> None:
    satisfying = "done merged ready ready_gates_clean ready_no_merge_authority complete completed"
    assert list(SATISFYING) == satisfying.split()


@pytest.mark.parametrize("word", CANONICAL)
def test_a_canonical_status_is_itself_and_leaves_no_raw_copy(word: str) -> None:
    assert normalize(word) == Status(value=word, raw=None, known=True)
    for spelling in (word.upper(), f"  {word} ", word.replace("_", "-") + " "):
        assert normalize(spelling) == Status(value=word, raw=spelling, known=True)


@pytest.mark.parametrize(
    ("alias", "value"),
    [
        ("complete", "done"),
        ("completed", "done"),
        ("ready_to_merge", "ready"),
        ("ready_handoff", "ready"),
        ("ready_for_coordinator", "ready"),
        ("in_process", "in_progress"),
        ("claimed", "in_progress"),
        ("implementing", "in_progress"),
        ("validating", "in_progress"),
        ("pushing", "in_progress"),
        ("Ready-To-Merge", "ready"),
        ("In-Progress", "in_progress"),
        ("waiting-on-checks-or-review", "waiting_on_checks_or_review"),
    ],
)
def test_an_alias_keeps_the_spelling_beside_it(alias: str, value: str) -> None:
    assert normalize(alias) == Status(value=value, raw=alias, known=True)


@pytest.mark.parametrize("word", ["released", "Released", "napping", "", " ", "in progress", "done!", "ready_"])
def test_anything_else_is_kept_to_the_letter_twice(word: str) -> None:
    assert normalize(word) == Status(value=word, raw=word, known=False)


@given(spellings)
def test_folding_twice_is_folding_once(spelling: str) -> None:
    once = normalize(spelling)
    again = normalize(once.value)
    assert (again.value, again.known) == (once.value, once.known)
    assert again.raw == (None if once.known else once.value)


@given(spellings)
def test_no_spelling_is_lost(spelling: str) -> None:
    folded = normalize(spelling)
    assert spelling == (folded.value if folded.raw is None else folded.raw)
    assert folded.known == (folded.value in CANONICAL)
    assert (folded.value == folded.raw) == (not folded.known)  # how a reader tells an unknown one


def test_the_warning_names_the_status_and_the_whole_vocabulary() -> None:
    assert unknown_warning(normalize("Napping")) == (
        'warning: status "Napping" is not in the canonical status vocabulary; preserving it verbatim with a '
        f"status_raw copy. Canonical statuses: {', '.join(VOCABULARY.split())}."
    )
