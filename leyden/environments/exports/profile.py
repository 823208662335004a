"""How much of a dataset one consumer takes."""

from __future__ import annotations

from dataclasses import dataclass

from leyden.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """Caps of one consumer. A row that does not fit is counted and left out; smaller ones after it still go in."""

    name: str
    max_rows: int | None = None
    max_bytes: int | None = None  # of the file, newlines included
    min_rows: int = 1  # fewer are written, with a warning


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("none"),
        Profile("tinker", max_rows=320, max_bytes=1 << 20),  # 8 rows a step, 40 steps
        Profile("openai", max_bytes=512 << 20, min_rows=10),
        Profile("fireworks", max_rows=3_000_000, max_bytes=150 << 20, min_rows=3),
    )
}


def profile_named(name: str) -> Profile:
    if name not in PROFILES:
        raise UsageError(f"no profile {name!r}", f"one of: {', '.join(PROFILES)}")
    return PROFILES[name]
