"""What Python's garbage collector does while thousands of small things are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 50_000  # objects made before the youngest are looked at, in place of 700: nearly all of them go by themselves

_at_rest = False


@contextmanager
def heap_at_rest() -> Iterator[None]:
    """While the block lasts, what was there before it is not looked at again and again: libraries are hundreds of thousands of objects, and
    a run of instant agents spent a fifth of its time there, a store an eighth. What somebody else has frozen stays as it is."""
    global _at_rest
    if _at_rest or gc.get_freeze_count():
        yield
        return
    _at_rest = True
    youngest, *older = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(youngest, RARELY) if youngest else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
        gc.unfreeze()
        _at_rest = False
