"""Scorers: each looks at one attempt's output and gives a ``Score``, or raises, which leaves the attempt unscored.

Any object with ``async def ascore(self, run, expected=None) -> Score`` is one. Give it a ``digest()`` too, a text that changes whenever it
would judge differently, or results of it can be compared with none::

    class Short:
        def __init__(self, limit: int) -> None:
            self.limit = limit

        async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
            return Score(1.0, True) if len(run.content) <= self.limit else Score(0.0, False, reason="too long")

        def digest(self) -> str:
            return digest_of(self)  # its source and what it holds
"""

from __future__ import annotations

from leyden.environments.code_digest import digest_of
from leyden.environments.scorers.code import CodeScorer
from leyden.environments.scorers.judge import JudgeScorer
from leyden.environments.scorers.reward import RewardScorer
from leyden.environments.scorers.tool_calls import ToolCallScorer

__all__ = ["CodeScorer", "JudgeScorer", "RewardScorer", "ToolCallScorer", "digest_of"]
