"""What was sent and not stored: counted by reason, each with an example."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from leyden.server.codec import redact_text

MAX_EXAMPLE = 200  # characters


@dataclass
class Rejected:
    """A few fixed ``reasons``, however much is refused for each."""

    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)  # how often, and the first example

    def add(self, reason: str, example: str, n: int = 1) -> None:
        before, first = self.reasons.get(reason) or (0, redact_text(example)[:MAX_EXAMPLE])
        self.reasons[reason] = (before + n, first)

    def merge(self, others: Iterable[Rejected]) -> Rejected:
        for other in others:
            for reason, (n, example) in other.reasons.items():
                self.add(reason, example, n)
        return self

    @property
    def total(self) -> int:
        return sum(n for n, _ in self.reasons.values())

    def __str__(self) -> str:
        return "; ".join(f"{n} spans: {reason}, e.g. {example}" for reason, (n, example) in self.reasons.items())
