"""What a training run collected, as attempts that can be exported: from its store, with the rewards it was given there."""

from __future__ import annotations

from leyden.algorithm.sft.collect import last_rewards
from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.exports.source import Source
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.output import RunOutput
from leyden.environments.score import Score
from leyden.environments.task import Task
from leyden.errors import NotFound, UsageError
from leyden.server.interface import Store
from leyden.types import Mode, Rollout, RolloutState

PAGE = 500
UNKNOWN = Fingerprint(None, {})  # a run's store says nothing of an environment


async def source_of_run(store: Store, run_id: str, passes_at: float = 0.5) -> Source:
    """The rollouts that were collected for training and succeeded, by task; one passes whose reward is at least ``passes_at``, and one
    without a reward is unscored. They hold no text: for token rows.

    Raises ``NotFound`` for a run without any, ``UsageError`` for a reward outside 0 to 1.
    """
    tasks: dict[str, list[tuple[Task, AttemptResult]]] = {}
    after: str | None = None
    while page := await store.list_rollouts(run_id=run_id, mode=Mode.TRAIN, state=RolloutState.SUCCEEDED, after=after, limit=PAGE):
        after = page[-1].id
        rewards = last_rewards(await store.list_rewards([rollout.id for rollout in page]))
        for rollout in page:
            name = rollout.group or rollout.id
            of_task = tasks.setdefault(name, [])
            of_task.append((Task(rollout.input, id=name), _attempt(rollout, len(of_task), rewards.get(rollout.id), passes_at)))
    if not tasks:
        raise NotFound(f"the store holds no rollout that succeeded for run {run_id}", "see which runs there are: leyden runs")
    pairs = [pair for name in sorted(tasks) for pair in tasks[name]]
    return Source(run_id, max(map(len, tasks.values())), UNKNOWN, UNKNOWN, lambda: iter(pairs), run_id)


def _attempt(rollout: Rollout, index: int, reward: float | None, passes_at: float) -> AttemptResult:
    if reward is not None and not 0 <= reward <= 1:
        raise UsageError(f"rollout {rollout.id} has reward {reward:g}, and a score lies within 0 and 1", "scale the rewards of that run")
    return AttemptResult(
        index=index,
        run=RunOutput(content=None),
        score=None if reward is None else Score(reward, reward >= passes_at),
        stop_reason=StopReason.COMPLETED,
        duration_seconds=0.0,
        rollout_id=rollout.id,
        attempt=rollout.attempt,
        seed=rollout.episode.seed,
    )
