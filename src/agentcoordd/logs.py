"""The daemon's log: one line an entry, fields by name, to stderr or to a file that is kept small."""

import logging
import os
import sys
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from agentcoord.files import discreet
from agentcoordd.api.dispatch import Tally, Trouble

LARGEST = 4 * 1024 * 1024
KEPT = 3
"""Files of the past that are kept beside the one that is written."""


class _Line(logging.Formatter):
    """`at=… level=… from=… message`; the journal knows the time, so it is left out there."""

    def __init__(self, *, timed: bool) -> None:
        super().__init__()
        self._timed = timed

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        said = " ".join(record.getMessage().split())
        if record.exc_info is not None and (fault := record.exc_info[1]) is not None:
            said += f" ({type(fault).__name__}: {fault}{_place(fault)})"
        line = f"level={record.levelname.lower()} from={record.name.rpartition('.')[2]} {discreet(said)}"
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
        return f"at={moment} {line}" if self._timed else line


class _Errors(logging.Handler):
    """Keeps the last errors, for `daemon.status`."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(logging.ERROR)
        self._tally = tally

    def emit(self, record: logging.LogRecord) -> None:
        self._tally.errors.append(Trouble(record.created, self.format(record)))


class _Private(RotatingFileHandler):
    """A file for its owner alone, as are those it was before."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(
            self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        return open(descriptor, "a", encoding="utf-8", errors="replace")


def begin_log(tally: Tally, path: str | None) -> None:
    """Write what is logged from now on to stderr, or to a file. Raises OSError."""
    under_journal = "JOURNAL_STREAM" in os.environ
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Line(timed=not under_journal))
    else:
        handler = _Private(path, maxBytes=LARGEST, backupCount=KEPT, delay=False)
        handler.setFormatter(_Line(timed=True))
    errors = _Errors(tally)
    errors.setFormatter(_Line(timed=False))
    logging.raiseExceptions = False  # a log that cannot be written is no reason for a traceback, nor to end
    root = logging.getLogger("agentcoordd")
    root.setLevel(logging.INFO)
    root.propagate = False
    root.handlers = [handler, errors]
    logging.getLogger("asyncio").handlers = [handler, errors]
    logging.getLogger("asyncio").propagate = False


def _place(fault: BaseException) -> str:
    trace, place = fault.__traceback__, ""
    while trace is not None:
        place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
