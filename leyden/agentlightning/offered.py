"""What of the recipe's is not offered here, and what to use."""

from __future__ import annotations

from leyden.errors import UsageError


class NotOffered(UsageError, AttributeError):
    """A name of the recipe's that has no counterpart here; the hint says what to use."""

    code = "not_offered"

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, f"instead: {instead}")
