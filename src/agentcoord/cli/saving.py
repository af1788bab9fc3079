"""`config set`: settings given on the command line and stdin, brought into the user file."""

import errno
import os

from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.requests import SaveRequest
from agentcoord.errors import ConfigError, UsageError
from agentcoord.settings.change import Change, content, require_api_url, require_machine_id, token_of
from agentcoord.settings.envfile import parse
from agentcoord.settings.privatewrite import rewrite_private
from agentcoord.settings.selection import Secret
from agentcoord.settings.value import Settings


async def save(asked: SaveRequest, settings: Settings, invocation: Invocation, output: Output) -> None:
    """Save what was asked for in one step. Raises UsageError, ConfigError (spec: cli §13, config set)."""
    if asked == SaveRequest():
        raise UsageError("config set requires at least one setting")
    file = settings.user_file
    if file is None:
        raise ConfigError("cannot persist user config; set XDG_CONFIG_HOME, HOME, or AGENT_COORD_ENV_FILE")
    change = Change(
        api_url=None if asked.api_url is None else require_api_url(asked.api_url),
        token=await _token(invocation) if asked.token_stdin else None,
        machine_id=None if asked.machine_id is None else require_machine_id(asked.machine_id),
        policy=asked.policy,
    )

    def changed(text: str | None) -> str:
        saved = {} if text is None else parse(text, file.path)
        return content(change.applied(saved, seen_url=settings.saved_url))

    rewrite_private(file.path, changed, explicit=file.explicit, uid=os.geteuid())
    output.say(f"updated user configuration: {file.path} ({', '.join(change.keys)})")
    if change.policy is not None:
        output.say(f"updated coordination policy in canonical config: {file.path}")


async def _token(invocation: Invocation) -> Secret:
    try:
        return token_of(await invocation.stdin())
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError("--token-stdin input is too large") from None
        raise ConfigError(f"--token-stdin unreadable: {error.strerror or error}") from error
