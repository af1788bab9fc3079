"""The typer commands: each turns its options into the request it stands for, and does nothing else.

A command's parameters come from the option table, so a name, a type and a help text have one home.
A command is built when it is first called and kept: building all of them costs more than most
commands do.
"""

from functools import cache
from inspect import Parameter, Signature
from typing import Annotated, Any, cast

import typer

from agentcoord.cli import requests
from agentcoord.cli.commands import BY_COMMAND
from agentcoord.cli.options import WITH_TAIL, Option, Words
from agentcoord.errors import UsageError

_BUILDERS = {
    "claim": requests.claim,
    "release": requests.release,
    "run": requests.run,
    "verify": requests.verify,
    "heartbeat": requests.heartbeat,
    "register-batch": requests.register_batch,
    "record-event": requests.record_event,
    "status": requests.status,
    "log": requests.log,
    "resume": requests.resume,
    "watch": requests.watch,
    "batch-audit": requests.batch_audit,
    "attention": requests.attention,
    "attention-upsert": requests.attention_upsert,
    "attention-resolve": requests.attention_resolve,
    "attention-get": requests.attention_get,
    "attention-list": requests.attention_list,
    "gc": requests.gc,
    "doctor": requests.doctor,
    "bootstrap": requests.bootstrap,
    "config set": requests.config_set,
    "daemon logs": requests.logs,
    "lease hold": requests.keep,
}
_POSITIONAL = "positional"
_TYPES: dict[str, Any] = {"integer": int, "flag": bool, "several": list[str]}


def request_of(words: Words) -> Any:
    """Give the request that a command's words stand for. Raises UsageError."""
    name = words.command
    arguments: list[str] = []
    for option in BY_COMMAND[name].options:
        if option.field in words.values:
            arguments += _spelled(option, words.values[option.field])
    if words.positionals:
        arguments += ["--", *words.positionals]
    try:
        return _built(name)(args=arguments, prog_name="agent-coord", standalone_mode=False)
    except Exception as error:
        # The words were read by our own grammar, so what typer still refuses is a usage error with its text.
        if hasattr(error, "format_message"):
            raise UsageError(cast("Any", error).format_message()) from error
        raise


def build_all() -> None:
    """Build every command now, for a process that will run many."""
    for name in _BUILDERS:
        _built(name)
    request_of(Words(command="status"))  # the first call of any command loads what typer puts off until then


def _spelled(option: Option, value: object) -> list[str]:
    if option.kind == "flag":
        return [f"--{option.name}"]
    several = cast("list[str]", value) if isinstance(value, list) else [value]
    return [f"--{option.name}={item}" for item in several]


@cache
def _built(name: str) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(_callback(name))
    return typer.main.get_command(app)


def _callback(name: str) -> Any:
    command, build = BY_COMMAND[name], _BUILDERS[name]

    def call(**values: Any) -> Any:
        positional = values.pop(_POSITIONAL, None)
        given = {field: value for field, value in values.items() if value is not None}
        return build(Words(command=name, values=given, positionals=[] if positional is None else [positional]))

    parameters = [
        Parameter(option.field, Parameter.KEYWORD_ONLY, default=None, annotation=_annotated(option))
        for option in command.options
    ]
    if command.positional and name not in WITH_TAIL:
        positional = Annotated[str | None, typer.Argument(metavar=command.positional)]
        parameters.append(Parameter(_POSITIONAL, Parameter.KEYWORD_ONLY, default=None, annotation=positional))
    call.__doc__ = command.summary
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    cast("Any", call).__signature__ = Signature(parameters)
    return call


def _annotated(option: Option) -> Any:
    # Both spellings of a flag are named, or typer would invent a `--no-…` for it.
    declared = typer.Option(f"--{option.name}", help=option.text, metavar=option.metavar or None)
    return Annotated[_TYPES.get(option.kind, str) | None, declared]
