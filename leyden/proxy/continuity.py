"""How a prompt follows what its attempt sampled before: by its messages first, then by its ids."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from leyden.audit import Continuity
from leyden.proxy.trail import Message, Place, Trail, Turn, common

EXCERPT = 60  # characters of what a message said
_LATEST = 16  # calls that a request without messages is compared with


@dataclass(frozen=True)
class Verdict:
    """``expected`` and ``found``: of a realigned one, the ids before the first difference, the one there, and those after."""

    continuity: Continuity
    follows: Turn | None = None
    differs_at: int | None = None
    expected: tuple[array[int], ...] = ()
    found: tuple[array[int], ...] = ()
    changed: str | None = None


BEFORE, AFTER = 8, 24  # ids around a difference that are told


def judge(place: Place, prompt_ids: Sequence[int], trail: Trail) -> Verdict:
    if place.messages and place.forked is None and place.goes_on is None:
        return Verdict(Continuity.NEW)
    read = place.ids(prompt_ids)
    if not place.messages:
        return _by_ids(read, trail)
    if place.forked is not None:
        turn = place.forked
        at = common(turn.ids(), read)
        return Verdict(Continuity.FORKED, turn, at, changed=what_changed(turn, place))
    assert place.goes_on is not None
    # Answers that read the same may have been sampled in other ids: n > 1, or the same question twice.
    alike = place.goes_on.answered.answered[::-1]
    found = [(turn, ids := turn.ids(), common(ids, read)) for turn in alike]
    for turn, ids, at in found:
        if at == len(ids):
            return Verdict(Continuity.CLEAN, turn)
    turn, ids, at = max(found, key=lambda item: item[2])
    return Verdict(Continuity.REALIGNED, turn, at, _around_id(ids, at), _around_id(read, at))


def _around_id(ids: array[int], at: int) -> tuple[array[int], ...]:
    return ids[max(0, at - BEFORE) : at], ids[at : at + 1], ids[at + 1 : at + AFTER]


def _by_ids(read: array[int], trail: Trail) -> Verdict:
    """Of a completion, whose prompt is one text."""
    best: Turn | None = None
    size = 0
    for turn in list(trail.turns.values())[-_LATEST:]:
        ids = turn.ids()
        if size < len(ids) <= len(read) and read[: len(ids)] == ids:
            best, size = turn, len(ids)
    return Verdict(Continuity.NEW) if best is None else Verdict(Continuity.CLEAN, best)


def what_changed(turn: Turn, place: Place) -> str:
    """The first message of the request that is not as ``turn`` knew it, and how it differs."""
    if (was := turn.asked.root.message) != place.preamble:
        names = sorted(name for name in {*was, *place.preamble} if was.get(name) != place.preamble.get(name))
        return f"{' and '.join(names)} changed"
    known = turn.answered.path()
    for at, message in enumerate(known):
        if at >= len(place.messages):
            return f"message {at + 1} ({message.get('role')}) and all after it were left out"
        if place.messages[at] != message:
            return _how(at, known, place.messages)
    return "nothing that is known of it"  # a caller that asks of a request that goes on with the turn


def _how(at: int, known: Sequence[Message], now: Sequence[Message]) -> str:
    old, new = known[at], now[at]
    name = f"message {at + 1} ({old.get('role')})"
    if new in known[at + 1 :]:
        n = known[at + 1 :].index(new) + 1
        return f"{name} was left out" if n == 1 else f"{name} and the {n - 1} after it were left out"
    if old in now[at + 1 :]:
        n = now[at + 1 :].index(old) + 1
        return f"{n} message{'s' if n > 1 else ''} put before {name}: {_excerpt(new.get('content'))}"
    if old.get("role") != new.get("role"):
        if at == len(known) - 1:
            return f"{name}, the answer, was left out: {new.get('role')} follows instead"
        return f"{name} became {new.get('role')}: {_excerpt(new.get('content'))}"
    return f"{name}: {_difference(old, new)}"


def _difference(old: Message, new: Message) -> str:
    for key in ("tool_calls", "content", *sorted({*old, *new} - {"tool_calls", "content"})):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        if key == "tool_calls":
            return _tool_calls(was or [], now or [])
        if isinstance(was, str) and isinstance(now, str):
            return f"{key} changed at character {_first(was, now) + 1}: {_around(was, now)}"
        return f"{key} changed: {_excerpt(was)} → {_excerpt(now)}"
    return "unchanged"


def _tool_calls(was: list[Message], now: list[Message]) -> str:
    if len(was) != len(now):
        return f"tool calls: {len(was)} became {len(now)}"
    for n, (old, new) in enumerate(zip(was, now, strict=True), 1):
        for key in ("name", "arguments", "id"):
            if isinstance(old, dict) and isinstance(new, dict) and old.get(key) != new.get(key):
                return f"{key} of tool call {n} changed: {_excerpt(old.get(key))} → {_excerpt(new.get(key))}"
    return "tool calls changed"


def _first(was: str, now: str) -> int:
    return next((at for at, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), min(len(was), len(now)))


def _around(was: str, now: str) -> str:
    start = max(0, _first(was, now) - 10)
    return f"{_excerpt(was[start:])} → {_excerpt(now[start:])}"


def _excerpt(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
