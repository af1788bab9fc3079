"""Gathering what there is to go on with: from the last holder's records, whatever of them can be read."""

import pytest

from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.attention import upsert_attention
from agentcoord.operations.claims import Claimed, ReleaseRequest, release
from agentcoord.operations.resume import Resume, ResumeRequest, resume
from agentcoord.operations.retention import RetentionRequest, retain
from agentcoord.protocol.retention import Policy
from tests.operations.stage import CLAIM, REPO, FakeClock, FaultyStore, Stage, lane
from tests.operations.test_attention import OPEN

FACTS = {"phase": "building", "pr_url": "https://example.com/pr/1"}


async def shown(stage: Stage, target: str = "7", *, limit: int = 10) -> Resume:
    return await resume(stage.context(), ResumeRequest(repo=REPO, target=target, limit=limit))


async def hand_over(stage: Stage) -> None:
    """Have one agent work on the item, and leave it to another."""
    await stage.claim("a1", batch_id="b1", branch="topic", metadata=FACTS)
    await stage.beat("a1", repo=REPO, target="7", metadata={"phase": "testing"})
    left = ReleaseRequest(agent_id="a1", repo=REPO, target="7", handoff_to="a2", handoff_note="tests are red")
    await release(stage.context(), left)


async def test_nobody_was_there(stage: Stage) -> None:
    found = await shown(stage)
    assert (found.tenure.standing, found.claim, found.events, found.notes) == ("unclaimed", None, [], [])


async def test_a_holder_is_shown_with_evidence_and_place(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1", batch_id="b1", branch="topic", metadata=FACTS)
    await stage.beat("a1", ttl=60, repo=REPO, target="7", metadata={"phase": "testing"})
    clock.advance(seconds=240)
    found = await shown(stage)
    assert (found.tenure.standing, found.tenure.holder, found.tenure.liveness) == ("held", "a1", "dead")
    assert (found.branch, found.pr_url, found.batch_id) == ("topic", FACTS["pr_url"], "b1")
    assert found.phase == "testing", "the heartbeat knows it later than the claim"


async def test_a_heartbeat_about_other_work_says_nothing_of_this(stage: Stage) -> None:
    await stage.claim("a1", metadata=FACTS)
    await stage.beat("a1", repo=REPO, target="8", branch="other", metadata={"phase": "testing"})
    found = await shown(stage)
    assert (found.phase, found.branch, found.tenure.liveness) == ("building", None, "live")


async def test_what_was_said_on_leaving_is_found_until_somebody_takes_the_item_and_after(stage: Stage) -> None:
    await hand_over(stage)
    before = await shown(stage)
    assert before.handoff is not None
    assert (before.tenure.standing, before.branch) == ("released", "topic")
    taken = await stage.claim("a2", batch_id="b1")
    assert isinstance(taken, Claimed)
    assert taken.handed_over
    after = await shown(stage)
    assert after.tenure.holder == "a2"
    assert after.handoff == before.handoff
    assert after.handoff is not None
    assert (after.handoff.to, after.handoff.note, after.handoff.by) == ("a2", "tests are red", "a1")
    assert (after.branch, after.pr_url) == ("topic", FACTS["pr_url"]), "the new claim does not say it again"
    assert after.phase == "testing", "as the one before said it last"


async def test_a_plain_release_hands_nothing_over(stage: Stage) -> None:
    await stage.claim("a1", batch_id="b1")
    await release(stage.context(), ReleaseRequest(agent_id="a1", repo=REPO, target="7"))
    assert (await shown(stage)).handoff is None
    taken = await stage.claim("a2")
    assert isinstance(taken, Claimed)
    assert not taken.handed_over


async def test_after_retention_the_trail_is_what_is_left(stage: Stage, clock: FakeClock) -> None:
    stage.register(lane())
    await hand_over(stage)
    await stage.claim("a2", batch_id="b1")
    await release(stage.context(), ReleaseRequest(agent_id="a2", repo=REPO, target="7", terminal="done"))
    clock.advance(hours=24 * 9)
    await retain(stage.context(), RetentionRequest(execute=True, policy=Policy()))
    assert await stage.events() == [], "they are still there to be read"
    found = await shown(stage)
    assert (found.tenure.standing, found.handoff, found.branch) == ("unclaimed", None, None)
    assert [row.type for row in found.events] == ["claim.acquired", "lane_closed"]


async def test_the_last_events_are_shown_and_the_earlier_ones_counted(stage: Stage, clock: FakeClock) -> None:
    for number in range(5):
        event = {"schema_version": 1, "event_id": f"e{number}", "batch_id": "b1", "type": "note", "at": stage.stamp()}
        stage.lay(f"events/b1/e{number}.json", event | {"repo": REPO, "target": "7"})
        clock.advance(seconds=1)
    found = await shown(stage, limit=2)
    assert ([row.event_id for row in found.events], found.earlier) == (["e3", "e4"], 3)
    assert ((await shown(stage, limit=0)).events, (await shown(stage, limit=0)).earlier) == ([], 5)


async def test_any_spelling_of_the_item_finds_what_there_is(stage: Stage) -> None:
    await stage.claim("a1", target="issue:7", branch="topic")
    found = await shown(stage)
    assert (found.tenure.holder, found.path, found.others) == ("a1", "claims/o/r/issue:7.json", [])
    await stage.claim("a2")
    assert (await shown(stage)).others != []


async def test_open_questions_about_the_item_and_no_others(stage: Stage) -> None:
    for id_, target in (("one", "issue:7"), ("two", "8")):
        await upsert_attention(stage.context(), OPEN | {"id": id_, "repository": REPO, "target": target})
    await upsert_attention(stage.context(), OPEN | {"id": "three", "repository": "o/other", "target": "7"})
    assert [record["id"] for record in (await shown(stage)).attention] == ["one"]


@pytest.mark.parametrize(
    ("path", "broken", "says"),
    [
        ("heartbeats/a1.json", b"{", "heartbeat of a1"),
        ("attention/default/o/r/x.json", b"[]", "attention/default/o/r/x.json"),
        ("claims/o/r/issue:7.json", b"{", "claims/o/r/issue:7.json"),
        ("events/b1/x.json", b"{", "events"),
    ],
)
async def test_what_cannot_be_read_costs_a_note(stage: Stage, path: str, broken: bytes, says: str) -> None:
    await stage.claim("a1", batch_id="b1", branch="topic")
    stage.store.plant(path, broken)
    found = await shown(stage)
    assert (found.tenure.holder, found.branch) == ("a1", "topic")
    assert any(says in note for note in found.notes), found.notes


async def test_a_claim_that_cannot_be_read_is_no_answer(stage: Stage) -> None:
    stage.store.plant(CLAIM, b"{")
    with pytest.raises(StoreError, match=CLAIM):
        await shown(stage)


@pytest.mark.parametrize("family", ["claims", "heartbeats", "attention"])
async def test_a_backend_that_does_not_answer_is_no_answer(stage: Stage, family: str) -> None:
    await stage.claim("a1")
    context = stage.context(FaultyStore(stage.store, unreadable=family))
    with pytest.raises(StoreError):
        await resume(context, ResumeRequest(repo=REPO, target="7"))


async def test_it_writes_nothing(stage: Stage) -> None:
    await hand_over(stage)
    before = await stage.records()
    await shown(stage)
    assert await stage.records() == before


@pytest.mark.parametrize(("repo", "target", "limit"), [("nope", "7", 1), (REPO, "a/b", 1), (REPO, "7", -1)])
async def test_a_bad_question_is_refused(stage: Stage, repo: str, target: str, limit: int) -> None:
    with pytest.raises(UsageError):
        await resume(stage.context(), ResumeRequest(repo=repo, target=target, limit=limit))
