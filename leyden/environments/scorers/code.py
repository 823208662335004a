"""A scorer that is a function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from leyden.environments.code_digest import digest_of
from leyden.environments.fingerprint import digest
from leyden.environments.output import RunOutput
from leyden.environments.score import Score
from leyden.environments.threads import in_thread, is_async, takes
from leyden.errors import UsageError


class CodeScorer:
    """``fn(run, expected)`` gives True or False (1 or 0, whatever the threshold), a number from 0 to 1, which passes from
    ``pass_threshold`` on (equal passes), or a whole ``Score``, which is taken as it is. Anything else raises ``TypeError`` or
    ``ValueError``: the attempt is unscored.

    A sync function runs in a thread, an async one is awaited. Nothing can stop a thread: one that hangs is left to itself when the
    attempt's time is over.
    """

    def __init__(self, fn: Callable[[RunOutput, Any], Any], *, pass_threshold: float = 0.5) -> None:
        if not callable(fn) or isinstance(fn, type):
            raise UsageError(f"CodeScorer takes a function, not {_name(fn)}", "CodeScorer(lambda run, expected: run.content == expected)")
        if not takes(fn, 2):
            raise UsageError(f"the scorer {_name(fn)} does not take (run, expected)", "write def score(run, expected)")
        self.fn = fn
        self.pass_threshold = checked_threshold(pass_threshold, 0.0, 1.0)

    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        """Raises what the function raises."""
        if is_async(self.fn):
            answer = await self.fn(run, expected)
        else:
            answer = await in_thread(lambda: self.fn(run, expected), "leyden-scorer")
            if inspect.isawaitable(answer):
                answer = await answer
        return as_score(answer, self.pass_threshold, _name(self.fn))

    def score(self, run: RunOutput, expected: Any = None) -> Score:
        """``ascore`` where no event loop runs."""
        return asyncio.run(self.ascore(run, expected))

    def digest(self) -> str:
        """Of the source, its defaults, what it caught and the helpers it names. Raises ``FingerprintError`` for what cannot be written."""
        return digest(["code1", digest_of(self.fn), self.pass_threshold])


def as_score(answer: Any, pass_threshold: float, who: str) -> Score:
    """Raises ``TypeError`` for what is no score, ``ValueError`` for a number that is none."""
    if getattr(answer, "shape", None) == () and hasattr(answer, "item"):
        answer = answer.item()  # a scalar of numpy or torch
    if isinstance(answer, Score):
        return answer
    if isinstance(answer, bool):
        return Score(float(answer), answer)
    if isinstance(answer, int | float):
        if not 0.0 <= answer <= 1.0:
            raise ValueError(f"scorer {who} gave {answer!r}: a score lies within 0 and 1")
        return Score(float(answer), answer >= pass_threshold)
    hint = " (is its `return` missing?)" if answer is None else ""
    raise TypeError(f"scorer {who} gave a {type(answer).__name__}, not a bool, a number or a Score{hint}")


def checked_threshold(threshold: Any, low: float, high: float) -> float:
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not low <= threshold <= high:
        raise UsageError(f"a threshold lies within {low:g} and {high:g}, and {threshold!r} does not", f"for instance {(low + high) / 2:g}")
    return float(threshold)


def _name(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)
