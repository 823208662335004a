"""The agent's own number as its score."""

from __future__ import annotations

from typing import Any

from leyden.environments.fingerprint import digest
from leyden.environments.output import RunOutput
from leyden.environments.score import Score
from leyden.environments.scorers.code import checked_threshold
from leyden.errors import UsageError


class RewardScorer:
    """For ``@leyden.rollout`` agents, which return or emit rewards: the one called ``name`` is the score, and passes from
    ``pass_threshold`` on; the others are its dimensions. Without it, or with one outside 0 to 1, ``ValueError``: that is unscored."""

    def __init__(self, name: str = "reward", *, pass_threshold: float = 0.5) -> None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"a reward's name is a text, not {name!r}", 'RewardScorer("reward")')
        self.name = name
        self.pass_threshold = checked_threshold(pass_threshold, 0.0, 1.0)

    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        value = run.metrics.get(self.name)
        if value is None:
            raise ValueError(f"the agent gave no reward {self.name!r}, only {', '.join(sorted(run.metrics)) or 'none at all'}")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"reward {self.name!r} is {value:g}, and a score lies within 0 and 1: scale it, or score with a CodeScorer")
        return Score(
            value, value >= self.pass_threshold, dimensions={name: number for name, number in run.metrics.items() if name != self.name}
        )

    def digest(self) -> str:
        return digest(["reward1", self.name, self.pass_threshold])
