"""What an agent may answer, turned into rewards."""

from __future__ import annotations

import contextvars
import math
import numbers
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leyden.errors import LeydenError, UsageError
from leyden.types import Reward

if TYPE_CHECKING:
    from collections.abc import Iterator

Rewards = dict[tuple[str, str], Reward]
"""By name and position."""

_emitted: contextvars.ContextVar[Rewards | None] = contextvars.ContextVar("leyden_emitted", default=None)


class BadReward(LeydenError):
    """The agent's answer is not a finite number, a dict of them, or None. The attempt fails as the agent's fault."""

    code = "bad_reward"
    status = 422


@contextmanager
def collecting() -> Iterator[Rewards]:
    """Rewards emitted inside, by this task and the tasks and threads it starts; concurrent rollouts do not mix."""
    rewards: Rewards = {}
    token = _emitted.set(rewards)
    try:
        yield rewards
    finally:
        _emitted.reset(token)


def emit_reward(value: Any, name: str = "reward", position: str = "end", source: str = "agent", *, primary_key: str | None = None) -> None:
    """Give the running rollout a reward, or the part of it at ``position`` (a generation's id, or a span's). Each once; the same value
    again is a no-op. ``source``: who says so, for instance a verifier's digest.

    ``value`` is a number; or several by name, as an agent may return them, of which ``primary_key`` is *the* reward as well: it also
    stands under ``name``.

    Raises ``BadReward`` for anything but finite numbers, or for a second value; ``UsageError`` outside a rollout.
    """
    rewards = _emitted.get()
    if rewards is None:
        raise UsageError("emit_reward() was called outside a rollout", "call it inside a function decorated with @leyden.rollout")
    several = list(value.items()) if isinstance(value, Mapping) else [(name, value)]
    if primary_key is not None:
        if not isinstance(value, Mapping) or primary_key not in value:
            raise UsageError(
                f"emit_reward: no {primary_key!r} among {', '.join(str(each) for each, _ in several)}",
                "primary_key names one of the rewards",
            )
        several.append((name, value[primary_key]))
    for each, number in several:
        add_reward(rewards, number, each, position, source)


def add_answer(rewards: Rewards, answer: Any) -> None:
    """Add what an agent returned: None (nothing), a number, or a dict of numbers by name."""
    if answer is None:
        return
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            add_reward(rewards, value, name)
    else:
        add_reward(rewards, answer, "reward")


def add_reward(rewards: Rewards, value: Any, name: Any, position: str = "end", source: str = "agent") -> None:
    if not isinstance(name, str) or not 0 < len(name) <= 128:
        raise BadReward(f"a reward's name is a text of 1 to 128 characters, not {name!r:.60}", 'for instance {"reward": 1.0}')
    reward = Reward(name=name, value=_number(value, name), source=source, position=position)
    first = rewards.setdefault((name, position), reward)
    if first != reward:
        raise BadReward(f"two values for reward {name!r}: {first.value} and {reward.value}", "give each reward its own name")


def _number(value: Any, name: str) -> float:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a scalar of numpy or torch, without importing either
    if not isinstance(value, numbers.Real):
        raise BadReward(f"reward {name!r} is a {type(value).__name__}, not a number", "return a number, a dict of numbers, or None")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadReward(f"reward {name!r} is {number}", "return a finite number; to say that an attempt failed, raise an exception")
    return number
