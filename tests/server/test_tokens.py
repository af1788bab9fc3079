"""Tokens from the command line, over both databases (spec: http §9)."""

import json
import os
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from agentcoord.errors import UsageError
from agentcoordd.server.tokens import USAGE, beside, read_provision
from tests.command import Answer
from tests.server.calling import calling, grant, received, rest, revoke, sql, wire
from tests.server.postgres import Cluster
from tests.server.running import agentcoordd, running

MACHINE = "machine name may contain only letters, numbers, dots, underscores, colons, and hyphens"
DATABASE = "database name may contain only letters, numbers, dots, underscores, and hyphens"
EMPTY = "prefix cannot be empty; pass --all-state for all-state access"
COMBINED = "--all-state cannot be combined with --read-prefix or --write-prefix"
NOTHING = "provide at least one --read-prefix or --write-prefix, or pass --all-state"
USED = "\n".join(USAGE)

MISTAKES: list[tuple[list[str], str]] = [
    ([], USED),
    (["--all-state"], USED),
    (["--all-state", "m"], USED),
    (["m", "--all-state", "x"], USED),
    (["m", "--all-state", "--bogus"], USED),
    (["m", "--all-state=1"], USED),
    (["m", "--read-prefix"], USED),
    (["m", "--read-prefix", "claims", "--write-prefix"], USED),
    (["m", "--all-state", "--database"], USED),
    (["m", "--all-state", "--db"], USED),
    (["", "--all-state"], MACHINE),
    (["a b", "--all-state"], MACHINE),
    (["m/x", "--all-state"], MACHINE),
    (["m\n", "--all-state"], MACHINE),
    (["mé", "--all-state"], MACHINE),
    (["m", "--all-state", "--database", "-x"], "database name cannot start with a hyphen"),
    (["m", "--all-state", "--database", "a/b"], DATABASE),
    (["m", "--all-state", "--database", ""], DATABASE),
    (["m", "--all-state", "--database", "x\n"], DATABASE),
    (["m", "--read-prefix", ""], EMPTY),
    (["m", "--write-prefix", ""], EMPTY),
    (["m", "--read-prefix", "etc"], "invalid read prefix: etc"),
    (["m", "--write-prefix", "claims/"], "invalid write prefix: claims/"),
    (["m", "--read-prefix", "claims", "--read-prefix", "events/a/b"], "invalid read prefix: events/a/b"),
    (["m", "--write-prefix", "claims/../x"], "invalid write prefix: claims/../x"),
    (["m", "--all-state", "--read-prefix", "claims"], COMBINED),
    (["m", "--write-prefix", "claims", "--all-state"], COMBINED),
    (["m"], NOTHING),
    (["m", "--rotate", "--local"], NOTHING),
]


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(("arguments", "text"), MISTAKES)
def test_a_wrong_call_is_told_what_is_wrong(arguments: Sequence[str], text: str, *, rotate: bool) -> None:
    with pytest.raises(UsageError) as raised:
        read_provision(arguments, rotate=rotate)
    assert str(raised.value) == text


@pytest.mark.parametrize(
    ("arguments", "reads", "writes"),
    [
        (["m", "--all-state"], ("",), ("",)),
        (["m", "--read-prefix", "claims"], ("claims",), ()),
        (["m", "--write-prefix", "archive/claims/o/r/7.json"], (), ("archive/claims/o/r/7.json",)),
        (
            ["m", "--write-prefix", "events/b", "--read-prefix", "events", "--read-prefix", "claims/o"],
            ("events", "claims/o"),
            ("events/b",),
        ),
        (["m", "--read-prefix", "attention/w/o/r"], ("attention/w/o/r",), ()),
        (["a.B_9:c-d", "--remote", "--local", "--all-state"], ("",), ("",)),
    ],
)
def test_scopes_are_kept_in_the_order_given(
    arguments: Sequence[str], reads: tuple[str, ...], writes: tuple[str, ...]
) -> None:
    provision = read_provision(arguments)
    assert (provision.machine, provision.reads, provision.writes) == (arguments[0], reads, writes)


@pytest.mark.parametrize(("arguments", "text"), [MISTAKES[4], MISTAKES[15], MISTAKES[21], MISTAKES[27]])
@pytest.mark.parametrize("action", ["add", "rotate"])
def test_nothing_is_done_before_all_is_checked(
    tmp_path: Path, action: str, arguments: Sequence[str], text: str
) -> None:
    answer = agentcoordd("token", action, *arguments, env={"AGENT_COORD_SERVER_DB": f"sqlite:///{tmp_path}/new.db"})
    assert answer == Answer(1, "", text + "\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", [["list"], ["revoke", "m"]])
def test_no_database_is_made_to_look_into(tmp_path: Path, action: Sequence[str]) -> None:
    answer = agentcoordd("token", *action, "--db", f"sqlite:///{tmp_path}/none/state.db")
    assert answer == Answer(2, "", f"there is no database: {tmp_path}/none/state.db\n")
    assert list(tmp_path.iterdir()) == []


def test_the_answer_is_that_of_the_reference(db: str) -> None:
    scopes = ["--read-prefix", "claims", "--read-prefix", "events/b1"]
    answer = agentcoordd("token", "add", "m1", *scopes, "--db", db)
    found = re.search(r"^token:    ([0-9a-f]{48})$", answer.out, re.MULTILINE)
    assert found is not None
    token = found.group(1)
    assert answer == Answer(
        0,
        f"""\
machine:  m1
reads:    ["claims","events/b1"]
writes:   []
token:    {token}
Set on that machine:
  export AGENT_COORD_API_URL=<worker-url>
  export AGENT_COORD_API_TOKEN={token}
Keep both in ${{AGENT_COORD_ENV_FILE:-~/.config/agent-coord/env}} with mode 600, then restart what uses them.
""",
        "",
    )
    [row] = sql(db, "SELECT token_hash, read_prefixes, write_prefixes, created_at, revoked_at FROM machines")
    assert row[:3] == (sha256(token.encode()).hexdigest(), '["claims","events/b1"]', "[]")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row[3])
    assert row[4] is None
    whole = agentcoordd("token", "add", "m2", "--all-state", "--db", db).out
    assert '\nreads:    [""]\nwrites:   [""]\n' in whole


def _token(answer: Answer) -> str:
    assert (answer.exit, answer.err) == (0, "")
    return answer.out.split("token:    ")[1][:48]


def test_only_hashes_are_at_rest(sqlite: str, tmp_path: Path) -> None:
    token = _token(agentcoordd("token", "add", "m", "--all-state", "--db", sqlite))
    files = [place for place in tmp_path.iterdir() if place.is_file()]
    stored = b"".join(place.read_bytes() for place in files)
    assert sha256(token.encode()).hexdigest().encode() in stored
    assert token.encode() not in stored
    assert {place.stat().st_mode & 0o077 for place in files} == {0}


def test_a_token_lives_from_add_to_rotate_to_revoke_while_the_server_runs(db: str) -> None:
    env = {"AGENT_COORD_SERVER_DB": db}
    with running(db) as server:

        def who(token: str) -> int:
            with calling(server, token) as caller:
                return caller.ask("GET", "/v1/whoami").status

        first = _token(agentcoordd("token", "add", "m", "--all-state", env=env))
        assert who(first) == 200
        again = agentcoordd("token", "add", "m", "--all-state", env=env)
        assert again == Answer(1, "", "machine m has a token already; pass --rotate to replace it\n")
        assert who(first) == 200
        second = _token(agentcoordd("token", "rotate", "m", "--read-prefix", "claims", env=env))
        assert (who(first), who(second)) == (401, 200)
        with calling(server, second) as caller:
            assert caller.ask("GET", "/v1/whoami").json()["write_prefixes"] == []
        third = _token(agentcoordd("token", "add", "m", "--rotate", "--all-state", env=env))
        assert (who(second), who(third)) == (401, 200)
        assert agentcoordd("token", "revoke", "m", env=env) == Answer(0, "revoked m\n", "")
        assert who(third) == 401
        gone = agentcoordd("token", "revoke", "m", env=env)
        assert gone == Answer(1, "", "machine m has no token to revoke\n")
        # A revoked machine is still there, and only a rotation brings it back.
        assert agentcoordd("token", "add", "m", "--all-state", env=env).exit == 1
        fourth = _token(agentcoordd("token", "rotate", "m", "--all-state", env=env))
        assert (who(third), who(fourth)) == (401, 200)
    assert not any(token in line for line in server.lines for token in (first, second, third, fourth))


def test_a_list_names_machines_and_no_secret(db: str) -> None:
    tokens = [
        _token(agentcoordd("token", "add", name, "--read-prefix", "claims", "--db", db)) for name in ("b", "a", "B")
    ]
    agentcoordd("token", "revoke", "b", "--db", db)
    shown = agentcoordd("token", "list", "--db", db)
    assert shown.exit == 0
    instant = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines] == ["B", "a", "b"]
    assert re.fullmatch(rf'a active created {instant} reads \["claims"\] writes \[\]', lines[1])
    assert re.fullmatch(rf'b revoked {instant} created {instant} reads \["claims"\] writes \[\]', lines[2])
    sql(db, "UPDATE machines SET read_prefixes = 'junk' WHERE machine = 'a'")
    machines = json.loads(agentcoordd("token", "list", "--json", "--db", db).out)["machines"]
    assert [machine["machine"] for machine in machines] == ["B", "a", "b"]
    assert [machine["read_prefixes"] for machine in machines] == [["claims"], None, ["claims"]]
    assert [machine["revoked_at"] is None for machine in machines] == [True, True, False]
    assert set(machines[0]) == {"machine", "read_prefixes", "write_prefixes", "created_at", "revoked_at"}
    for token in tokens:
        assert token not in shown.out
        assert sha256(token.encode()).hexdigest() not in shown.out + json.dumps(machines)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("sqlite:////var/lib/state.db", "sqlite:////var/lib/other.db"),
        ("sqlite:///state.db", "sqlite:///other.db"),
        ("sqlite:////var/lib/state", "sqlite:////var/lib/other"),
        ("postgresql://u:p@h:1/fleet", "postgresql://u:p@h:1/other"),
        ("postgresql://u@/fleet?host=/run/x", "postgresql://u@/other?host=/run/x"),
        ("postgresql://h/", "postgresql://h/other"),
        ("postgresql://u@h", "postgresql://u@h/other"),
        ("postgres://h?sslmode=require", "postgres://h/other?sslmode=require"),
    ],
)
def test_another_database_stands_beside(url: str, found: str) -> None:
    assert beside(url, "other") == found


def test_a_token_goes_into_the_database_named(sqlite: str, cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.database()
    name = other.partition("?")[0].rpartition("/")[2]
    for url, database, there in (
        (sqlite, "beside", f"sqlite:///{tmp_path}/beside.db"),
        (cluster.database(), name, other),
    ):
        answer = agentcoordd("token", "add", "m", "--all-state", "--db", url, "--database", database)
        assert answer.exit == 0
        assert "m active" in agentcoordd("token", "list", "--db", there).out
        assert "m active" in agentcoordd("token", "list", "--db", url, "--database", database).out
        assert agentcoordd("token", "list", "--db", url).out == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["delete", "m"], "unknown token command: delete; see agentcoordd token --help"),
        (["revoke"], "token revoke needs the name of one machine"),
        (["revoke", "a", "b"], "token revoke needs the name of one machine"),
        (["revoke", "a b"], MACHINE),
        (["revoke", "--bogus"], "unknown option: --bogus; see agentcoordd token --help"),
        (["revoke", "m", "--database", "a/b"], DATABASE),
        (["revoke", "m", "--db"], "--db needs a value"),
        (["list", "x"], "unexpected arguments: x"),
        (["list", "--bogus"], "unknown option: --bogus; see agentcoordd token --help"),
    ],
)
def test_other_wrong_calls_are_one_line(tmp_path: Path, arguments: Sequence[str], text: str) -> None:
    answer = agentcoordd("token", *arguments, env={"AGENT_COORD_SERVER_DB": f"sqlite:///{tmp_path}/new.db"})
    assert answer == Answer(1, "", text + "\n")
    assert list(tmp_path.iterdir()) == []


def test_without_a_database_nothing_can_be_done() -> None:
    answer = agentcoordd("token", "add", "m", "--all-state")
    assert answer.exit == 1
    assert answer.err == "--db or AGENT_COORD_SERVER_DB is required: sqlite:///PATH or postgresql://…\n"


def test_a_password_is_not_shown_when_the_database_is_unreachable(tmp_path: Path) -> None:
    for url in (f"postgresql://u:hunter2@/d?host={tmp_path}", f"postgresql:///d?host={tmp_path}&password=hunter2"):
        for command in (["token", "list"], ["server", "--listen", "127.0.0.1:0"]):
            answer = agentcoordd(*command, "--db", url)
            assert answer.exit == 2
            assert answer.err.splitlines()[-1].startswith("database error: ")
            assert "hunter2" not in answer.err + answer.out


def test_a_change_that_nobody_told_the_server_of_is_seen_all_the_same(sqlite: str) -> None:
    """As when the command was killed between the two: the server looks for itself now and then."""
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with running(sqlite) as server, calling(server, token) as caller:
        assert caller.ask("GET", "/v1/whoami").status == 200
        sql(sqlite, "UPDATE machines SET revoked_at = '2026-01-01T00:00:00Z'")
        while caller.ask("GET", "/v1/whoami").status == 200:  # it ends, or the test never does
            pass
        assert caller.ask("GET", "/v1/whoami").refusal == (401, "unknown_token")


def test_changes_in_quick_succession_all_count_at_once(sqlite: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with running(sqlite) as server, calling(server, token) as caller:
        for _ in range(3):
            assert caller.ask("GET", "/v1/whoami").status == 200
            revoke(sqlite, "m")
            assert caller.ask("GET", "/v1/whoami").status == 401
            caller.token = grant(sqlite, "m", reads=[""], writes=[""], rotate=True)


def test_a_token_that_ends_while_a_body_comes_writes_nothing(db: str) -> None:
    token = grant(db, "m", reads=[""], writes=[""])
    with running(db) as server, wire(server) as connection:
        head = f"PUT /v1/state/events/b/a.json HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n"
        more = "If-None-Match: *\r\nExpect: 100-continue\r\nContent-Length: 10\r\nConnection: close\r\n\r\n"
        connection.sendall(f"{head}{more}".encode())
        assert received(connection, until=b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")  # the token was good
        revoke(db, "m")
        with calling(server, token) as caller:
            while caller.ask("GET", "/v1/whoami").status == 200:  # servers on PostgreSQL are told, in their time
                pass
        connection.sendall(b'{"data":1}')
        assert rest(connection).startswith(b"HTTP/1.1 401 ")
        other = grant(db, "other", reads=[""], writes=[""])
        with calling(server, other) as caller:
            assert caller.get("events/b/a.json").status == 404


@pytest.mark.parametrize("spoil", ["cut short", "deleted", "symlink", "called otherwise"])
def test_a_lock_file_that_cannot_be_marked_keeps_no_token_alive(sqlite: str, tmp_path: Path, spoil: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    named = sqlite
    with running(sqlite) as server, calling(server, token) as caller:
        assert caller.ask("GET", "/v1/whoami").status == 200
        lock = tmp_path / "state.db.server-lock"
        match spoil:
            case "cut short":
                os.truncate(lock, 0)
            case "deleted":
                lock.unlink()
            case "symlink":
                lock.rename(tmp_path / "elsewhere")
                lock.symlink_to("elsewhere")
            case _:
                (tmp_path / "alias.db").symlink_to("state.db")
                named = f"sqlite:///{tmp_path}/alias.db"
        assert agentcoordd("token", "revoke", "m", "--db", named) == Answer(0, "revoked m\n", "")
        if spoil == "called otherwise":
            assert caller.ask("GET", "/v1/whoami").status == 401
        while caller.ask("GET", "/v1/whoami").status == 200:  # it ends, or the test never does
            pass
