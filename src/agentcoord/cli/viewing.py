"""The live view while somebody looks at it: what a key does, which rows are shown, and when the next frame is due."""

import signal
from collections.abc import Iterable, Mapping
from typing import Literal

from agentcoord.cli.output import Invocation
from agentcoord.cli.render.live import TABLES, View, console_for, frame
from agentcoord.cli.render.words import LOST, OVER, is_over, listed, ranked
from agentcoord.cli.screen import ESCAPE_SECONDS, Screen
from agentcoord.cli.signalling import ENDING
from agentcoord.cli.watched import SECTIONS, Filter, Section, liveness_of, needs
from agentcoord.cli.watching import Happened, Watch
from agentcoord.protocol.claims import RELEASED
from agentcoord.protocol.documents import Document

MOST_LEASE_EVENTS = 100
"""What the daemon told of its leases is remembered so far."""
_LONGEST_FILTER = 200
_FILTERS: Mapping[str, Literal["repo", "batch", "machine"]] = {"r": "repo", "b": "batch", "m": "machine"}


class Viewer:
    """One person's look at what is watched."""

    def __init__(self, watch: Watch, wanted: Filter, screen: Screen, invocation: Invocation) -> None:
        self._watch, self._wanted, self._screen = watch, wanted, screen
        self._console = console_for(invocation.terminal, invocation.env)
        self._view = View(backend=watch.name)
        self._leases: list[Document] = []
        self._ended = False

    def run(self) -> int:
        """Look until it is enough. Gives the exit status."""
        watch, screen = self._watch, self._screen
        stale = True
        try:
            while not self._ended:
                if stale:
                    self._arrange()
                view, now = self._view, watch.now()
                view.told, view.source, view.trouble, view.read = watch.told, watch.source, watch.trouble, watch.read
                screen.show(frame(view, now, screen.size(), self._console))
                pause = min(watch.sleep(), 1.0 - now.microsecond / 1e6)  # ages are of whole seconds
                if screen.undecided:
                    pause = min(pause, ESCAPE_SECONDS)
                for number in watch.signals.wait(pause, [*screen.descriptors, *watch.descriptors]):
                    if number in ENDING:
                        return 128 + number
                    self._heed(number)
                stale = self._press(screen.keys())
                stale |= self._take(watch.step())
            return 0
        finally:
            watch.close()

    def _heed(self, number: signal.Signals) -> None:
        match number:
            case signal.SIGTSTP:
                self._screen.pause()
            case signal.SIGCONT:
                self._screen.resume()
            case _:  # another size
                self._screen.redraw()

    def _take(self, happened: Happened) -> bool:
        for told in happened.leases:
            data = told["data"]
            self._leases.append({"type": told["topic"], "message": data.get("why")} | data)
        del self._leases[:-MOST_LEASE_EVENTS]
        return happened.changed or bool(happened.leases)

    # Keys ------------------------------------------------------------------------------------------

    def _press(self, keys: Iterable[str]) -> bool:
        """Do what keys ask for, and tell whether other rows are wanted now."""
        before = self._wanted
        for key in keys:
            if key == "quit" or (key == "q" and self._view.editing is None):
                self._ended = True
                return False
            if key == "redraw":
                self._screen.redraw()
            elif self._view.editing is not None:
                self._edit(self._view.editing, key)
            elif key in _FILTERS:
                self._view.editing = _FILTERS[key]
                self._filter(_FILTERS[key], "")
            elif key == "escape":
                self._wanted = Filter()
            else:
                self._move(key)
        return self._wanted != before

    def _edit(self, name: str, key: str) -> None:
        typed = self._wanted.given.get(name, "")
        match key:
            case "enter":
                self._view.editing = None
            case "escape":
                self._view.editing = None
                self._filter(name, "")
            case "erase":
                self._filter(name, typed[:-1])
            case "erase-all":
                self._filter(name, "")
            case _ if len(key) == 1:
                self._filter(name, (typed + key)[:_LONGEST_FILTER])
            case _:
                pass

    def _filter(self, name: str, value: str) -> None:
        """Filter by what was typed, of which every name is taken that holds it."""
        fields = {"repo": self._wanted.repo, "batch": self._wanted.batch, "machine": self._wanted.machine}
        self._wanted = Filter(**(fields | {name: value or None}), loose=self._wanted.loose | {name})

    def _move(self, key: str) -> None:
        view = self._view
        at, page = view.offsets.get(view.focus, 0), max(view.heights.get(view.focus, 0) - 1, 1)
        steps = {"up": -1, "down": 1, "k": -1, "j": 1, "page-up": -page, "page-down": page, " ": page}
        if key in steps:
            view.offsets[view.focus] = max(0, at + steps[key])  # a frame knows where the end is
        elif key == "home":
            view.offsets[view.focus] = 0
        elif key == "end":
            view.offsets[view.focus] = len(view.rows.get(view.focus, ()))
        elif key in ("next", "back"):
            step = 1 if key == "next" else -1
            view.focus = TABLES[(TABLES.index(view.focus) + step) % len(TABLES)]

    # Rows ------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Choose and sort the rows of all tables."""
        view, known, wanted = self._view, self._watch.known, self._wanted
        holders, sure = known.holders, known.all_heard
        every: dict[Section, list[Document]] = {section: list(known.rows[section].values()) for section in SECTIONS}
        taken: dict[Section, list[Document]] = every
        if wanted.given:
            taken = {name: [row for row in every[name] if wanted.takes(name, row, holders)] for name in SECTIONS}
        told = [row for row in self._leases if wanted.takes("events", row, holders)]
        needed = needs(taken, holders, all_heard=sure)
        view.rows = {
            "needs": needed,
            "claims": sorted(taken["claims"], key=lambda row: _claim_order(row, holders)),
            "lanes": sorted(taken["lanes"], key=_lane_order),
            "trail": sorted([*taken["events"], *told], key=lambda row: str(row.get("at")), reverse=True),
        }
        view.totals = {
            "needs": len(needs(every, holders, all_heard=sure)) if wanted.given else len(needed),
            "claims": len(every["claims"]),
            "lanes": len(every["lanes"]),
            "trail": len(every["events"]) + len(self._leases),
        }
        view.holders, view.filters = holders, wanted.given
        view.leases = {
            tuple(str(row.get(name)) for name in ("agent_id", "repo", "target")): row for row in self._watch.leases
        }


def _claim_order(row: Document, holders: Mapping[str, Document]) -> tuple[int, str]:
    """Sort the worst first, and what ends soonest first among these; what is released comes last."""
    rank = OVER if row.get("status") == RELEASED else ranked(liveness_of(row.get("agent_id"), holders))
    return rank, str(row.get("expires_at"))


def _lane_order(row: Document) -> int:
    if is_over(row):
        return OVER
    return LOST if listed(row.get("blocked_on")) else ranked(row.get("liveness"))
