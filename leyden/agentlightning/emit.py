"""Things an agent says while it runs: rewards and notes, each kept as a span of its attempt under the recipe's names.

Outside a rollout a note is kept nowhere, and a reward is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from leyden.agentlightning.spans import REWARD, reward_attributes
from leyden.errors import UsageError
from leyden.runners.emit import exception_attributes, flat, note
from leyden.runners.operation import operation as operation
from leyden.runners.rewards import Rewards, add_reward
from leyden.runners.tracer import Recorder, current_recorder, jsonable
from leyden.types import Span

_last: WeakKeyDictionary[Recorder, dict[str, float]] = WeakKeyDictionary()


def emit_reward(
    reward: float | Mapping[str, float], *, primary_key: str | None = None, attributes: Mapping[str, Any] | None = None
) -> Span:
    """A reward at this moment, for the call before it; the last one is the attempt's, unless the agent returns another.

    With several, by name, ``primary_key`` says which is *the* reward (default: the first). Raises ``BadReward`` for anything but
    finite numbers, ``UsageError`` outside a rollout.
    """
    several = dict(reward) if isinstance(reward, Mapping) else {"reward": reward}
    if primary_key is not None:
        if primary_key not in several:
            raise UsageError(f"emit_reward: no {primary_key!r} among {', '.join(several)}", "primary_key names one of the rewards")
        several = {primary_key: several[primary_key], **several}
    checked: Rewards = {}
    for name, value in several.items():
        add_reward(checked, value, name)
    recorder = current_recorder()
    if recorder is None:
        raise UsageError("emit_reward() was called outside a rollout", "call it in an agent that a runner runs")
    numbers = {r.name: r.value for r in checked.values()}
    _last[recorder] = numbers | {"reward": next(iter(numbers.values()))}
    return recorder.note(REWARD, reward_attributes(numbers) | jsonable(dict(attributes or {})))


def last_reward() -> dict[str, float] | None:
    """All names of the last one emitted in the running attempt; its first one counts as *the* reward."""
    recorder = current_recorder()
    return None if recorder is None else _last.get(recorder)


def emit_message(message: str, attributes: Mapping[str, Any] | None = None) -> Span | None:
    """A text."""
    return note("agentlightning.message", {"agentlightning.message.body": message, **(attributes or {})})


def emit_object(object: Any, attributes: Mapping[str, Any] | None = None) -> Span | None:
    """Any JSON."""
    return note("agentlightning.object", {"agentlightning.object": object, **(attributes or {})})


def emit_annotation(annotation: Mapping[str, Any]) -> Span | None:
    """Names and values; nested ones are flattened with dots."""
    return note(REWARD, flat(jsonable(dict(annotation))))


def emit_exception(exception: BaseException, attributes: Mapping[str, Any] | None = None) -> Span | None:
    """An exception that the agent has handled."""
    return note("agentlightning.exception", {**exception_attributes(exception), **(attributes or {})})
