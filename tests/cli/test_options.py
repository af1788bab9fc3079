"""The grammar of options: how words are read, and which are refused."""

import os

import pytest

from agentcoord.cli.options import OPTIONS, Words, asks_for_stack, options_of, read_words
from agentcoord.errors import StackUsageError, UsageError


def read(command: str, *words: str) -> Words:
    return read_words(command, words)


def raw(data: bytes) -> str:
    """Spell an argument as Python receives it from the system."""
    return os.fsdecode(data)


@pytest.mark.parametrize(
    ("words", "values", "positionals"),
    [
        (["--repo", "o/r"], {"repo": "o/r"}, []),
        (["--repo=o/r"], {"repo": "o/r"}, []),
        (["--repo="], {"repo": ""}, []),
        (["--repo=a=b"], {"repo": "a=b"}, []),
        (["--repo", ""], {"repo": ""}, []),
        (["--repo", "--target"], {"repo": "--target"}, []),
        (["--repo", "-x"], {"repo": "-x"}, []),
        (["--repo", "--"], {"repo": "--"}, []),
        (["--repo", "a", "--repo", "b"], {"repo": "b"}, []),
        (["one", "--repo", "a", "two"], {"repo": "a"}, ["one", "two"]),
        (["--repo", "a", "--", "--target", "b", "-h"], {"repo": "a"}, ["--target", "b", "-h"]),
        (["--", "--"], {}, ["--"]),
        (["-"], {}, ["-"]),
        (["--json"], {"json": True}, []),
        (["--js"], {"json": True}, []),
        (["--agent", "a"], {"agent_id": "a"}, []),
        (["--bra=x"], {"branch": "x"}, []),
        (["--rep", "r"], {"repo": "r"}, []),
        (["--ref", "r"], {"ref": "r"}, []),
        (["--synthetic"], {"synthetic": True}, []),
        (["--synthetic-", "smoke"], {"synthetic_kind": "smoke"}, []),
        (["--state", "x"], {"state_root": "x"}, []),
        (["--statu", "x"], {"status": "x"}, None),
        (["--status", "x"], {"status": "x"}, []),
        (["--launch-prompt", "-"], {"launch_prompt": "-"}, []),
    ],
)
def test_words_are_read(words: list[str], values: dict[str, object], positionals: list[str] | None) -> None:
    if positionals is None:  # `--status` and `--status-state-root` share this much
        with pytest.raises(UsageError, match="ambiguous option: --statu"):
            read("claim", *words)
        return
    found = read("claim", *words)
    assert (found.values, found.positionals, found.help) == (values, positionals, False)


@pytest.mark.parametrize(
    ("command", "words", "fault"),
    [
        ("claim", ["--bogus"], "invalid option: --bogus"),
        ("claim", ["--bogus=x"], "invalid option: --bogus"),
        ("claim", ["-x"], "invalid option: -x"),
        ("claim", ["-hx"], "invalid option: -hx"),
        ("claim", ["--sta"], "ambiguous option: --sta"),
        ("claim", ["--re"], "ambiguous option: --re"),
        ("claim", ["--h"], "ambiguous option: --h"),
        ("claim", ["--=x"], "ambiguous option: --"),
        ("claim", ["--REPO", "x"], "invalid option: --REPO"),
        ("claim", ["--repo"], "missing argument: --repo"),
        ("claim", ["--rep"], "missing argument: --repo"),
        ("claim", ["--ttl"], "missing argument: --ttl"),
        ("claim", ["--json=yes"], "needless argument: --json=yes"),
        ("claim", ["--json="], "needless argument: --json="),
        ("claim", ["--synthetic=true"], "needless argument: --synthetic=true"),
        ("claim", ["--ttl", "abc"], "invalid argument: --ttl abc"),
        ("claim", ["--handoff-to", "x"], "invalid option: --handoff-to"),
        ("claim", ["--include-archived"], "invalid option: --include-archived"),
        ("status", ["--dry-run"], "invalid option: --dry-run"),
        ("config", ["--policy", "required"], "invalid option: --policy"),
        ("config set", ["--policy", "sometimes"], "invalid argument: --policy sometimes"),
        ("config set", ["--policy", ""], "invalid argument: --policy "),
    ],
)
def test_words_that_mean_nothing_are_refused(command: str, words: list[str], fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(command, *words)
    assert str(caught.value) == fault
    assert not isinstance(caught.value, StackUsageError)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("7", 7),
        ("+7", 7),
        ("-7", -7),
        ("1_000", 1000),
        ("010", 8),
        ("-010", -8),
        ("0_10", None),
        ("00", 0),
        ("0x1f", 31),
        ("0X1F", 31),
        ("-0xff_ff", -65535),
        ("0b101", 5),
        ("0B1_0", 2),
        ("9" * 30, int("9" * 30)),
        ("0x" + "f" * 5000, None),
        ("08", None),
        ("0x", None),
        ("0b2", None),
        ("0o17", None),
        ("1__0", None),
        ("_1", None),
        ("1_", None),
        ("1e3", None),
        ("1.0", None),
        ("", None),
        (" 7", None),
        ("7\n", None),
        ("--7", None),
        ("\uff17", None),
        ("\u0667", None),
        ("9" * 5000, None),
    ],
)
def test_integers_are_read_as_ruby_reads_them(text: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(UsageError) as caught:
            read("claim", f"--ttl={text}")
        assert str(caught.value) == f"invalid argument: --ttl {text}"
    else:
        assert read("claim", f"--ttl={text}").values == {"ttl": number}


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["--hel"], ["a", "--repo", "x", "-h", "--bogus"]])
def test_help_ends_the_reading(words: list[str]) -> None:
    assert read("claim", *words).help


@pytest.mark.parametrize("words", [["--repo", "-h"], ["--message", "--help"], ["--", "-h"], ["--repo=-h"]])
def test_help_as_a_value_is_a_value(words: list[str]) -> None:
    assert not read("claim", *words).help


@pytest.mark.parametrize(
    "words",
    [
        ["--agent-id", raw(b"bad\xff")],
        [raw(b"--agent-id=bad\xff")],
        [raw(b"--bad\xff")],
        [raw(b"-\xff")],
        [raw(b"bad\xff")],
        ["--", raw(b"bad\xff")],
        [raw(b"--json=\xff")],
        ["--ttl", raw(b"\xff7")],
        ["--api-url", raw(b"http://\xff")],
    ],
)
def test_arguments_are_utf8(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        read("claim", *words)
    said = str(caught.value)
    assert said.startswith("command-line argument must be valid UTF-8: ")
    assert "�" in said
    said.encode()


def test_paths_may_be_any_bytes() -> None:
    paths = [option for option in OPTIONS if option.kind == "path"]
    assert {option.name for option in paths} == {
        *("state-root", "file", "launch-prompt", "record-json", "install-dir", "status-state-root", "profile")
    }
    for option in paths:
        command = option.commands[0] if option.commands else "claim"
        name = raw(b"/tmp/\xff\xfe")
        assert read(command, f"--{option.name}", name).values[option.field] == name


def test_every_option_is_found_by_its_shortest_own_beginning() -> None:
    """Whatever abbreviation is not a beginning of two names means the one it begins."""
    for command in ("claim", "release", "doctor", "gc", "status", "log", "attention-list", "config set"):
        reference = [option.name for option in options_of(command) if not option.ours]
        for name in reference:
            for length in range(1, len(name)):
                short = name[:length]
                also = [other for other in [*reference, "help"] if other.startswith(short)]
                if len(also) == 1:
                    words = read(command, f"--{short}", *_value_for(command, name))
                    assert list(words.values) == [name.replace("-", "_")]


def _value_for(command: str, name: str) -> list[str]:
    [option] = [option for option in options_of(command) if option.name == name]
    if option.kind == "flag":
        return []
    return ["7"] if option.kind == "integer" else ["required"]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--stack-json"], True),
        (["--stac"], True),
        (["--deep", "--stack"], True),
        (["--stack-jsonx"], False),
        (["--", "--stack-json"], False),
        (["--sta"], False),
        ([], False),
    ],
)
def test_the_stack_report_is_known_by_its_flag(words: list[str], asked: bool) -> None:
    assert asks_for_stack(words) is asked


@pytest.mark.parametrize("words", [["--bogus"], ["--ttl", "x"], ["--repo"], [raw(b"\xff")], ["--json=1"]])
def test_faults_beside_the_stack_flag_have_their_own_status(words: list[str]) -> None:
    with pytest.raises(StackUsageError):
        read("doctor", "--stack-json", *words)
