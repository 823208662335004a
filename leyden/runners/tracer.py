"""What an attempt's spans are gathered in, and who puts them there.

``recording`` opens a recorder for one attempt; whatever runs inside it (its tasks and threads too) adds to that one alone. A recorder takes
a span as it is at that moment, whatever an agent changes afterwards, and hands it on: a runner's outbox sends it while the attempt still
runs.
"""

from __future__ import annotations

import contextvars
import secrets
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from leyden.record import CACHE_STRINGS, new_id
from leyden.server.codec import without_surrogates
from leyden.types import Rollout, Span

MAX_TEXT = 1000  # characters of what stands for a value that is not JSON
MAX_DEPTH = 100  # of values in one another
MAX_SPANS = 10_000  # of one attempt; an agent that makes more is not worth the room
LEFT_OUT = "leyden.spans_left_out"  # a span that says how many are missing, and why the first one is
ROOT = "rollout"

_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("leyden_recorder", default=None)
_place: contextvars.ContextVar[Place | None] = contextvars.ContextVar("leyden_place", default=None)


class Ended(NamedTuple):
    """A span that nobody can change any more, and that is yet to be read: whoever sends it has the time."""

    read: Callable[[], Mapping[str, Any]]  # its fields
    size: int  # bytes of its texts: what it counts for meanwhile


Item = bytes | Ended
"""A span, as JSON or on the way to it."""


class Place(NamedTuple):
    """A span that has begun, as the one that others begin in."""

    trace_id: str
    span_id: str


class Recorder:
    """The spans of one attempt, in the order they ended; any thread may add.

    ``sink`` takes each, and answers why it does not, if so. ``keep``: they stay here too, for whoever reads ``spans``.
    """

    def __init__(self, sink: Callable[[Item], str | None] | None = None, keep: bool = True) -> None:
        self.trace_id = new_id(32)
        self.root_id = secrets.token_hex(8)
        self.taken = 0
        self.gathers = False  # what the agent's libraries trace, too
        self.left_out = LeftOut()
        self._sink = sink
        self._kept: list[Item] | None = [] if keep else None
        self._open: set[Hashable] = set()  # keys of ``_owners``; nothing comes in any more once ``_over``
        self._over = False
        self._begun_ns = time.time_ns()

    @property
    def spans(self) -> list[Span]:
        """Those that were kept here."""
        return [Span.model_validate_json(line_of(item)) for item in self._kept or ()]

    def add(self, span: Span) -> None:
        self.take(span.model_dump(exclude_defaults=True))

    def take(self, record: Mapping[str, Any]) -> None:
        """Add a span, given as a ``Span``'s fields, as they are now."""
        if self._has_room():
            self._hand_on(json_of(record))

    def take_ended(self, span: Ended) -> None:
        """Add a span whose fields are read later, in another thread."""
        if self._has_room():
            self._hand_on(span)

    def _has_room(self) -> bool:
        if self.taken >= MAX_SPANS:
            self.left_out.add(f"an attempt keeps {MAX_SPANS} spans")
            return False
        self.taken += 1
        return True

    def _hand_on(self, item: Item) -> None:
        if self._kept is not None:
            self._kept.append(item)
        if self._sink is not None and (refusal := self._sink(item)) is not None:
            self.left_out.add(refusal)

    def note(self, name: str, attributes: Mapping[str, Any], error: str | None = None) -> Span:
        """Add a span of no length: something that was said, not something that lasted."""
        now = time.time_ns()
        trace_id, parent_id = current_place() or (self.trace_id, None)
        span = Span.model_construct(
            trace_id=trace_id, parent_id=parent_id, span_id=secrets.token_hex(8), name=name, start_ns=now, end_ns=now,
            attributes=dict(attributes), status="unset" if error is None else "error", status_message=error,
        )  # fmt: skip
        self.add(span)
        return span

    def end(self, attributes: Mapping[str, Any], error: str | None) -> None:
        """The attempt is over. Its root span is added if there is any other; whatever has not ended by now never counts."""
        with _owners_lock:
            for key in self._open:
                _owners.pop(key, None)
            unended = len(self._open)
            self._open.clear()
            self._over = True
        if unended:
            self.left_out.add("it had not ended when its attempt had", unended)
        if self.taken:
            self._hand_on(json_of({
                "trace_id": self.trace_id, "span_id": self.root_id, "name": ROOT, "start_ns": self._begun_ns, "end_ns": time.time_ns(),
                "status": "unset" if error is None else "error", "status_message": error, "attributes": dict(attributes),
            }))  # fmt: skip


def line_of(item: Item) -> bytes:
    """A span as JSON."""
    return item if isinstance(item, bytes) else json_of(item.read())


def json_of(value: Any) -> bytes:
    """``value`` as JSON; of what JSON has no form for, its text."""
    try:
        return to_json(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_text)
    except ValueError:  # somewhere in it is half a character (a lone surrogate), or a circle
        return to_json(without_surrogates(jsonable(value)), inf_nan_mode="constants")


def jsonable(value: Any, around: tuple[int, ...] = ()) -> Any:
    """``value`` as it is now, in JSON's own types; of what is none of them, and of what contains itself, its text.

    An iterator is left as it is: what was read of it here, the agent would miss.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if id(value) in around or len(around) == MAX_DEPTH or isinstance(value, Iterator):
        return _text(value)
    inside = (*around, id(value))
    if isinstance(value, dict):
        return {name if isinstance(name, str) else str(name): jsonable(item, inside) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item, inside) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name, None), inside) for field in fields(value)}
    try:
        return from_json(to_json(value, inf_nan_mode="constants", bytes_mode="base64", fallback=_text), cache_strings=CACHE_STRINGS)
    except ValueError:
        return _text(value)


def _text(value: Any) -> str:
    try:
        return repr(value)[:MAX_TEXT]
    except Exception:  # its class may be anybody's
        return f"<{type(value).__name__}>"


class LeftOut:
    """Spans that are not stored: how many, and why the first one is not. Any thread may add."""

    def __init__(self) -> None:
        self.n = 0
        self.reason = ""
        self._lock = threading.Lock()

    def add(self, reason: str, n: int = 1) -> None:
        with self._lock:
            self.n += n
            self.reason = self.reason or reason[:500]


def current_recorder() -> Recorder | None:
    """The running attempt's; None outside one."""
    return _recorder.get()


def gathering_recorder() -> Recorder | None:
    """The running attempt's, if its tracer gathers what libraries trace."""
    recorder = _recorder.get()
    return recorder if recorder is not None and recorder.gathers else None


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


# -- whose a span is, is known where it begins; where it ends may be another thread ---------------------------------------------

NOBODY: tuple[None, None] = (None, None)

_owners: dict[Hashable, tuple[Recorder, Any]] = {}
_owners_lock = threading.Lock()


def begun(key: Hashable, owner: Recorder, about: Any = None) -> None:
    """A span named ``key`` among all that are open has begun, and is ``owner``'s. ``about``: what its tracer has to know at its end."""
    with _owners_lock:
        if not owner._over:  # else it would stay for ever, if it does not end
            _owners[key] = owner, about
            owner._open.add(key)


def owner_of(key: Hashable) -> Recorder | None:
    """Whose the open span is."""
    owner, _ = _owners.get(key, NOBODY)
    return owner


def about(key: Hashable) -> Any:
    """What was said of the open span when it began."""
    return _owners.get(key, NOBODY)[1]


def ended(key: Hashable) -> tuple[Recorder | None, Any]:
    """Whose it was, and what was said of it. Nobody's if its attempt has ended before it."""
    with _owners_lock:
        owner, about = _owners.pop(key, NOBODY)
        if owner is not None:
            owner._open.discard(key)
        return owner, about


# -- what a span begins in ------------------------------------------------------------------------------------------------------


def current_place() -> Place | None:
    """The innermost span that is open here, whichever tracer's it is."""
    outer = outer_place()
    sdk = sys.modules.get("leyden.runners.openai_agents")
    inner = sdk.place_in(outer) if sdk is not None else None
    return inner or outer


def outer_place() -> Place | None:
    """The same without the OpenAI Agents SDK's, which no other tracer knows of: OpenTelemetry's span, or an operation of ours."""
    otel = sys.modules.get("leyden.runners.otel")
    return (otel.current_place() if otel is not None else None) or _place.get()


@contextmanager
def inside(place: Place) -> Iterator[None]:
    """What begins in this block begins in ``place``, OpenTelemetry's spans too."""
    token = _place.set(place)
    otel = sys.modules.get("leyden.runners.otel")
    try:
        with otel.inside(place) if otel is not None else nullcontext():
            yield
    finally:
        _place.reset(token)


class Tracer:
    """Gathers spans that the agent's libraries make. This one gathers none: what is said through a ``Recorder`` is kept all the same."""

    def trace(self, rollout: Rollout) -> AbstractContextManager[None]:
        """Around one attempt; the recorder is open. Concurrent ones do not mix."""
        return nullcontext()


class AgentTracer(Tracer):
    """Keeps what the agent's libraries trace by themselves: every span made with the OpenTelemetry API inside an attempt, if its SDK is
    installed, and the traces of the OpenAI Agents SDK, if the agent uses it. All of an attempt is one trace, under a span ``rollout``.

    It joins the process's tracer provider (and brings one where there is none) beside whatever else listens. A span that leaves its
    context (a thread without it) belongs to no attempt, and is not kept.
    """

    def trace(self, rollout: Rollout) -> AbstractContextManager[None]:
        from leyden.runners import openai_agents

        openai_agents.join()
        if _has_otel():
            from leyden.runners import otel

            otel.join()
        return _rooted(rollout)


class OtelTracer(AgentTracer):
    """``AgentTracer``, where OpenTelemetry's SDK must be there. Raises ``MissingExtra`` without it."""

    def __init__(self) -> None:
        import leyden.runners.otel  # noqa: F401  here, where what is missing can still be told, and not in the middle of each attempt


@cache
def _has_otel() -> bool:
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None


@contextmanager
def _rooted(rollout: Rollout) -> Iterator[None]:
    recorder = current_recorder()
    if recorder is None:
        yield
        return
    error: str | None = None
    recorder.gathers = True
    try:
        with inside(Place(recorder.trace_id, recorder.root_id)):
            yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        recorder.end({"leyden.rollout_id": rollout.id, "leyden.attempt": rollout.attempt}, error)
