"""What selection is worth: as many rows as were selected, drawn at random from all candidates, those that failed included."""

from __future__ import annotations

import random
from collections.abc import Sequence

from leyden.algorithm.rows import Row

ARM = "control"


def random_rows(rows: Sequence[Row], n: int, seed: int) -> list[Row]:
    """In training order. The same rows, number and seed give the same draw."""
    return random.Random(f"{ARM} {seed}").sample(list(rows), min(n, len(rows)))
