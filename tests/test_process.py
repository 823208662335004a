"""Real processes: each test starts some, ends some, and looks for what is left by the marker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processkit import eventually, logged, python, start_parent

from leyden.errors import Unavailable, UsageError
from leyden.process import (
    MARKER,
    PARENT_FD,
    child_env,
    find_by_marker,
    new_marker,
    spawn,
    wait_ready,
)  # fmt: skip

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
IGNORES_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
# A child of ours that starts a grandchild in a session of its own, as an MCP server or an engine's worker would be.
WITH_GRANDCHILD = """
import subprocess, sys, time
from leyden.process import watch_parent
watch_parent()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def test_output_goes_to_the_log_and_the_tail_is_this_childs_own(tmp_path: Path, marker: str) -> None:
    log = tmp_path / "logs" / "child.log"

    async def scenario() -> None:
        first = await spawn(python("print('one')"), marker=marker, log_path=log)
        assert await first.wait() == 0
        second = await spawn(python("import sys; print('two'); print('three', file=sys.stderr)"), marker=marker, log_path=log)
        await second.wait()
        assert sorted(second.tail().splitlines()) == ["three", "two"]
        assert len(second.tail(1).splitlines()) == 1
        await first.stop()
        await second.stop()

    asyncio.run(scenario())
    assert log.read_text().startswith("one\n")


def test_piped_stdout_is_a_stream_and_stderr_stays_in_the_log(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        code = "import sys; print('x' * 200_000); print('talk', file=sys.stderr)"
        child = await spawn(python(code), marker=marker, log_path=tmp_path / "log", stdout_pipe=True)
        assert child.stdout is not None
        assert len(await child.stdout.readline()) == 200_001
        assert await child.wait() == 0
        assert child.tail() == "talk"
        await child.stop()

    asyncio.run(scenario())


def test_stop_lets_the_child_end_in_good_order(tmp_path: Path, marker: str) -> None:
    code = """
    import time
    from leyden.process import watch_parent
    watch_parent()
    try:
        print("up", flush=True)
        time.sleep(600)
    finally:
        print("goodbye", flush=True)
    """

    async def scenario() -> None:
        child = await spawn(python(code), marker=marker, log_path=tmp_path / "log")
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        assert await child.stop() == 143
        assert child.tail(1) == "goodbye"
        assert await child.stop() == 143  # again is harmless

    asyncio.run(scenario())


def test_a_child_that_is_stopped_while_it_ends_keeps_its_exit_status(marker: str) -> None:
    async def scenario() -> int:
        child = await spawn(["/bin/sh", "-c", "exit 7"], marker=marker, stdout_pipe=True)
        assert child.stdout is not None
        await child.stdout.read()
        return await child.stop()

    # which comes first, the signal or the end, is chance: either answer is right, a lost one is not
    assert {asyncio.run(scenario()) for _ in range(60)} <= {7, -signal.SIGTERM}


def test_stop_kills_a_child_that_ignores_the_signal(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        child = await spawn(python(IGNORES_TERM), marker=marker, log_path=tmp_path / "log")
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        assert await child.stop(grace=0.1) == -signal.SIGKILL

    asyncio.run(scenario())


def test_a_cancelled_stop_kills_at_once(tmp_path: Path, marker: str) -> None:
    async def scenario() -> int:
        child = await spawn(python(IGNORES_TERM), marker=marker, log_path=tmp_path / "log")
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        stop = asyncio.create_task(child.stop(grace=600))
        await asyncio.sleep(0)
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        return await child.wait()

    assert asyncio.run(scenario()) == -signal.SIGKILL


def test_stop_ends_a_grandchild_in_its_own_session(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        child = await spawn(python(WITH_GRANDCHILD), marker=marker, log_path=tmp_path / "log")
        other = await spawn(SLEEP, marker=marker)
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        assert len(find_by_marker(child.marker)) == 2
        await child.stop()
        assert find_by_marker(child.marker) == []
        assert [process.pid for process in find_by_marker(marker)] == [other.pid], "a sibling was hit"
        await other.stop()

    asyncio.run(scenario())


def test_stop_ends_a_grandchild_whose_parent_is_already_dead(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        child = await spawn(python(WITH_GRANDCHILD), marker=marker, log_path=tmp_path / "log")
        await wait_ready(child, lambda: logged(child, "up"), 30, "the child")
        child.send_signal(signal.SIGKILL)
        await child.wait()
        assert len(find_by_marker(child.marker)) == 1
        await child.stop()
        assert find_by_marker(child.marker) == []

    asyncio.run(scenario())


SPAWNING_PARENT = f"""
import asyncio, os, signal, sys, time
from pathlib import Path
from leyden.process import find_by_marker, spawn
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in the background has it ignored
async def main():
    child = await spawn([sys.executable, "-c", {WITH_GRANDCHILD!r}], marker=os.environ["TEST_MARKER"], stdout_pipe=True)
    await child.stdout.readline()
    BEFORE_UP
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_and_grandchildren_end_with_their_parent(marker: str, sig: signal.Signals) -> None:
    parent = start_parent(marker, SPAWNING_PARENT.replace("BEFORE_UP", "pass"))
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    eventually(lambda: len(find_by_marker(marker)) == 2)  # a process between fork and exec has no environment to be found by
    parent.send_signal(sig)
    parent.communicate()
    eventually(lambda: find_by_marker(marker) == [])


def test_a_fork_of_the_parent_does_not_hold_the_child_alive(marker: str) -> None:
    parent = start_parent(marker, SPAWNING_PARENT.replace("BEFORE_UP", "if os.fork() == 0: time.sleep(600)"))
    assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
    (fork,) = [process for process in psutil.Process(parent.pid).children() if MARKER not in process.environ()]
    try:
        parent.kill()
        parent.wait()
        eventually(lambda: find_by_marker(marker) == [])
        assert fork.status() != psutil.STATUS_ZOMBIE
    finally:
        fork.kill()


def test_a_child_that_ends_by_itself_takes_its_descendants_along(tmp_path: Path, marker: str) -> None:
    async def scenario() -> None:
        code = WITH_GRANDCHILD.replace("time.sleep(600)\n", "sys.exit(3)\n")
        child = await spawn(python(code), marker=marker, log_path=tmp_path / "log")
        assert await child.wait() == 3
        assert find_by_marker(marker) == []
        await child.stop()

    asyncio.run(scenario())


def test_a_grandchild_gets_neither_the_pipe_nor_its_number(marker: str) -> None:
    code = f"""
    import os, subprocess, sys
    from leyden.process import watch_parent
    pipe = os.readlink("/proc/self/fd/" + os.environ[{PARENT_FD!r}])
    watch_parent()
    look = "import os, sys; links = []\\n"
    look += "for fd in os.listdir('/proc/self/fd'):\\n"
    look += "    try: links.append(os.readlink('/proc/self/fd/' + fd))\\n"
    look += "    except FileNotFoundError: pass\\n"
    look += "print(sys.argv[1] in links, {PARENT_FD!r} in os.environ)"
    subprocess.run([sys.executable, "-c", look, pipe], close_fds=False)
    """

    async def scenario() -> bytes:
        child = await spawn(python(code), marker=marker, stdout_pipe=True)
        assert child.stdout is not None
        line = await child.stdout.readline()
        await child.stop()
        return line

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    assert asyncio.run(scenario()) == b"False False\n"


ENDINGS = [("return 3", 3), ("return None", 0), ("sys.exit(143)", 143), ("sys.exit()", 0), ("1 / 0", 1)]


@pytest.mark.parametrize(("ending", "status"), ENDINGS)
def test_a_child_that_leaves_runs_its_exit_handlers_and_is_not_taken_apart(ending: str, status: int) -> None:
    code = f"""
    import atexit, sys
    from leyden.process import leave_after

    class Kept:
        def __del__(self):
            print("taken apart")

    kept = Kept()

    def main():
        atexit.register(print, "exit handler")
        print("done", end=" ")
        {ending}

    leave_after(main)
    """
    ended = subprocess.run(python(code), capture_output=True, text=True, check=False)
    assert ended.returncode == status
    assert ended.stdout == ("done exit handler\n" if status != 1 else "done exit handler\ntaken apart\n")
    assert ("ZeroDivisionError" in ended.stderr) is (status == 1)


def test_a_child_that_leaves_with_a_text_says_it() -> None:
    code = "import sys; from leyden.process import leave_after; leave_after(lambda: sys.exit('no disk'))"
    ended = subprocess.run(python(code), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "no disk\n")


def test_watch_parent_does_nothing_outside_a_child() -> None:
    code = "import signal, threading; from leyden.process import watch_parent; watch_parent(); print(threading.active_count())"
    env = {name: value for name, value in os.environ.items() if name != PARENT_FD}
    assert subprocess.run(python(code), env=env, capture_output=True, check=True).stdout == b"1\n"


def test_a_child_gets_no_ambient_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ["OPENAI_API_KEY", "HF_TOKEN", "AWS_PROFILE", "PGPASSWORD", "my_secret", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK"]
    harmless = ["TOKENIZERS_PARALLELISM", "HF_HOME", "KEYBOARD", "OMP_NUM_THREADS"]
    for name in secret + harmless:
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:pw@db/leyden")
    monkeypatch.setenv("PLAIN_URL", "http://127.0.0.1:4747/v1")
    env = child_env("m", {"OPENAI_API_KEY": "the attempt's own"})
    assert [name for name in [*secret, "DATABASE_URL"] if name in env] == ["OPENAI_API_KEY"]
    assert env["OPENAI_API_KEY"] == "the attempt's own"
    assert all(name in env for name in [*harmless, "PLAIN_URL"])
    assert env[MARKER] == "m"


def test_markers_nest_and_do_not_match_by_mere_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER, "outer")
    assert new_marker().startswith("outer/")

    async def scenario() -> None:
        child = await spawn(SLEEP, marker="abcdef")
        assert find_by_marker("abc") == []
        assert len(find_by_marker("abcdef")) == 1
        await child.stop()

    asyncio.run(scenario())


def test_a_program_that_is_not_there_is_a_usage_error(tmp_path: Path, marker: str) -> None:
    with pytest.raises(UsageError, match="cannot start /no/such/python"):
        asyncio.run(spawn(["/no/such/python"], marker=marker, log_path=tmp_path / "log"))


def test_a_child_that_dies_while_starting_is_reported_with_its_last_words(tmp_path: Path, marker: str) -> None:
    async def never() -> bool:
        await asyncio.sleep(600)
        return True

    async def scenario() -> None:
        child = await spawn(python("raise SystemExit('no memory left')"), marker=marker, log_path=tmp_path / "log")
        try:
            await wait_ready(child, never, 600, "the engine")
        finally:
            await child.stop()

    with pytest.raises(Unavailable, match=r"the engine died while starting \(exit status 1\)") as caught:
        asyncio.run(scenario())
    assert "no memory left" in (caught.value.hint or "")


def test_a_child_that_never_gets_ready_is_reported_after_the_timeout(marker: str) -> None:
    async def no() -> bool:
        return False

    async def scenario() -> None:
        child = await spawn(SLEEP, marker=marker)
        try:
            await wait_ready(child, no, 0.2, "the engine")
        finally:
            await child.stop()

    with pytest.raises(Unavailable, match=r"the engine was not ready within 0\.2 s"):
        asyncio.run(scenario())
