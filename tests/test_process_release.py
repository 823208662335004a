"""A child that loads what it needs and then waits until it is told to go on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from processkit import eventually, logged, python, start_parent

from leyden.process import find_by_marker, spawn, wait_ready

WAITS = """
import time
from leyden.process import wait_for_release, watch_parent
watch_parent()
print("up", flush=True)
wait_for_release()
print("released", flush=True)
"""


def test_a_child_that_waits_for_its_release_goes_on_when_it_is_told_to(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        child = await spawn(python(WAITS), marker=marker, log_path=tmp_path / "log")
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        assert child.returncode is None and "released" not in child.tail()
        child.release()
        assert await child.wait() == 0
        assert child.tail(1) == "released"
        child.release()  # the dead do not mind
        await child.stop()

    asyncio.run(scenario())


def test_a_release_before_the_child_waits_is_not_lost(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        child = await spawn(python(WAITS), marker=marker, log_path=tmp_path / "log")
        child.release()
        assert await child.wait() == 0
        await child.stop()

    asyncio.run(scenario())


def test_a_child_that_waits_for_its_release_ends_when_it_is_stopped_and_with_its_parent(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        child = await spawn(python(WAITS), marker=marker, log_path=tmp_path / "log")
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        assert await child.stop() == 128 + signal.SIGTERM

    asyncio.run(scenario())
    code = f"""
    import asyncio, os, sys
    from leyden.process import spawn
    async def go():
        await spawn([sys.executable, "-c", {WAITS!r}], marker=os.environ["TEST_MARKER"])
        print("up", flush=True)
        await asyncio.sleep(600)
    asyncio.run(go())
    """
    parent = start_parent(marker, code)
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not find_by_marker(marker))
