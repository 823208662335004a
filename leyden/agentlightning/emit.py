"""Things an agent says while it runs: rewards and notes, each kept as a span of its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leyden.agentlightning.spans import REWARD, reward_attributes
from leyden.errors import UsageError
from leyden.runners.rewards import Rewards, add_reward
from leyden.runners.tracer import Recorder, current_recorder
from leyden.types import Span


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
    return _recorder("emit_reward").note(REWARD, reward_attributes({r.name: r.value for r in checked.values()}) | dict(attributes or {}))


def emit_message(message: str, attributes: Mapping[str, Any] | None = None) -> Span:
    """A text."""
    return _recorder("emit_message").note("agentlightning.message", {"agentlightning.message.body": message, **(attributes or {})})


def emit_object(object: Any, attributes: Mapping[str, Any] | None = None) -> Span:
    """Any JSON."""
    return _recorder("emit_object").note("agentlightning.object", {"agentlightning.object": object, **(attributes or {})})


def emit_annotation(annotation: Mapping[str, Any]) -> Span:
    """Names and values; nested ones are flattened with dots."""
    return _recorder("emit_annotation").note(REWARD, dict(_flat(annotation)))


def emit_exception(exception: BaseException, attributes: Mapping[str, Any] | None = None) -> Span:
    """An exception that the agent has handled."""
    about = {"exception.type": type(exception).__qualname__, "exception.message": str(exception)}
    return _recorder("emit_exception").note("agentlightning.exception", {**about, **(attributes or {})})


def _recorder(name: str) -> Recorder:
    recorder = current_recorder()
    if recorder is None:
        raise UsageError(f"{name}() was called outside a rollout", "call it in an agent that a runner runs")
    return recorder


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return flat
