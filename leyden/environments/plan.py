"""What a run will do, decided and checked before the first attempt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leyden.environments.fingerprint import Fingerprint
from leyden.environments.results import TaskResult
from leyden.environments.stored import encode
from leyden.environments.task import Task
from leyden.environments.trial import GRACE
from leyden.errors import LeydenError, UsageError
from leyden.runners.failures import describe
from leyden.types import DEFAULT_QUEUE, ID_PATTERN, LLM, Episode, FailureKind, Mode, NewRollout, RolloutConfig

if TYPE_CHECKING:
    from leyden.environments.environment import Environment

Key = tuple[str, int]
"""A task's id and an attempt's index."""

LONGEST = 86_400.0  # seconds a store lets an attempt run
SLACK = 60.0  # seconds beyond an attempt's own timeout before the store ends it, where others run it
_RETRIED = (FailureKind.INFRASTRUCTURE, FailureKind.LOST)  # they say nothing about the agent: the same attempt is tried again


@dataclass(frozen=True)
class Plan:
    """``tasks`` with their ids resolved. ``llm``: where the model answers, None for agents that bring their own."""

    env: Environment
    tasks: tuple[Task, ...]
    k: int
    concurrency: int
    seed: int
    llm: LLM | None
    env_fingerprint: Fingerprint
    policy_fingerprint: Fingerprint

    @property
    def output_type(self) -> Any:
        """The type of the answers, where the subject knows that they are no text."""
        return getattr(self.env.subject, "output_type", None)

    @property
    def queue(self) -> str:
        """Where its attempts wait in a store that others use too: runners of another agent must not claim them."""
        name = self.env.name
        if re.fullmatch(ID_PATTERN, name):
            return name
        return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[:51]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"

    @property
    def keys(self) -> Iterator[Key]:
        """In the order they are queued: the first attempt of every task, then the second of every task, and so on."""
        return ((task.id or "", index) for index in range(self.k) for task in self.tasks)

    def rollouts(self, run_id: str, resources_id: str | None, remote: bool) -> Iterator[NewRollout]:
        """In the order of ``keys``. ``remote``: others claim them; the store then ends what runs past its time, for we cannot."""
        limit = (self.env.timeout_seconds or LONGEST) + GRACE + SLACK if remote else LONGEST
        config = RolloutConfig(attempt_timeout=min(limit, LONGEST), retry_on=_RETRIED)
        by_id = {task.id: (task, self._episode(task)) for task in self.tasks}
        for task_id, index in self.keys:
            task, episode = by_id[task_id]
            yield NewRollout(
                input={"task": task_id, "input": task.input, "attempt": index},
                mode=Mode.TEST,
                queue=self.queue if remote else DEFAULT_QUEUE,
                run_id=run_id,
                group=_short(task_id),
                metadata={"env": self.env.name, "step": "eval", "k": index},
                idempotency_key=f"{run_id}/{_short(task_id)}/{index}",
                episode=episode,
                config=config,
                resources_id=resources_id,
            )

    def _episode(self, task: Task) -> Episode:
        spec = hashlib.sha256(encode([task.id, task.input, self.seed])).hexdigest()
        return Episode(environment_class_id=self.env_fingerprint.digest, episode_spec_id=spec, seed=self.seed)


async def make_plan(
    env: Environment, *, k: int, tasks: Iterable[Any] | None, model: LLM | None, concurrency: int, seed: int, remote: bool
) -> Plan:
    """Check all that can be checked before an attempt: the model, the tasks, the agent, then the numbers.

    Raises ``UsageError``. A fingerprint that cannot be taken is None, with a warning in the log.
    """
    if model is not None and not isinstance(model, LLM):
        raise UsageError(
            f"model is a {type(model).__name__}, not a leyden.LLM", 'model=leyden.LLM(endpoint="http://127.0.0.1:8000/v1", model="name")'
        )
    chosen = check_asked(env, k=k, tasks=tasks, concurrency=concurrency, seed=seed)
    try:
        await env.subject.check()
    except LeydenError:
        raise
    except Exception as error:  # a factory, a tool server: its own code
        raise UsageError(f"{env.subject.name} failed before any attempt: {describe(error)}", "make it by hand once, and see") from error
    if env.subject.needs_llm and model is None and not remote:
        raise UsageError(f"{env.subject.name} needs a model to run with", "pass model=leyden.LLM(…), or leyden eval … --model MODEL")
    env_fingerprint, policy_fingerprint = env.env_fingerprint(), env.policy_fingerprint(_named(model))
    return Plan(env, chosen, k, concurrency, seed, model, env_fingerprint, policy_fingerprint)


def check_asked(env: Environment, *, k: int, tasks: Iterable[Any] | None, concurrency: int, seed: int) -> tuple[Task, ...]:
    """What can be told without the agent and the model. Returns the chosen tasks. Raises ``UsageError``."""
    for name, number in (("k", k), ("concurrency", concurrency)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"{name} is a whole number from 1 on, not {number!r}", f"for instance {name}=8")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed is a whole number, not {seed!r}", "for instance seed=0")
    return env.resolved if tasks is None else env.select(item.task if isinstance(item, TaskResult) else item for item in tasks)


def _named(model: LLM | None) -> LLM | None:
    """Where a checkpoint says who answers, it does not matter at which address it is served this time."""
    return model.model_copy(update={"proxied": True}) if model is not None and model.checkpoint else model


def _short(task_id: str) -> str:
    """As long as the store can index."""
    return task_id if len(task_id) <= 150 else hashlib.sha256(task_id.encode(errors="replace")).hexdigest()
