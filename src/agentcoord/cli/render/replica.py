"""Where an answer comes from and how old it is, for those who asked: a line, or facts beside the others."""

from itertools import chain

from agentcoord.cli.output import Output
from agentcoord.cli.render.ages import span
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.replica import Label


def facts_of_label(label: Label | None) -> Document:
    """Give what programs are told; nothing, when nobody asked."""
    return {} if label is None else label.facts()


def line_of_label(label: Label) -> str:
    """Say it to a person."""
    if label.source == "backend":
        return "from the backend, as of now"
    part = "; incomplete: the daemon's token may not see all records" if label.filtered else ""
    return f"from the replica, as of {stamp(label.as_of)}, {span(label.age)} ago{part}"


def say_label(label: Label | None, output: Output) -> None:
    """Add the line to an answer in words, if it was asked for."""
    if label is not None:
        output.answer = chain(output.answer, (f"{line_of_label(label)}\n".encode(),))
