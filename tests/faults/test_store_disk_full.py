"""A disk that is full under load, and has room again: what was acknowledged is there, and the store goes on by itself."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_history import Outcome
from store_invariants import check_invariants
from store_load import Load, drain
from store_process import StoreProcess, until
from store_room import SCALE, Room

from leyden.server.client import StoreClient

pytestmark = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)

TIMES = 5
ACKNOWLEDGED = 40  # calls between two times
REFUSED = 10  # calls each time


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode != 0:
        pytest.skip(f"a small file system needs root: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk(room: Room, disk: Path) -> None:
    room.database = str(disk / "store.db")

    async def scenario() -> None:
        async with room.store() as store:
            await run_out(room, store, lambda: fill(disk), lambda: (disk / "filler").unlink())
        check_invariants(room.history, room.database)

    room.run(scenario())


def test_files_that_may_not_grow(room: Room) -> None:
    """The same by a limit on the size of files, which needs no root: writes fail in another place, with another error."""

    async def scenario() -> None:
        async with room.store() as store:
            await run_out(room, store, lambda: limit(store, 0), lambda: limit(store, resource.RLIM_INFINITY))
        check_invariants(room.history, room.database)

    room.run(scenario())


def test_a_store_that_is_started_on_a_full_disk_says_so_and_harms_nothing(room: Room, disk: Path) -> None:
    room.database = str(disk / "store.db")

    async def scenario() -> None:
        async with room.store() as store:
            async with Load([store.url], room.history) as load:
                await load.until_acknowledged(ACKNOWLEDGED)
                for _ in range(TIMES * SCALE):
                    fill(disk)
                    store.kill()
                    store.launch()
                    await until(lambda: not store.alive or store.listens, "it ends, or starts all the same", store.said)
                    (disk / "filler").unlink()
                    if not store.alive:
                        await store.start()
                    await load.until_acknowledged(ACKNOWLEDGED)
            await drain(store.url, room.history)
            store.stop()
        check_invariants(room.history, room.database)
        assert "Traceback" not in store.said()

    room.run(scenario())


async def run_out(room: Room, store: StoreProcess, exhaust: Callable[[], None], restore: Callable[[], None]) -> None:
    """Under load, again and again; ends with the store drained and stopped."""
    async with Load([store.url], room.history) as load, StoreClient(store.url) as reader:
        for _ in range(TIMES * SCALE):
            await load.until_acknowledged(ACKNOWLEDGED)
            exhaust()
            try:
                seen = len(room.history.events)
                await until(lambda: unknown_since(room, seen) >= REFUSED, "writes are refused", store.said)  # noqa: B023
                await reader.count()  # reading goes on
            finally:
                restore()
        await load.until_acknowledged(ACKNOWLEDGED)
    await drain(store.url, room.history)
    store.stop()


def unknown_since(room: Room, seen: int) -> int:
    return sum(event.outcome is Outcome.UNKNOWN for event in room.history.events[seen:])


def fill(disk: Path) -> None:
    """Take all there is."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 20, 4096, 1):
            try:
                while os.statvfs(disk).f_bavail:
                    filler.write(b"\0" * size)
            except OSError:
                continue


def limit(store: StoreProcess, size: int) -> None:
    """In bytes; what is longer already may be written within, not beyond."""
    _, hard = resource.prlimit(store.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(store.pid, resource.RLIMIT_FSIZE, (size, hard))
