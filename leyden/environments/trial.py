"""One attempt: the agent runs once, and what it committed is judged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.output import RunStatus
from leyden.environments.score import Score, Scorer
from leyden.environments.subject import AttemptContext, Subject, cancelled_by_others
from leyden.environments.task import Task
from leyden.runners.failures import classify, describe
from leyden.types import FailureKind

GRACE = 5.0  # seconds an attempt that ran out of time has to end; then nobody waits for it any more

_STOPS = {
    RunStatus.COMPLETED: StopReason.COMPLETED,
    RunStatus.TRUNCATED: StopReason.TRUNCATED,
    RunStatus.PAUSED: StopReason.PAUSED,
    RunStatus.CANCELLED: StopReason.CANCELLED,
}


@dataclass(frozen=True)
class Trial:
    """``result``, and for the store what failed: None where the agent came to an end and nothing broke."""

    result: AttemptResult
    failure: FailureKind | None = None


class _ScorerFailed(Exception):
    """From the scorer's exception."""


class _Broke(Exception):
    """From what the agent raised that is no ``Exception``: asyncio lets ``SystemExit`` out of any task, and the whole run would end."""


async def try_once(
    subject: Subject, scorer: Scorer, timeout: float | None, task: Task, context: AttemptContext, index: int, source: str | None = None
) -> Trial:
    """Run one task and score the output, for which ``source`` is named. ``timeout`` (seconds) is for both together; what was committed
    before it ran out is kept.

    Nothing but this task's own cancellation is raised: what the agent or the scorer raise, ``CancelledError`` included, is the result's
    ``error``. The score is asked for only where the run completed. A sync scorer runs in a thread that nobody can stop.
    """
    began = perf_counter()
    work = asyncio.create_task(_run_and_score(subject, scorer, task, context))
    try:
        await asyncio.wait([work], timeout=timeout)
        timed_out = not work.done()
        if timed_out:
            work.cancel()
            await asyncio.wait([work], timeout=GRACE)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait([work], timeout=GRACE)
        raise
    stop, score, error, kind, failure = _verdict(work, context, timeout if timed_out else None)
    result = AttemptResult(
        index=index,
        run=context.output or context.partial,
        score=score,
        stop_reason=stop,
        duration_seconds=perf_counter() - began,
        error=error,
        error_type=kind,
        rollout_id=context.rollout.id,
        attempt=context.rollout.attempt,
        seed=context.rollout.episode.seed,
        scorer=None if score is None else source,
    )
    return Trial(result, failure)


async def _run_and_score(subject: Subject, scorer: Scorer, task: Task, context: AttemptContext) -> Score | None:
    try:
        await subject.attempt(task, context)
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise _Broke from error
    output = context.output
    if output is None or output.status is not RunStatus.COMPLETED:
        return None
    try:
        score: Any = await scorer.ascore(output, task.fresh_expected())
        if not isinstance(score, Score):
            raise TypeError(f"a scorer returns a Score, not {type(score).__name__}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | GeneratorExit) or cancelled_by_others():
            raise
        raise _ScorerFailed from error
    return score


_Verdict = tuple[StopReason, Score | None, str | None, str | None, FailureKind | None]


def _verdict(work: asyncio.Task[Score | None], context: AttemptContext, ran_out: float | None) -> _Verdict:
    """How it stopped, its score, what went wrong as a text and as a class, and whose fault that was."""
    if ran_out is not None:
        return StopReason.TIMEOUT, None, f"timeout: exceeded {ran_out:g} s", None, FailureKind.TIMEOUT
    if work.cancelled():
        text = "CancelledError: the agent cancelled itself"
        return StopReason.CANCELLED, None, text, "CancelledError", FailureKind.AGENT
    error = work.exception()
    if isinstance(error, _ScorerFailed) and error.__cause__ is not None:
        cause = error.__cause__
        return StopReason.COMPLETED, None, f"scorer: {describe(cause)}", type(cause).__name__, FailureKind.VERIFIER
    if isinstance(error, _Broke):
        error = error.__cause__
    if error is not None:
        return StopReason.ERROR, None, describe(error), type(error).__name__, classify(error)
    if context.output is None:
        return StopReason.ERROR, None, "no run output recorded", None, FailureKind.AGENT
    stop = _STOPS[context.output.status]
    ended = None if stop is StopReason.COMPLETED else f"run ended with status {context.output.status}"
    return stop, work.result(), ended, None, None
