"""Attention over a real server: a machine whose token covers less than it asks for is told so."""

import json

import pytest

from agentcoord.cli.output import Output
from tests.cli.line import Line
from tests.operations.test_attention import OPEN
from tests.server.calling import grant
from tests.server.running import Running

DENIED = "failed: 403 forbidden"


class Asker:
    """A command line whose environment selects a server, asking about one repository."""

    def __init__(self, line: Line, server: Running, mine: str) -> None:
        self.line, self.server, self.mine = line, server, mine
        self.whose = ("--workspace", mine, "--repo", "o/r")
        self.prefix = f"attention/{mine}/o/r"
        line.env["AGENT_COORD_API_URL"] = server.url

    def token(self, name: str, *, reads: list[str], writes: list[str]) -> None:
        """Take a token of a machine of that name."""
        self.line.env["AGENT_COORD_API_TOKEN"] = grant(
            self.server.db, f"{self.mine}-{name}", reads=reads, writes=writes
        )

    def upsert(self, name: str) -> Output:
        """Ask for attention."""
        record = OPEN | {"workspace": self.mine, "id": name}
        return self.line("attention-upsert", "--record-json", self.line.file("a.json", record))

    def resolve(self, name: str) -> Output:
        """Settle a request."""
        return self.line("attention-resolve", *self.whose, "--attention-id", name, "--source-generation", "3")

    def listed(self) -> Output:
        """List the requests."""
        return self.line("attention-list", *self.whose, "--include-resolved", "--json")


@pytest.fixture
def asker(line: Line, server: Running, mine: str) -> Asker:
    return Asker(line, server, mine)


@pytest.fixture
def line(tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(tmp_path_factory.mktemp("attention"))


def test_a_token_of_the_repository_asks_lists_and_settles(asker: Asker) -> None:
    asker.token("all", reads=[asker.prefix], writes=[asker.prefix])
    for name in ("a-2", "a-1"):
        assert asker.upsert(name).exit == 0
    assert asker.resolve("a-1").exit == 0
    listed = json.loads(asker.listed().stdout)
    assert [(record["id"], record["status"]) for record in listed["records"]] == [("a-1", "resolved"), ("a-2", "open")]


def test_a_token_of_less_is_told(asker: Asker) -> None:
    asker.token("all", reads=[asker.prefix], writes=[asker.prefix])
    assert asker.upsert("a-1").exit == 0
    one = f"{asker.prefix}/a-1.json"
    asker.token("one", reads=[one], writes=[one])
    assert asker.upsert("a-1").exit == 0
    output = asker.listed()
    filtered = ["attention list is filtered and incomplete for the scoped token"]
    assert (output.exit, output.stdout, output.stderr) == (2, b"", filtered)
    asker.token("reader", reads=["attention"], writes=["claims"])
    assert asker.listed().exit == 0
    output = asker.resolve("a-1")
    assert (output.exit, output.stderr) == (2, [f"http backend write {one} {DENIED}"])
    asker.token("none", reads=["claims"], writes=["claims"])
    output = asker.listed()
    assert (output.exit, output.stderr) == (2, [f"http backend list {asker.prefix} {DENIED}"])
