"""Whoever watches over a runner's process, and what it is told."""

from __future__ import annotations

from enum import StrEnum

from leyden.types import LeaseRef


class News(StrEnum):
    """What a runner tells whoever watches over its process."""

    READY = "ready"  # the agent is loaded
    HELD = "held"  # told before the agent begins
    ENDED = "ended"  # told after the store knows
    BEAT = "beat"  # told by the heart, in its own thread, whether or not the store answers


class Watcher:
    """Whoever watches over a runner's process; this one does not care."""

    def tell(self, news: News, ref: LeaseRef | None = None) -> None:
        """Called in the runner's event loop, and for beats in the heart's thread."""

    def is_sound(self) -> bool:
        """False once an agent has broken the process: nothing more is run in it."""
        return True

    def on_blocked(self) -> None:
        """Called in the heart's thread when an attempt has to stop, but an agent keeps the event loop to itself: nothing can be stopped
        or handed back any more, only this process ended."""
