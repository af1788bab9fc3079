"""What the GitHub store makes of answers: a clear yes or no, or a second look; never a guess."""

import re

import pytest

from agentcoord.errors import Conflict, Defect, StoreError, Unreadable, UsageError
from agentcoord.stores.base import Stored
from agentcoord.stores.contents import is_absence
from agentcoord.stores.gh import Answer
from agentcoord.stores.github import MAX_RECORD_BYTES, GithubStore
from tests.stores.github_server import REF, REPO, GithubServer, Reply, http
from tests.stores.layout import BEAT, CLAIM
from tests.stores.processes import drive

ARCHIVED = (
    "legacy GitHub backend acme/state is archived and read-only; configure AGENT_COORD_API_URL and "
    "AGENT_COORD_API_TOKEN for the HTTP backend, or choose an active writable GitHub backend"
)
NO_REF = "backend ref acme/state@state is not readable: gh: Not Found (HTTP 404)"
SERVER_ERROR = http(502, "Server Error")
UNCLEAR = {
    "5xx": SERVER_ERROR,
    "timeout": None,
    "network": Reply(1, b"", b'Put "https://api.github.com/x": read: connection reset by peer\n'),
    "garbage": Reply(0, b"<html>"),
    "not-utf8": Reply(0, b'{"commit": {}, "content": {"sha": "\xff"}}'),
    "empty": Reply(0),
    "408": http(408, "Request Timeout"),
    "words": Reply(1, b"", b"gh: it already exists\n"),
}
unclear = pytest.mark.parametrize("reply", UNCLEAR.values(), ids=UNCLEAR.keys())


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


async def blob(server: GithubServer, path: str) -> str | None:
    found = server.entry(path)
    return None if found is None else found[2]


# -- commits


async def test_a_note_is_the_message_of_a_commit(github: GithubStore, server: GithubServer) -> None:
    version = await github.write(CLAIM, {}, version=None, note="Claim acme/widgets#319")
    assert await blob(server, CLAIM) == version
    await github.delete(CLAIM, version=version, note="Archive ü")
    await github.write(CLAIM, {}, version=None, note="")
    assert server.messages() == [f"Write {CLAIM}", "Archive ü", "Claim acme/widgets#319", "Begin"]


async def test_what_each_deed_costs(github: GithubStore, server: GithubServer) -> None:
    version = await github.write(CLAIM, {}, version=None, note="")
    assert server.asked() == [f"PUT contents/{CLAIM}"]
    await github.read(CLAIM)
    assert server.asked() == [f"GET contents/{CLAIM}?ref=state"]
    await github.read(BEAT)
    assert server.asked() == [f"GET contents/{BEAT}?ref=state", "GET git/trees/state"]
    for name in "abc":
        await github.write(f"heartbeats/{name}.json", {"n": name != "a"}, version=None, note="")
    server.asked()
    await github.list("heartbeats")  # b and c are one blob
    assert [call[:13] for call in server.asked()] == ["GET git/trees", "GET git/blobs", "GET git/blobs"]
    await github.delete(CLAIM, version=version, note="")
    assert server.asked() == [f"DELETE contents/{CLAIM}"]


async def test_no_token_and_no_content_is_on_a_command_line(github: GithubStore, server: GithubServer) -> None:
    await github.write(CLAIM, {"agent_id": "worker-a"}, version=None, note="Claim it")
    (call,) = server.calls
    assert b"Claim it" in call.body
    assert not any("Claim it" in word or "worker-a" in word for word in call.argv)


def test_no_method_suspends(github: GithubStore) -> None:
    version = drive(github.write(BEAT, {}, version=None, note=""))
    assert drive(github.read(BEAT)) is not None
    assert len(list(drive(github.list("heartbeats")).entries)) == 1
    drive(github.check(writable=True))
    drive(github.delete(BEAT, version=version, note=""))


async def test_odd_names_reach_their_place(server: GithubServer) -> None:
    store = GithubStore(REPO, REF, server)
    for path in ("heartbeats/a b#?%{owner}&.json", "heartbeats/ü.json"):
        version = await store.write(path, {}, version=None, note="")
        stored = await store.read(path)
        assert stored is not None
        assert stored.version == version
        assert await blob(server, path) == version


@pytest.mark.parametrize("repo", ["acme", "acme/..", "../state", "-R/state", "acme/state/x", "acme/st ate", ""])
def test_a_repository_is_owner_and_name(server: GithubServer, repo: str) -> None:
    with pytest.raises(UsageError, match=exactly(f"invalid backend repo: {repo}")):
        GithubStore(repo, REF, server)


@pytest.mark.parametrize("ref", ["a\nb", "\udcff", "a\0"])
def test_a_ref_can_be_printed(server: GithubServer, ref: str) -> None:
    with pytest.raises(UsageError, match=r"^invalid backend ref: "):
        GithubStore(REPO, ref, server)


async def test_what_cannot_be_stored_is_not_sent(github: GithubStore, server: GithubServer) -> None:
    with pytest.raises(StoreError, match=r"^state record is too large to write: heartbeats/worker-a\.json: "):
        await github.write(BEAT, "x" * MAX_RECORD_BYTES, version=None, note="")
    with pytest.raises(UsageError, match=r"^state record is not valid UTF-8: "):
        await github.write(BEAT, "\udcff", version=None, note="")
    with pytest.raises(UsageError, match=r"^commit message is not valid UTF-8: "):
        await github.write(BEAT, {}, version=None, note="\udcff")
    with pytest.raises(UsageError, match=r"^unsafe state path: "):
        await github.read("heartbeats/\udcff.json")
    assert server.calls == []


# -- writers in each other's way


async def test_a_commit_of_another_record_is_no_conflict(github: GithubStore, server: GithubServer) -> None:
    def once() -> None:
        server.before_change = None
        server.plant(BEAT, b"{}")

    server.before_change = once
    version = await github.write(CLAIM, {}, version=None, note="")
    assert await blob(server, CLAIM) == version
    assert [call.partition(" ")[0] for call in server.asked()] == ["PUT", "GET", "GET", "PUT"]


async def test_a_commit_of_the_same_record_is_one(github: GithubStore, server: GithubServer) -> None:
    version = await github.write(CLAIM, {"n": 1}, version=None, note="")
    server.before_change = lambda: server.plant(CLAIM, b'{"n": 2}')
    with pytest.raises(Conflict, match=exactly(f"state changed at {CLAIM}")):
        await github.write(CLAIM, {"n": 3}, version=version, note="")
    with pytest.raises(Conflict, match=exactly(f"state changed at {CLAIM}")):
        await github.delete(CLAIM, version=version, note="")


async def test_a_branch_that_never_rests_ends_the_attempts(server: GithubServer) -> None:
    pauses: list[float] = []
    store = GithubStore(REPO, REF, server, pause=pauses.append)
    count = iter(range(99))
    server.before_change = lambda: server.plant("heartbeats/other.json", str(next(count)).encode())
    with pytest.raises(StoreError, match=r"^state record is not writable: claims/.*: gh: state is at ") as told:
        await store.write(CLAIM, {}, version=None, note="")
    assert not isinstance(told.value, Conflict)
    assert len(pauses) == 3
    assert all(0.1 <= pause / 2**attempt < 0.4 for attempt, pause in enumerate(pauses, 1))
    assert await blob(server, CLAIM) is None


# -- no clear answer to a change


@unclear
@pytest.mark.parametrize("create", [True, False])
async def test_an_answer_that_was_lost_is_found_out(
    github: GithubStore, server: GithubServer, reply: Reply | None, create: bool
) -> None:
    version = None if create else await github.write(CLAIM, {"n": 1}, version=None, note="first")
    server.fail("PUT", reply, done=True)
    version = await github.write(CLAIM, {"n": 2}, version=version, note="lost")
    assert await blob(server, CLAIM) == version
    assert server.messages().count("lost") == 1
    server.fail("DELETE", reply, done=True)
    await github.delete(CLAIM, version=version, note="gone")
    assert await blob(server, CLAIM) is None


@unclear
async def test_a_change_that_did_not_happen_is_not_guessed(
    github: GithubStore, server: GithubServer, reply: Reply | None
) -> None:
    said = exactly(f"not known whether the change to {CLAIM} was made: ")[:-1]
    server.fail("PUT", reply)
    with pytest.raises(StoreError, match=said) as told:
        await github.write(CLAIM, {"n": 1}, version=None, note="")
    assert not isinstance(told.value, Conflict)
    assert await blob(server, CLAIM) is None
    version = await github.write(CLAIM, {"n": 1}, version=None, note="")
    server.fail("DELETE", reply)
    with pytest.raises(StoreError, match=said):
        await github.delete(CLAIM, version=version, note="")
    assert await blob(server, CLAIM) == version


@unclear
async def test_another_writers_record_is_a_no(github: GithubStore, server: GithubServer, reply: Reply | None) -> None:
    server.plant(CLAIM, b'{"n": 2}')
    server.fail("PUT", reply)
    with pytest.raises(Conflict, match=exactly(f"state already exists at {CLAIM}")):
        await github.write(CLAIM, {"n": 1}, version=None, note="")
    server.fail("DELETE", reply)
    with pytest.raises(Conflict, match=exactly(f"state changed at {CLAIM}")):
        await github.delete(CLAIM, version="0" * 40, note="")


async def test_a_record_without_readable_content_is_not_a_deleted_one(
    github: GithubStore, server: GithubServer
) -> None:
    server.plant(CLAIM, b" " * (MAX_RECORD_BYTES + 1))
    version = await blob(server, CLAIM)
    assert version is not None
    server.fail("DELETE", SERVER_ERROR)
    with pytest.raises(StoreError, match=r"^not known whether "):
        await github.delete(CLAIM, version=version, note="")


@pytest.mark.parametrize("again", [SERVER_ERROR, None, Reply(0, b"{"), http(403, "rate limit exceeded")])
async def test_what_cannot_be_read_back_is_unknown(
    github: GithubStore, server: GithubServer, again: Reply | None
) -> None:
    server.fail("PUT", None, done=True)
    server.fail("GET", again)
    said = f"^not known whether the change to {CLAIM} was made: gh did not answer within 30 seconds; reading it back "
    with pytest.raises(StoreError, match=said):
        await github.write(CLAIM, {}, version=None, note="")


@pytest.mark.parametrize(
    "reply",
    [
        http(401, "Bad credentials"),
        http(403, "Resource not accessible by integration"),
        http(429, "slow down"),
        Reply(4, b"", b"To get started with GitHub CLI, please run:  gh auth login\n"),
    ],
)
async def test_a_clear_no_needs_no_second_look(github: GithubStore, server: GithubServer, reply: Reply) -> None:
    server.fail("PUT", reply)
    cause = " ".join(reply.err.decode().split())
    with pytest.raises(StoreError, match=exactly(f"state record is not writable: {CLAIM}: {cause}")):
        await github.write(CLAIM, {}, version=None, note="")
    assert len(server.calls) == 1


@pytest.mark.parametrize("status", [404, 422])
async def test_a_no_for_another_reason_is_not_a_conflict(
    github: GithubStore, server: GithubServer, status: int
) -> None:
    server.fail("PUT", http(status, "Invalid request"))
    cause = f"gh: Invalid request (HTTP {status})"
    with pytest.raises(StoreError, match=exactly(f"state record is not writable: {CLAIM}: {cause}")) as told:
        await github.write(CLAIM, {}, version=None, note="")
    assert not isinstance(told.value, Conflict)
    assert sum(call.startswith("PUT") for call in server.asked()) == 1


async def test_an_archived_repository_is_named_with_the_ways_out(github: GithubStore, server: GithubServer) -> None:
    version = await github.write(CLAIM, {}, version=None, note="")
    server.archived = True
    for attempt in (
        github.write(CLAIM, {"n": 1}, version=version, note=""),
        github.delete(CLAIM, version=version, note=""),
        github.check(writable=True),
        github.check(writable=False),
    ):
        with pytest.raises(StoreError, match=exactly(ARCHIVED)):
            await attempt
    assert await github.read(CLAIM) is not None


# -- reading


async def test_nothing_is_there_only_where_the_ref_is(github: GithubStore, server: GithubServer) -> None:
    server.plant(CLAIM, b"{}")
    server.drop_branch()
    for attempt in (
        github.read(CLAIM),
        github.list("claims"),
        github.write(CLAIM, {}, version=None, note=""),
        github.delete(CLAIM, version="0" * 40, note=""),
        github.check(writable=False),
    ):
        with pytest.raises(StoreError, match=exactly(NO_REF)):
            await attempt
    with pytest.raises(StoreError, match=r"^backend ref acme/nowhere@state is not readable: "):
        await GithubStore("acme/nowhere", REF, server).read(CLAIM)


@pytest.mark.parametrize(
    "reply",
    [SERVER_ERROR, None, Reply(0, b"\xff\xfe"), Reply(0, b"null"), Reply(0, b"{}"), http(401, "x"), Reply(1)],
    ids=["5xx", "timeout", "not-utf8", "null", "object", "401", "silent"],
)
async def test_a_record_that_cannot_be_read_is_not_an_absent_one(
    github: GithubStore, server: GithubServer, reply: Reply | None
) -> None:
    server.plant(CLAIM, b"{}")
    server.fail("GET", reply)
    with pytest.raises(StoreError, match=f"^state record cannot be read now: {CLAIM}: gh") as told:
        await github.read(CLAIM)
    assert not isinstance(told.value, Unreadable)
    for _ in range(2):
        server.fail("GET", reply)
        with pytest.raises(StoreError, match=r"^backend ref acme/state@state is not readable: gh"):
            await github.list("claims")


@pytest.mark.parametrize(
    ("err", "absent"),
    [
        ("gh: Not Found (HTTP 404)", True),
        ("HTTP 404: Not Found (https://api.github.com/x)", True),
        ("not found", True),
        ('Get "https://api.github.com/contents/not%20found/404.json": EOF', False),
        ("gh: claims/404.json: sha not found (HTTP 500)", False),
        ("error connecting to api.github.com", False),
    ],
)
def test_absence_is_a_status_or_a_word_of_the_answer(err: str, absent: bool) -> None:
    err = err.replace(' not found"', '%20not%20found"')
    assert is_absence(Answer(1, b"", err)) == absent
    assert not is_absence(Answer(1, b"", err, fault="gh did not answer within 30 seconds"))


async def test_absence_in_the_body_alone_counts(github: GithubStore, server: GithubServer) -> None:
    server.fail("GET", Reply(1, b'{"message": "Gone", "status": "404"}'))
    assert await github.read(CLAIM) is None


@pytest.mark.parametrize("reply", [SERVER_ERROR, None, Reply(0, b"{}"), http(404, "Not Found")])
async def test_a_listing_is_whole_or_not_at_all(github: GithubStore, server: GithubServer, reply: Reply | None) -> None:
    server.plant(BEAT, b"{}")

    server.fail("GET git/blobs", reply)
    with pytest.raises(StoreError, match=f"^state record cannot be read now: {BEAT}: gh"):
        await github.list("heartbeats")


async def test_a_truncated_tree_lists_nothing(github: GithubStore, server: GithubServer) -> None:
    server.plant(BEAT, b"{}")
    server.truncated = True
    with pytest.raises(StoreError, match=r"^backend ref acme/state@state cannot be listed: .* recursive tree short"):
        await github.list("heartbeats")
    assert await github.read("heartbeats/other.json") is None


@pytest.mark.parametrize(
    ("mode", "data", "defect", "said"),
    [
        ("100644", b"{nope", Defect.MALFORMED, f"state unreadable: JSON is malformed: .+ at {BEAT}"),
        ("100644", b"\xff", Defect.MALFORMED, f"state unreadable: .+ at {BEAT}"),
        ("100644", b"", Defect.MALFORMED, f"state unreadable: the file is empty at {BEAT}"),
        ("100644", b" " * (MAX_RECORD_BYTES + 1), Defect.MALFORMED, f"state unreadable: the record has .+ at {BEAT}"),
        ("120000", b"b.json", Defect.SYMLINK, f"state layout invalid: {BEAT} is a symlink"),
        ("160000", b"", Defect.NOT_REGULAR, f"state layout invalid: {BEAT} is not a regular file"),
    ],
    ids=["broken", "not-utf8", "empty", "large", "symlink", "submodule"],
)
async def test_a_bad_record_costs_one_row(
    github: GithubStore, server: GithubServer, mode: str, data: bytes, defect: Defect, said: str
) -> None:
    server.plant("heartbeats/b.json", b'{"n": 1}')
    server.plant(BEAT, data, mode=mode)
    good, bad = (await github.list("heartbeats")).entries
    assert isinstance(good, Stored)
    assert isinstance(bad, Unreadable)
    assert (bad.path, bad.defect) == (BEAT, defect)
    assert re.fullmatch(said, str(bad))
    with pytest.raises(Unreadable, match=f"^{said}$") as told:
        await github.read(BEAT)
    assert told.value.defect is defect


async def test_a_listing_passes_over_what_is_no_record(github: GithubStore, server: GithubServer) -> None:
    for path in (".a.json", "notes.txt", ".dot/b.json", "c.json.bak"):
        server.plant(f"heartbeats/{path}", b"{}")
    server.plant("claims/o/api.json/7.json", b"{}")
    server.plant(BEAT, b"{}")
    assert [entry.path for entry in (await github.list("heartbeats")).entries] == [BEAT]
    assert [entry.path for entry in (await github.list("claims")).entries] == ["claims/o/api.json/7.json"]
    with pytest.raises(Unreadable, match=r"^state layout invalid: claims/o/api\.json is not a regular file$"):
        await github.read("claims/o/api.json")


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        ("claims", "100644", "claims is not a directory"),
        ("claims", "120000", "claims is a symlink"),
        ("claims/acme", "120000", "claims/acme is a symlink"),
    ],
)
async def test_a_directory_must_be_one(
    github: GithubStore, server: GithubServer, path: str, mode: str, said: str
) -> None:
    server.plant(path, b"elsewhere", mode=mode)
    for prefix in ("claims", "claims/acme"):
        with pytest.raises(StoreError, match=exactly(f"state layout invalid: {said}")):
            await github.list(prefix)
    if path == "claims":
        with pytest.raises(StoreError, match=exactly(f"state layout invalid: {said}")):
            await github.check(writable=False)


# -- the doctor


async def test_the_doctor_asks_for_login_repository_and_tree(github: GithubStore, server: GithubServer) -> None:
    await github.check(writable=True)
    assert server.asked() == ["auth status", "repo view acme/state --json isArchived", "GET git/trees/state"]
    server.logged_in = False
    with pytest.raises(StoreError, match=exactly("gh auth status failed: You are not logged into any GitHub hosts.")):
        await github.check(writable=True)
    server.logged_in = True
    with pytest.raises(StoreError, match=r"^backend repository acme/x is not readable: GraphQL: Could not resolve"):
        await GithubStore("acme/x", REF, server).check(writable=True)
    server.fail("repo", Reply(0, b"?"))
    with pytest.raises(StoreError, match=r"^backend repository acme/state is not readable: gh gave an answer that"):
        await github.check(writable=True)
