"""Tasks that never pass: is it the model that cannot, the environment that is broken, or the verifier that is wrong?

The rules are few and look at the attempts alone, in this order; the first that holds names the suspect, and says on what evidence.

1. Nothing was scored: the scorer failed each time → verifier; else → environment.
2. The scorer failed in some attempt, or gave equal answers different values → verifier.
3. What was expected stands, word for word, in an answer that failed → verifier.
4. A tool failed in every attempt, or was refused in every one → environment.
5. Otherwise it was scored and was wrong: model. Many different wrong answers are a model that guesses; one and the same wrong answer
   each time may be a task that is told wrongly, and is said so.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.output import ToolOutcome
from leyden.environments.results import TaskResult

SHOWN = 120  # characters of an answer


class Suspect(StrEnum):
    MODEL = "model"
    ENVIRONMENT = "environment"
    VERIFIER = "verifier"


@dataclass(frozen=True)
class Finding:
    """``evidence``: what was seen, a sentence each."""

    task_id: str
    suspect: Suspect
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.task_id}: {self.suspect}: {'; '.join(self.evidence)}"


def examine_failures(results: Iterable[TaskResult]) -> list[Finding]:
    """One finding for each task that was attempted and never passed, in order."""
    return [_examine(result) for result in results if result.attempts and not result.n_passed]


def _examine(result: TaskResult) -> Finding:
    for rule in (_nothing_scored, _scorer_wavers, _expected_is_there, _tools_fail):
        found = rule(result)
        if found is not None:
            return Finding(str(result.task.id), *found)
    return Finding(str(result.task.id), Suspect.MODEL, _wrong_answers(result))


Found = tuple[Suspect, tuple[str, ...]]


def _nothing_scored(result: TaskResult) -> Found | None:
    if result.n_scored:
        return None
    n, completed = len(result.attempts), [a for a in result.attempts if a.stop_reason is StopReason.COMPLETED]
    if len(completed) == n:
        return Suspect.VERIFIER, (f"the scorer failed in all {n} attempts: {_most_common(completed)}",)
    reasons = Counter(attempt.stop_reason for attempt in result.attempts)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return Suspect.ENVIRONMENT, (f"none of {n} attempts could be scored ({told}): {_most_common(result.attempts)}",)


def _scorer_wavers(result: TaskResult) -> Found | None:
    failed = [a for a in result.attempts if a.score is None and a.stop_reason is StopReason.COMPLETED]
    evidence = [f"the scorer failed in {len(failed)} of {len(result.attempts)} attempts: {_most_common(failed)}"] if failed else []
    values: dict[str, set[float]] = defaultdict(set)
    for attempt in result.attempts:
        if attempt.score is not None and attempt.run is not None:
            values[_text(attempt.run.content)].add(attempt.score.value)
    for text, given in values.items():
        if len(given) > 1:
            evidence.append(f"the same answer got {' and '.join(f'{value:g}' for value in sorted(given))}: {_shown(text)}")
    return (Suspect.VERIFIER, tuple(evidence)) if evidence else None


def _expected_is_there(result: TaskResult) -> Found | None:
    expected = result.task.expected
    if isinstance(expected, bool) or not isinstance(expected, str | int | float) or not (wanted := _words(str(expected))):
        return None
    failing = [_text(a.run.content) for a in result.attempts if a.score is not None and a.run is not None]
    holding = [text for text in failing if re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", _words(text))]
    if not holding:
        return None
    return Suspect.VERIFIER, (f"{len(holding)} answers that failed hold what was expected, {_shown(str(expected))}: {_shown(holding[0])}",)


def _tools_fail(result: TaskResult) -> Found | None:
    evidence = []
    for outcome, told in ((ToolOutcome.ERROR, "a tool failed"), (ToolOutcome.REFUSED, "a tool call was refused")):
        calls = [[call for call in a.run.tools if call.outcome is outcome] if a.run else [] for a in result.attempts]
        if all(calls):
            name, count = Counter(call.name for of_one in calls for call in of_one).most_common(1)[0]
            evidence.append(f"{told} in all {len(calls)} attempts, {name} {count} times")
    return (Suspect.ENVIRONMENT, tuple(evidence)) if evidence else None


def _wrong_answers(result: TaskResult) -> tuple[str, ...]:
    texts = Counter(_text(a.run.content) for a in result.attempts if a.score is not None and a.run is not None)
    n = sum(texts.values())
    if len(texts) == 1 and n > 1:
        return (f"all {n} attempts gave the same wrong answer: is the task told rightly? {_shown(next(iter(texts)))}",)
    shown = ", ".join(_shown(text) for text, _ in texts.most_common(3))
    return (f"{n} scored attempts gave {len(texts)} different wrong answers: {shown}",)


def _most_common(attempts: Iterable[AttemptResult]) -> str:
    errors = Counter(attempt.error or str(attempt.stop_reason) for attempt in attempts)
    error, count = errors.most_common(1)[0]
    others = len(errors) - 1
    return f"{_shown(error)} ({count} times{f', {others} other errors' if others else ''})"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content.strip()
    dump = getattr(content, "model_dump", None)
    return json.dumps(dump() if dump else content, sort_keys=True, default=str)


def _words(text: str) -> str:
    return " ".join(text.casefold().split())


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return f"“{line[:SHOWN]}…”" if len(line) > SHOWN else f"“{line}”"
