"""From a claimed rollout to an attempt's end, wherever it runs: in the process that drives, or in a runner on another machine."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.score import Score
from leyden.environments.stored import RECORD, RECORD_ATTRIBUTE, encode_attempt
from leyden.environments.subject import AttemptContext
from leyden.environments.task import Task
from leyden.environments.trial import Trial, try_once
from leyden.errors import UsageError
from leyden.runners.agent import Agent
from leyden.runners.failures import AttemptFailed
from leyden.runners.rewards import emit_reward
from leyden.runners.tracer import current_recorder
from leyden.types import LLM, FailureKind, Reward, Rollout, Span

if TYPE_CHECKING:
    from leyden.environments.environment import Environment

PASSED = "passed"
REWARD = "reward"
UNNAMED_SCORER = "scorer"


class Attempts:
    """Tries the tasks of one environment."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._tasks = {task.id: task for task in env.resolved}
        self.source = source_of(env.scorer)

    def task_of(self, rollout: Rollout) -> tuple[Task, int]:
        """Raises ``UsageError`` for a rollout that no eval of this environment queued."""
        asked = rollout.input if isinstance(rollout.input, dict) else {}
        task, index = self._tasks.get(asked.get("task")), asked.get("attempt")
        if task is None or not isinstance(index, int):
            raise UsageError(
                f"rollout {rollout.id} is not of environment {self._env.name}", "give its runners a queue or a store of their own"
            )
        return task, index

    async def run(self, rollout: Rollout, llm: LLM | None) -> Trial:
        """One attempt. Nothing but this task's own cancellation is raised, and ``UsageError`` as ``task_of`` does."""
        task, index = self.task_of(rollout)
        name = f"{rollout.id}-{rollout.attempt}"  # of this attempt and of no other
        context = AttemptContext(rollout, llm, ids={"session_id": f"session-{name}", "user_id": f"user-{name}"})
        return await try_once(self._env.subject, self._env.scorer, self._env.timeout_seconds, task, context, index, self.source)

    def record_of(self, trial: Trial) -> tuple[Trial, str]:
        """The attempt as the store keeps it. A score that cannot be written down leaves it unscored; an output, an error."""
        try:
            return trial, encode_attempt(trial.result).decode()
        except UsageError as error:
            if trial.result.score is not None:
                told = f"scorer: UsageError: {error.message}"
                unscored = replace(trial.result, score=None, scorer=None, error=told, error_type="UsageError")
                return self.record_of(Trial(unscored, FailureKind.VERIFIER))
            result = AttemptResult(
                index=trial.result.index, run=None, score=None, stop_reason=StopReason.ERROR,
                duration_seconds=trial.result.duration_seconds, error=f"UsageError: {error.message}", error_type="UsageError",
                rollout_id=trial.result.rollout_id, attempt=trial.result.attempt, seed=trial.result.seed,
            )  # fmt: skip
            return Trial(result, FailureKind.AGENT), encode_attempt(result).decode()

    def rewards_of(self, result: AttemptResult) -> list[Reward]:
        """Of a scored attempt, under the scorer's name; none otherwise."""
        return [] if result.score is None else rewards_of_score(result.score, self.source)


def agent_of(env: Environment) -> Agent:
    """What a runner runs: the attempt's record becomes a span, its score rewards, its error the rollout's."""
    attempts, fingerprint = Attempts(env), cache(env.env_fingerprint)

    async def evaluate(rollout: Rollout, llm: LLM | None = None) -> None:
        attempts.task_of(rollout)
        if rollout.episode.environment_class_id != fingerprint().digest:  # its tasks, its scorer: the numbers would be of something else
            raise UsageError(f"rollout {rollout.id} is of another {env.name} than this runner's", "start the runners with the eval's code")
        trial, record = attempts.record_of(await attempts.run(rollout, llm))
        if (recorder := current_recorder()) is not None:
            recorder.add(record_span(rollout, record))
        for reward in attempts.rewards_of(trial.result):
            emit_reward(reward.value, reward.name, source=reward.source)
        if trial.failure is not None:
            raise AttemptFailed(trial.result.error or str(trial.failure), trial.failure)

    agent = Agent(evaluate)
    agent.name = env.name
    return agent


def rewards_of_score(score: Score, source: str) -> list[Reward]:
    numbers = {REWARD: score.value, PASSED: float(score.passed)}
    numbers |= {f"{REWARD}.{name}": float(number) for name, number in score.dimensions.items()}
    return [Reward(name=name, value=value, source=source) for name, value in numbers.items()]


def source_of(scorer: Any) -> str:
    """Its digest; "scorer" for one that has none."""
    digest = getattr(scorer, "digest", None)
    if digest is None:
        return UNNAMED_SCORER
    try:
        return str(digest())
    except Exception:  # its own code, or one whose source is not to be had: the fingerprint has said so
        return UNNAMED_SCORER


def record_span(rollout: Rollout, record: str) -> Span:
    """Stored once, however often it is sent: its ids are the attempt's."""
    now = time.time_ns()
    name = hashlib.sha256(f"{RECORD} {rollout.id} {rollout.attempt}".encode()).hexdigest()
    return Span(
        trace_id=name[:32], span_id=name[32:48], name=RECORD, start_ns=now, end_ns=now, status="ok", attributes={RECORD_ATTRIBUTE: record}
    )
