"""What clients asked of a store and what it answered, as they saw it: the log that the database is checked against."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from leyden.errors import Busy, LeydenError, Unavailable
from leyden.server.client import StoreClient


class Outcome(StrEnum):
    OK = "ok"  # acknowledged
    REFUSED = "refused"  # the store said no: nothing may have changed
    UNKNOWN = "unknown"  # no answer: it happened, or it did not


@dataclass(frozen=True)
class Event:
    """``asked`` holds the call's arguments by name and ``answer`` the result, both as the records they were; instants are monotonic."""

    client: str
    operation: str
    asked: dict[str, Any]
    outcome: Outcome
    answer: Any
    error: str
    began: float
    ended: float


@dataclass
class History:
    """Kept in memory, and written to ``path`` for the person who has to find out what went wrong."""

    path: Path
    events: list[Event] = field(default_factory=list)
    acknowledged: int = 0  # of them
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.acknowledged += event.outcome is Outcome.OK

    def of(self, operation: str, *outcomes: Outcome) -> list[Event]:
        wanted = outcomes or (Outcome.OK,)
        return [event for event in self.events if event.operation == operation and event.outcome in wanted]

    def number(self) -> int:
        """Never the same twice in one history."""
        return next(self._numbers)

    def write(self) -> None:
        self.path.write_text("".join(json.dumps(to_jsonable_python(event)) + "\n" for event in self.events))


class Witness:
    """A client that writes down every call. ``deadline``: seconds it goes on asking; 0 makes an answer that gets lost ``UNKNOWN``."""

    def __init__(self, name: str, history: History, url: str, deadline: float) -> None:
        self.name = name
        self.history = history
        self.store = StoreClient(url, deadline)
        self._deadline = deadline

    def move_to(self, url: str) -> None:
        """The former client must be closed."""
        self.store = StoreClient(url, self._deadline)

    async def call(self, operation: str, **asked: Any) -> Event:
        """Makes the call. Never raises what the store may answer: see the event's outcome."""
        began = time.monotonic()
        outcome, answer, error = Outcome.UNKNOWN, None, ""
        try:
            answer = await getattr(self.store, operation)(**asked)
            outcome = Outcome.OK
        except (Unavailable, Busy) as failure:  # also where an earlier try of the same call was made and its answer lost
            error = failure.message
        except LeydenError as failure:
            outcome, error = Outcome.REFUSED, f"{failure.code}: {failure.message}"
        finally:  # a call that was cut off is one without an answer
            event = Event(self.name, operation, asked, outcome, answer, error, began, time.monotonic())
            self.history.add(event)
            for part in _parts(event) if operation == "end_attempts" else ():
                self.history.add(part)
        return event

    async def close(self) -> None:
        await self.store.close()


def _parts(event: Event) -> Iterator[Event]:
    """What one request says of many, as the calls that each of them stands for."""
    for number, end in enumerate(event.asked["ends"]):
        outcome = event.outcome
        if outcome is Outcome.OK and event.answer[number] is not None:
            outcome = Outcome.REFUSED
        asked = {"ref": end.ref, "rewards": end.rewards} if end.failure is None else {"ref": end.ref, "failure": end.failure}
        ending = "complete" if end.failure is None else "fail"
        for operation, about in (("add_spans", {"ref": end.ref, "spans": end.spans}), (ending, asked)):
            yield replace(event, operation=operation, asked=about, outcome=outcome, answer=None)
