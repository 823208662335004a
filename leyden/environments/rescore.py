"""Scoring again what was tried before: another scorer over the same answers, with both verdicts kept.

The attempts and their first scores stay as they are. The new scores go into the store under the scorer's own name (``Store.add_scores``),
and into a result of their own beside the first one, which every verb reads like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.attempting import UNNAMED_SCORER, rewards_of_score, source_of
from leyden.environments.evaldir import EvalDir
from leyden.environments.fingerprint import Fingerprint, digest
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.score import Score, Scorer
from leyden.environments.task import Task
from leyden.errors import Conflict, NotFound, UsageError
from leyden.server.client import StoreClient
from leyden.server.interface import Store, open_store

SCORED = "result-{}.jsonl"
AT_ONCE = 64  # attempts recorded, so that one commit serves many
SHORT = 12  # signs of a digest that name it
AGENT = "agent"  # whose rewards are the attempt's own
LONGEST = 128  # signs of a source in the store


class Which(StrEnum):
    """Which attempts are scored again."""

    ALL = "all"
    FAILED = "failed"  # a score that did not pass
    UNSCORED = "unscored"  # completed, and nobody could judge


@dataclass(frozen=True)
class Rescored:
    """``result`` has the new scores; attempts that were not asked for keep their old ones (``AttemptResult.scorer`` tells which)."""

    result: EnvironmentRunResult
    source: str  # the new scorer's name
    scored: tuple[tuple[Task, AttemptResult], ...]  # those that have a new score
    n_asked: int
    n_unjudgeable: int  # left out: they did not complete, so there is no answer to judge
    errors: dict[str, str]  # "task/index" → what the scorer raised
    n_now_passing: int
    n_now_failing: int
    n_unchanged: int  # the same verdict; the value may be another

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "n_asked": self.n_asked,
            "n_scored": len(self.scored),
            "n_unjudgeable": self.n_unjudgeable,
            "n_errors": len(self.errors),
            "n_now_passing": self.n_now_passing,
            "n_now_failing": self.n_now_failing,
            "n_unchanged": self.n_unchanged,
            "pass_rate": self.result.pass_rate,
            "errors": self.errors,
        }


async def arescore(
    result: EnvironmentRunResult,
    scorer: Scorer,
    which: Which = Which.ALL,
    ids: Collection[str] | None = None,
    name: str | None = None,
    concurrency: int = 8,
    on_score: Callable[[], None] = lambda: None,
) -> Rescored:
    """Score the completed attempts of ``result`` (of the tasks ``ids``; None: all) again. ``name``: what the scores are recorded under;
    None: the scorer's digest. What the scorer raises leaves the attempt unscored in the new result, with the error.

    Raises ``UsageError`` for a scorer without a digest and without a name, a name that the store does not take, and an id that is no
    task's.
    """
    source = source_of(scorer) if name is None else name
    if source == UNNAMED_SCORER:
        raise UsageError("this scorer has no digest, so its scores have no name", "give it a method digest(), or name them: --as NAME")
    if source == AGENT or not 1 <= len(source) <= LONGEST:
        raise UsageError(f"no scores can be recorded under {source[:40]!r}", f"a name of 1 to {LONGEST} signs, not {AGENT!r}: --as NAME")
    known = {str(one.task.id) for one in result.task_results}
    if unknown := sorted(set(ids or ()) - known):
        raise UsageError(f"there is no task {unknown[0]!r}", f"its tasks: {', '.join(sorted(known)[:8])}")
    chosen = [(task, old) for task, old in result.attempts() if (ids is None or str(task.id) in ids) and _is_asked(old, which)]
    judgeable = [(task, old) for task, old in chosen if old.stop_reason is StopReason.COMPLETED and old.run is not None]
    room = asyncio.Semaphore(concurrency)

    async def judge(task: Task, old: AttemptResult) -> AttemptResult:
        async with room:
            new = await _score(scorer, task, old, source)
        on_score()
        return new

    found = await asyncio.gather(*(judge(task, old) for task, old in judgeable))
    new = {(task.id, attempt.index): attempt for (task, _), attempt in zip(judgeable, found, strict=True)}
    tasks = tuple(
        replace(one, attempts=tuple(new.get((one.task.id, old.index), old) for old in one.attempts)) for one in result.task_results
    )
    verdicts = Counter((old.passed, made.passed) for (_, old), made in zip(judgeable, found, strict=True) if made.score is not None)
    whole = all(attempt.scorer == source for one in tasks for attempt in one.attempts if attempt.score is not None)
    return Rescored(
        result=replace(result, task_results=tasks, env_fingerprint=_fingerprint(result.env_fingerprint, source if whole else None)),
        source=source,
        scored=tuple((task, made) for (task, _), made in zip(judgeable, found, strict=True) if made.score is not None),
        n_asked=len(chosen),
        n_unjudgeable=len(chosen) - len(judgeable),
        errors={
            f"{task.id}/{made.index}": made.error or "" for (task, _), made in zip(judgeable, found, strict=True) if made.score is None
        },
        n_now_passing=verdicts[False, True],
        n_now_failing=verdicts[True, False],
        n_unchanged=verdicts[True, True] + verdicts[False, False],
    )


def rescore(result: EnvironmentRunResult, scorer: Scorer, **options: Any) -> Rescored:
    """``arescore`` where no event loop runs."""
    return asyncio.run(arescore(result, scorer, **options))


async def record(store: Store, rescored: Rescored) -> int:
    """Write the new scores beside the first ones; the same again changes nothing. Returns of how many attempts.

    Raises ``Conflict`` where this source has judged one otherwise, ``NotFound`` where the store does not hold the attempts.
    """
    kept = [(task, made) for task, made in rescored.scored if made.rollout_id is not None and made.attempt is not None]
    for start in range(0, len(kept), AT_ONCE):
        some = kept[start : start + AT_ONCE]
        ends = await asyncio.gather(*(_record(store, task, made, rescored.source) for task, made in some), return_exceptions=True)
        for error in ends:  # all have ended: none goes on while the store is closed
            if error is not None:
                raise error
    return len(kept)


async def _record(store: Store, task: Task, attempt: AttemptResult, source: str) -> None:
    assert attempt.rollout_id is not None and attempt.attempt is not None and attempt.score is not None
    try:
        await store.add_scores(attempt.rollout_id, attempt.attempt, rewards_of_score(attempt.score, source))
    except Conflict as error:
        message = f"{task.id}/{attempt.index}: {error.message}"
        varies = "a scorer that varies needs a name for each round: --as NAME"
        raise Conflict(message, varies if "is already" in error.message else error.hint) from error


@asynccontextmanager
async def store_of(run: EvalDir) -> AsyncIterator[Store]:
    """The store that holds an eval's attempts: its own file, or the one elsewhere that it was run on."""
    url = run.asked.get("store")
    if not url and not run.store.is_file():
        raise NotFound(f"eval {run.id} has no store any more", "only its saved result is left")
    store: Store = StoreClient(url) if url else await open_store(run.store)
    try:
        yield store
    finally:
        await store.close()


def scored_path(run: EvalDir, source: str) -> Path:
    """Where the result with one source's scores lies: under the source's name, or the beginning of its digest."""
    if re.fullmatch(r"[0-9a-f]{32,}", source):
        source = source[:SHORT]
    elif not re.fullmatch(r"[A-Za-z0-9_-]{1,24}", source):
        source = hashlib.sha256(source.encode()).hexdigest()[:SHORT]
    return run.path / SCORED.format(source)


def result_path(run: EvalDir, source: str | None = None) -> Path:
    """The saved result of an eval: the first one, or the one whose source begins so. Raises ``NotFound``, ``UsageError`` for several."""
    if source is None:
        found = [run.result] if run.result.is_file() else []
    else:
        whole = scored_path(run, source)
        begun = (path for path in run.path.glob(SCORED.format("*")) if path.stem.removeprefix("result-").startswith(source))
        found = [whole] if whole.is_file() else sorted(begun)
    if not found:
        others = ", ".join(path.stem.removeprefix("result-") for path in sorted(run.path.glob(SCORED.format("*"))))
        hint = f"there are: {others}" if source and others else f"go on with it: leyden eval --resume {run.id}"
        raise NotFound(f"eval {run.id} has no result{f' scored by {source}' if source else ' yet'}", hint)
    if len(found) > 1:
        raise UsageError(f"{source} could be {', '.join(path.stem.removeprefix('result-') for path in found)}", "give more of the name")
    return found[0]


def _is_asked(attempt: AttemptResult, which: Which) -> bool:
    match which:
        case Which.ALL:
            return True
        case Which.FAILED:
            return attempt.score is not None and not attempt.passed
        case Which.UNSCORED:
            return attempt.score is None


async def _score(scorer: Scorer, task: Task, old: AttemptResult, source: str) -> AttemptResult:
    assert old.run is not None
    try:
        score: Any = await scorer.ascore(old.run, task.fresh().expected)
        if not isinstance(score, Score):
            raise TypeError(f"a scorer gives a Score, not {type(score).__name__}")
        rewards_of_score(score, source)  # raises for a dimension that no store takes
    except Exception as error:  # a scorer may be anybody's
        kind = type(error).__name__
        return replace(old, score=None, scorer=None, error=f"scorer: {kind}: {' '.join(str(error).split())}", error_type=kind)
    return replace(old, score=score, scorer=source, error=None, error_type=None)


def _fingerprint(old: Fingerprint, source: str | None) -> Fingerprint:
    """The environment asks the same and judges otherwise. With scores of two sources nobody can say how it judges."""
    components = {**old.components, "scorer": None if source is None else digest(source)}
    if old.digest is None or None in components.values():
        return Fingerprint(None, components)
    return Fingerprint(f"{old.digest.partition(':')[0]}:{digest(components)}", components)
