"""The grammar of the user file: assignments a shell could read, read without a shell.

A value is text: `$`, backticks and `;` mean nothing here and nothing is ever run. A line that is not
plainly one assignment of one word is refused rather than guessed at.
"""

import re
from collections.abc import Iterator

from agentcoord.errors import ConfigError
from agentcoord.settings.environment import (
    API_TOKEN,
    API_URL,
    BACKEND,
    LOCAL,
    MACHINE_ID,
    POLICY,
    REF,
    STATE_ROOT,
    STATUS_STATE_ROOT,
    WHITESPACE,
    is_set,
)

ALLOWED = (API_URL, API_TOKEN, MACHINE_ID, BACKEND, REF, STATE_ROOT, STATUS_STATE_ROOT, LOCAL, POLICY)
"""The keys of the user file, in the order in which it is written (spec: cli §2.4)."""

POLICIES = ("required", "optional", "disabled")

_SPACE = f"[{WHITESPACE}]"
_ASSIGNMENT = re.compile(rf"{_SPACE}*(?:export{_SPACE}+)?([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_URL_ASSIGNMENT = re.compile(rf"{_SPACE}*(?:export{_SPACE}+)?{API_URL}=(.*)", re.DOTALL)
_UNSAFE_BARE = re.compile(r"[^A-Za-z0-9_.,:+/@-]")
_ESCAPED_IN_DOUBLE_QUOTES = frozenset('$`"\\')
_ENDS_A_SHELL_WORD = frozenset(WHITESPACE + ";&|<>()")


def parse(text: str, source: str) -> dict[str, str]:
    """Read the assignments of a user file; `source` is its path, for the messages.

    Raises ConfigError for anything that is not plainly one allowed value (spec: cli §2.4).
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip(WHITESPACE)
        if not bare or bare.startswith("#"):
            continue
        found = _ASSIGNMENT.fullmatch(line)
        if found is None:
            raise ConfigError(f"unsafe user config syntax at {source}:{number}", finding="user_file.syntax")
        key, written = found.groups()
        if not key.startswith("AGENT_COORD_"):
            continue
        if key not in ALLOWED:
            raise ConfigError(
                f"unsupported agent-coord key at {source}:{number}: {key}",
                finding="user_file.key",  # without a mend: an edited copy of the file would be one more of its token
            )
        if key in values:
            raise ConfigError(f"duplicate user config key at {source}:{number}: {key}", finding="user_file.duplicate")
        values[key] = _value(key, written, f"{source}:{number}")
    _require_policy(values.get(POLICY), f"{source}:{POLICY}")
    for key in (STATE_ROOT, STATUS_STATE_ROOT):
        if is_set(value := values.get(key, "")) and not value.startswith("/"):
            raise ConfigError(f"{key} in {source} must be an absolute path", finding="user_file.value")
    return values


def policy(value: str, source: str) -> str:
    """Give the policy back if it is one.

    Raises ConfigError naming the source otherwise (spec: cli §2.4).
    """
    if value not in POLICIES:
        raise ConfigError(
            f"invalid coordination policy in {source}: expected {', '.join(POLICIES)}", finding="policy.invalid"
        )
    return value


def quote(value: str) -> str:
    """Write a value so that a shell and `parse` both read it back.

    Raises ValueError for a value that no single line can hold (spec: cli §13, config set).
    """
    if "\n" in value or "\0" in value:
        raise ValueError("a saved value must be one line")
    return _UNSAFE_BARE.sub(lambda found: "\\" + found.group(), value) if value else "''"


def configures_api_url(text: str) -> bool:
    """Tell whether a shell that sources this text could end up with a fleet URL (spec: cli §2.8)."""
    assigned = (_URL_ASSIGNMENT.fullmatch(line) for line in text.split("\n"))
    return any(is_set(_as_a_shell_would(found.group(1))) for found in assigned if found)


def _value(key: str, written: str, place: str) -> str:
    words = _words(written)
    if words is None:
        raise ConfigError(f"unsafe user config value at {place}", finding="user_file.value")
    if len(words) > 1:
        raise ConfigError(f"ambiguous user config value at {place}", finding="user_file.value")
    value = words[0] if words else ""
    if key == API_TOKEN and ("\r" in value or "\0" in value):
        raise ConfigError(f"{API_TOKEN} in {place} must be one line", finding="user_file.value")
    if "\0" in value:  # no environment and no path can carry it
        raise ConfigError(f"unsafe user config value at {place}", finding="user_file.value")
    return value


def _require_policy(value: str | None, source: str) -> None:
    if value is not None and is_set(value):
        policy(value, source)


def _words(written: str) -> list[str] | None:
    """Split as a shell splits words, None when a quote stays open; a comment needs unquoted whitespace before it."""
    words: list[str] = []
    word: list[str] | None = None
    after_space = False
    rest = iter(written)
    for char in rest:
        if char in WHITESPACE:
            if word is not None:
                words.append("".join(word))
            word, after_space = None, True
            continue
        if char == "#" and after_space:
            break
        literal, closed = _literal(char, rest)
        if not closed:
            return None
        word = [] if word is None else word
        word.append(literal)
        after_space = False
    if word is not None:
        words.append("".join(word))
    return words


def _as_a_shell_would(written: str) -> str:
    """Give what is assigned when the line runs; a quote still open holds the rest of the line."""
    value: list[str] = []
    rest = iter(written)
    for char in rest:
        if char in _ENDS_A_SHELL_WORD:
            break
        value.append(_literal(char, rest)[0])
    return "".join(value)


def _literal(char: str, rest: Iterator[str]) -> tuple[str, bool]:
    """Give what one unquoted character begins, and whether it also ends on this line."""
    match char:
        case "'":
            return _up_to_quote("'", rest, escapes=False)
        case '"':
            return _up_to_quote('"', rest, escapes=True)
        case "\\":
            escaped = next(rest, None)
            return ("\\", False) if escaped is None else (escaped, True)  # a shell would go on with the next line
        case _:
            return char, True


def _up_to_quote(end: str, rest: Iterator[str], *, escapes: bool) -> tuple[str, bool]:
    value: list[str] = []
    for char in rest:
        if char == end:
            return "".join(value), True
        if escapes and char == "\\":
            escaped = next(rest, "")
            value.append(escaped if escaped in _ESCAPED_IN_DOUBLE_QUOTES else char + escaped)
        else:
            value.append(char)
    return "".join(value), False
