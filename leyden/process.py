"""Child processes that never outlive us.

Three nets, because each one has holes. A *death pipe*: the child holds the read end of a pipe whose only write end is ours, so it sees
end-of-file when we are gone, SIGKILL included. (A parent-death signal would follow the thread that made the child, and is Linux only.)
A *session of its own*: stopping a child can kill its whole process group. A *marker* in the environment, inherited by everything that
descends from the child, MCP servers and engine workers in sessions of their own included: what still carries it after a stop is ended.

Markers nest: ``run/child/grandchild``; ending one ends all below it. Each part begins with the id of the process that made it, so that
what has outlived one of its makers can be told (``leyden doctor``).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from leyden.errors import Unavailable, UsageError

MARKER = "LEYDEN_MARKER"
PARENT_FD = "LEYDEN_PARENT_FD"

_SECRET_WORDS = {"KEY", "APIKEY", "TOKEN", "SECRET", "SECRETS", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
_SECRET_PREFIXES = ("AWS_", "AZURE_", "OPENAI_", "ANTHROPIC_")
_URL_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_LINE_LIMIT = 1 << 20  # bytes in one line of a piped child
_TAIL_BYTES = 1 << 16


def new_marker() -> str:
    """A marker no other process carries; below our own where we are a child ourselves."""
    own = os.environ.get(MARKER)
    fresh = f"{os.getpid()}-{secrets.token_hex(6)}"
    return f"{own}/{fresh}" if own else fresh


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable of the environment must not reach a child.

    Left out are: names with PASSWORD in them, or one of the words KEY, APIKEY, TOKEN, SECRET, PASSWD, CREDENTIAL(S) between
    underscores (``HF_TOKEN``, ``WANDB_API_KEY``, not ``TOKENIZERS_PARALLELISM``); names that begin with AWS_, AZURE_, OPENAI_,
    ANTHROPIC_; SSH_AUTH_SOCK; and any value that holds a URL with a password.
    """
    upper = name.upper()
    return (
        "PASSWORD" in upper
        or upper == "SSH_AUTH_SOCK"
        or upper.startswith(_SECRET_PREFIXES)
        or not _SECRET_WORDS.isdisjoint(upper.split("_"))
        or _URL_WITH_PASSWORD.search(value) is not None
    )


def child_env(marker: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without secrets (see ``is_secret``), with the marker. ``extra`` is added as it is, secrets included."""
    env = {name: value for name, value in os.environ.items() if not is_secret(name, value) and name != PARENT_FD}
    # setproctitle (vLLM's workers use it) writes over the environment that /proc shows, and the marker with it, unless told not to.
    return env | {"SPT_NOENV": "1"} | dict(extra or {}) | {MARKER: marker}


class Child:
    """A process started by ``spawn``. ``stdout`` is its stream where it was spawned with ``stdout_pipe``."""

    def __init__(self, process: asyncio.subprocess.Process, marker: str, log_path: Path | None, log_start: int, death_pipe: int) -> None:
        self.marker = marker
        self.log_path = log_path
        self.stdout = process.stdout
        self.digest: Callable[[list[str]], list[str]] = lambda lines: lines[-20:]  # what of its log's last lines an error shows
        self._process = process
        self._log_start = log_start
        self._death_pipe: int | None = death_pipe

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; ``-N`` for a death by signal N; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def tail(self, n: int = 20) -> str:
        """The last ``n`` lines that this child wrote to its log; empty without a log."""
        if self.log_path is None:
            return ""
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-n:])

    def send_signal(self, sig: int = signal.SIGTERM) -> None:
        """Signal the child alone: what it started is its own to end, so that it can finish its work in good order."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)  # Popen.send_signal may reap the child before asyncio does, and its exit status is then lost

    def release(self) -> None:
        """Let a child go on that waits in ``wait_for_release``."""
        if self._death_pipe is not None:
            with suppress(BrokenPipeError):  # it is dead: whoever waits for what it does learns that
                os.write(self._death_pipe, b"\n")

    async def stop(self, grace: float = 10.0, sig: int = signal.SIGTERM) -> int:
        """Signal the child, kill its process group after ``grace`` seconds, then end all that still carries its marker.

        Returns the child's exit status. Safe to call twice. A cancelled stop kills at once.
        """
        self.send_signal(sig)
        try:
            await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            pass
        finally:
            if self.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._release_pipe()
        await asyncio.to_thread(end_leftovers, self.marker)
        return await self.wait()

    def _release_pipe(self) -> None:
        if self._death_pipe is not None:
            _death_pipes.discard(self._death_pipe)
            os.close(self._death_pipe)
            self._death_pipe = None


async def spawn(
    args: Sequence[str],
    *,
    marker: str,
    log_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout_pipe: bool = False,
    cwd: Path | None = None,
) -> Child:
    """Start ``args`` in a session of its own, under ``marker``, held by a death pipe (see ``watch_parent``).

    Output is appended to ``log_path``, or goes to our stderr without one; ``stdout_pipe`` keeps stdout apart, as ``Child.stdout``.
    ``env`` is added to ``child_env``. Stdin is empty. Raises ``UsageError`` for a program that cannot be started.
    """
    own_marker = f"{marker}/{os.getpid()}-{secrets.token_hex(4)}"
    read_end, write_end = os.pipe()
    _death_pipes.add(write_end)
    try:
        with _open_log(log_path) as (log, log_start):
            process = await asyncio.create_subprocess_exec(
                *args,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if stdout_pipe else log,
                stderr=log,
                env=child_env(own_marker, env) | {PARENT_FD: str(read_end)},
                cwd=cwd,
                pass_fds=(read_end,),
                start_new_session=True,
                limit=_LINE_LIMIT,
            )
    except BaseException as error:
        _death_pipes.discard(write_end)
        os.close(write_end)
        if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
            raise UsageError(f"cannot start {args[0]}: {error.strerror}: {error.filename}") from error
        raise
    finally:
        os.close(read_end)
    return Child(process, own_marker, log_path, log_start, write_end)


@contextmanager
def _open_log(path: Path | None) -> Iterator[tuple[int, int]]:
    """A descriptor to write to, and where this child's part of the file begins."""
    if path is None:
        yield 2, 0
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        yield log.fileno(), log.tell()


# -- in the child ----------------------------------------------------------------------------------------------------------


def watch_parent(grace: float = 10.0) -> None:
    """End this process when its parent is gone. Call it first, in the main thread; does nothing in a process that ``spawn`` did not start.

    At the parent's end this process gets SIGTERM, and ``grace`` seconds later it exits hard. Unless the caller handles SIGTERM itself,
    it unwinds like ``sys.exit(143)``. On every way out, all that this process started is ended with it.
    """
    fd_text = os.environ.pop(PARENT_FD, None)  # what we start must not take our pipe for its own
    if fd_text is None:
        _released.set()
        return
    fd, marker, pid = int(fd_text), os.environ[MARKER], os.getpid()
    os.set_inheritable(fd, False)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_terminated)

    def end_descendants() -> None:
        if os.getpid() == pid:  # a fork of us runs our exit handlers as well
            end_leftovers(marker)

    def wait_for_end() -> None:
        while os.read(fd, 1):  # until end-of-file
            _released.set()
        os.kill(pid, signal.SIGTERM)
        time.sleep(grace)
        end_descendants()
        os._exit(128 + signal.SIGTERM)

    atexit.register(end_descendants)
    threading.Thread(target=wait_for_end, name="watch-parent", daemon=True).start()


def wait_for_release() -> None:
    """Return once our parent says so (``Child.release``): a child that is started before there is something to do has loaded its libraries
    by then. Call it in the main thread, after ``watch_parent``; in a process that ``spawn`` did not start it returns at once."""
    _released.wait()


def _exit_terminated(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)


def leave_after(main: Callable[[], int | None]) -> NoReturn:
    """Run ``main`` and end this process with the status that it returns (None is 0) or exits with. The last line of a child's module.

    Exit handlers run and what was printed is flushed, but the interpreter is not taken apart: that takes a second where torch is loaded,
    in which whoever waits for this process waits for nothing. No thread is joined that ``main`` has not joined.
    """
    try:
        status = main() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


_released = threading.Event()
_death_pipes: set[int] = set()


def _close_death_pipes() -> None:
    """A fork that never calls exec would hold our children's pipes open after our death."""
    for fd in _death_pipes:
        os.close(fd)
    _death_pipes.clear()


os.register_at_fork(after_in_child=_close_death_pipes)


# -- by marker -------------------------------------------------------------------------------------------------------------


def find_by_marker(marker: str) -> list[psutil.Process]:
    """All live processes that carry ``marker`` or one below it, this process excepted. Sees only processes of our own user."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            value = process.environ().get(MARKER, "")
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, a zombie, or another user's
            continue
        if value == marker or value.startswith(marker + "/"):
            found.append(process)
    return found


def end_leftovers(marker: str, grace: float = 2.0) -> int:
    """End every process under ``marker``: SIGTERM, and SIGKILL after ``grace`` seconds. Returns how many there were.

    Raises ``Unavailable`` for a process that even SIGKILL does not end (stuck in a driver).
    """
    ended = 0
    for _ in range(5):  # more than once: one may have started another while we looked
        leftovers = find_by_marker(marker)
        if not leftovers:
            return ended
        for process in leftovers:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in _still_alive(leftovers, grace):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _still_alive(leftovers, grace)
        ended += len(leftovers)
    pids = ", ".join(str(process.pid) for process in leftovers)
    raise Unavailable(f"cannot end process {pids}", f"see what holds it: ps -o pid,stat,wchan,args -p {pids.replace(' ', '')}")


def _still_alive(processes: list[psutil.Process], timeout: float) -> list[psutil.Process]:
    """Those that have not ended after ``timeout`` seconds. An orphan's zombie has: the init process of a container may never reap it."""

    def lives(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    deadline = time.monotonic() + timeout
    while (alive := [process for process in processes if lives(process)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


# -- readiness -----------------------------------------------------------------------------------------------------------


async def wait_ready(child: Child, probe: Callable[[], Awaitable[bool]], timeout: float, what: str) -> None:
    """Call ``probe`` until it is true: False means "not yet", an exception means "never" and is passed on.

    Raises ``Unavailable``, with the last lines of the child's log in its hint, as soon as the child dies, or after ``timeout`` seconds.
    The child is the caller's to stop.
    """
    deadline = time.monotonic() + timeout
    death = asyncio.ensure_future(child.wait())
    pause = 0.02
    try:
        while (left := deadline - time.monotonic()) > 0:
            if await _unless(death, probe(), left):
                return
            pause = min(pause * 1.5, 0.2)
            await asyncio.wait({death}, timeout=min(pause, left))
            if death.done():
                raise Unavailable(f"{what} died while starting ({_describe(death.result())})", _log_hint(child))
        raise Unavailable(f"{what} was not ready within {timeout:g} s", _log_hint(child))
    finally:
        death.cancel()


async def _unless(death: asyncio.Future[int], probe: Awaitable[bool], timeout: float) -> bool:
    """The probe's answer; False if the child dies or the time runs out first."""
    answer: asyncio.Future[Any] = asyncio.ensure_future(probe)
    try:
        await asyncio.wait({answer, death}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else False
    finally:
        answer.cancel()


def died(child: Child, what: str) -> Unavailable:
    """The error that a child's unexpected end is, with the last lines of its log. The child must have ended."""
    assert child.returncode is not None
    return Unavailable(f"{what} died ({_describe(child.returncode)})", _log_hint(child))


def _describe(returncode: int) -> str:
    return f"exit status {returncode}" if returncode >= 0 else f"killed by {signal.Signals(-returncode).name}"


def _log_hint(child: Child) -> str | None:
    if child.log_path is None:
        return None
    lines = "\n".join(child.digest(child.tail(_TAIL_BYTES).splitlines()))
    return f"last lines of {child.log_path}:\n{lines}"
