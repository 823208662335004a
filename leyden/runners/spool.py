"""Spans on disk while the store is away, so that a runner that dies meanwhile loses none of them.

Each runner process has a directory of its own below the spool's, and holds its lock while it lives. One that starts takes over what dead
ones have left. A line is one span with the fence it is sent under; secrets are taken out before it is written.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from leyden.server.codec import redact
from leyden.types import LeaseRef

DIRECTORY = "LEYDEN_SPOOL"  # the environment variable that names it
SEGMENT = 4 << 20  # bytes of one file
LIMIT = 256 << 20  # bytes that one runner process may keep


def spool_of(store_url: str) -> Path:
    """Where runners of this machine keep the spans of one store: below ``$LEYDEN_SPOOL``, else below the user's state directory."""
    below = os.environ.get(DIRECTORY)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    root = Path(below) if below else Path(state) / "leyden" / "spool"
    return root / hashlib.sha256(store_url.rstrip("/").encode()).hexdigest()[:16]


@dataclass
class _Written:
    size: int = 0
    spans: Counter[LeaseRef] = field(default_factory=Counter)


class Spool:
    """Belongs to one thread. Nothing is made on disk before the first span is kept. Writing raises ``OSError`` as the disk does."""

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self.directory = directory
        self.limit = limit
        self.size = 0  # bytes of our own, without those that were taken over
        self._own: Path | None = None
        self._locks: dict[Path, int] = {}  # a descriptor for each directory that is ours, made or taken over
        self._segments: deque[Path] = deque()  # the oldest first; the last may be the one that is written
        self._current: Path | None = None
        self._numbers = 0
        self._written: dict[Path, _Written] = {}  # to each file of our own

    def adopt(self) -> int:
        """Take over what dead runners have left; how many files that is."""
        found: list[Path] = []
        for place in sorted(self.directory.glob("runner-*/")):
            try:
                lock = _lock(place)
            except OSError:  # it is another user's; or another runner, which starts now too, has just removed it
                continue
            if lock is None:
                continue
            self._locks[place] = lock
            found += sorted(place.glob("*.jsonl"))
            if not any(place.glob("*.jsonl")):
                self._remove(place)
        self._segments.extendleft(reversed(found))
        return len(found)

    def append(self, ref: LeaseRef, lines: Sequence[bytes]) -> int:
        """Keep spans, the first ones of ``lines``; how many there was room for. They are on the disk when this returns."""
        fence = json.dumps(ref.model_dump()).encode()
        data: list[bytes] = []
        size = 0
        for line in lines:
            row = b'{"ref":' + fence + b',"span":' + redact(line) + b"}\n"
            if self.size + size + len(row) > self.limit:
                break
            data.append(row)
            size += len(row)
        if data:
            segment = self._writable()
            with segment.open("ab", buffering=0) as file:  # what a buffer holds after a failed write would be written all the same, later
                before = file.tell()
                try:
                    if file.write(b"".join(data)) < size:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):  # a part of it would come twice
                        file.truncate(before)
                    raise
            self.size += size
            self._written[segment].size += size
            self._written[segment].spans[ref] += len(data)
            if before + size >= SEGMENT:
                self._current = None
        return len(data)

    def oldest(self) -> Path | None:
        """The oldest file; nothing more is written to it."""
        if not self._segments:
            return None
        if self._segments[0] == self._current:
            self._current = None
        return self._segments[0]

    def drop(self, segment: Path, sent: Sequence[tuple[LeaseRef, list[bytes]]]) -> Counter[LeaseRef]:
        """What could be read of it has been ``sent``. Returns how many spans of ours were in it besides."""
        self._segments.remove(segment)
        written = self._written.pop(segment, _Written())
        self.size -= written.size
        with suppress(OSError):  # somebody has removed it
            segment.unlink()
        if segment.parent != self._own and not any(segment.parent.glob("*.jsonl")):
            self._remove(segment.parent)
        for ref, lines in sent:
            written.spans[ref] -= len(lines)
        return +written.spans

    def close(self) -> None:
        """Let go of the locks: what is left is for the next runner."""
        if self._own is not None and not any(self._own.glob("*.jsonl")):
            self._remove(self._own)
        for place in list(self._locks):
            self._unlock(place)

    def _writable(self) -> Path:
        if self._own is None:
            name = f"{os.getpid()}-{secrets.token_hex(6)}"
            new = self.directory / f"new-{name}"
            new.mkdir(0o700, parents=True)
            lock = _lock(new)  # before anybody who starts now could find it
            assert lock is not None, "a new directory is nobody's"
            self._own = new.rename(self.directory / f"runner-{name}")
            self._locks[self._own] = lock
        if self._current is None:
            self._numbers += 1
            new = self._own / f"{self._numbers:06}.jsonl"
            new.touch(0o600)
            self._segments.append(new)
            self._written[new] = _Written()
            self._current = new
        return self._current

    def _remove(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        self._unlock(place)

    def _unlock(self, place: Path) -> None:
        with suppress(OSError):  # an agent has closed it
            os.close(self._locks.pop(place))


def read(segment: Path) -> Iterator[tuple[LeaseRef, list[bytes]]]:
    """Spans by their fences. What a crash cut short is left out: it was never said to be kept."""
    by_ref: dict[LeaseRef, list[bytes]] = {}
    for row in segment.read_bytes().splitlines():
        try:
            said = json.loads(row)
            ref = LeaseRef(**said["ref"])
            line = json.dumps(said["span"]).encode()
        except (ValueError, KeyError, TypeError):
            continue
        by_ref.setdefault(ref, []).append(line)
    yield from by_ref.items()


def _lock(place: Path) -> int | None:
    """Hold the directory's lock; None where a live process does."""
    fd = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
