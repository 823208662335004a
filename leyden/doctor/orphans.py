"""Processes of an earlier run that is gone: they hold ports, memory and GPUs, and nobody will end them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil

from leyden.doctor.finding import Finding, ok, warning
from leyden.process import MARKER, end_leftovers

_MAKER = re.compile(r"(\d+)-[0-9a-f]+")  # one part of a marker, see ``leyden.process``


@dataclass(frozen=True)
class Orphan:
    process: psutil.Process
    driver: int  # the process that made its marker, and has ended
    marker: str  # down to the part which that process made: whatever is below it is an orphan too

    def __str__(self) -> str:
        return f"{_name(self.process)} (pid {self.process.pid}, of driver {self.driver})"


def find_orphans() -> list[Orphan]:
    """Live processes of this user whose marker was made by a process that has ended. What ends just now may be among them."""
    found = []
    for process in psutil.process_iter():
        try:
            marker, started = process.environ().get(MARKER, ""), process.create_time()
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or another user's
            continue
        gone = next(((pid, part) for pid, part in _makers(marker) if not _lives_since(pid, started)), None)
        if gone is not None:
            found.append(Orphan(process, *gone))
    return found


def check_orphans() -> Finding:
    orphans = find_orphans()
    if not orphans:
        return ok("orphans", "no process of an earlier run")
    return warning("orphans", f"left by a run that is gone: {', '.join(map(str, orphans))}", "leyden doctor --end-orphans")


def end_orphans(orphans: Iterable[Orphan]) -> int:
    """End them and what they have started meanwhile; how many there were. Raises ``Unavailable`` for one that even SIGKILL does not end."""
    return sum(end_leftovers(marker) for marker in sorted({orphan.marker for orphan in orphans}))


def _makers(marker: str) -> Iterator[tuple[int, str]]:
    """Each process that had a part in the marker, outermost first, and the marker down to that part."""
    parts = marker.split("/")
    for depth, part in enumerate(parts, 1):
        if found := _MAKER.fullmatch(part):
            yield int(found[1]), "/".join(parts[:depth])


def _lives_since(pid: int, instant: float) -> bool:
    """Whether that process is there, and was at ``instant``: a younger one has only got the same number."""
    try:
        process = psutil.Process(pid)
        return process.create_time() <= instant and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return "a process"
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else (words[0].rpartition("/")[2] if words else process.name())
    return module
