"""Listening: the store's service on a port, in this process, with a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path

import uvicorn

from leyden.errors import UsageError
from leyden.heap import heap_at_rest
from leyden.ports import reserve_port
from leyden.server.app import create_app
from leyden.server.sqlstore import SQLStore
from leyden.server.tokens import Token
from leyden.server.tokenstore import tokens_of
from leyden.server.wire import LOOPBACK_HOSTS

STOP_GRACE = 5  # seconds for requests in flight
# The writer thread and the event loop share the GIL: with the default 5 ms switch interval p99 was 2-3 times as long (measured).
SWITCH_INTERVAL = 0.0005


@dataclass(frozen=True)
class Listening:
    """Where a store listens. ``nonce`` is what its ``/health`` answers."""

    url: str
    port: int
    pid: int
    nonce: str
    database: str


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told_to_end = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield  # signals are the business of whoever called us

    async def main_loop(self) -> None:
        """uvicorn's own looks ten times a second whether it should end: a fifth of what an idle store does."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told_to_end.wait(), 1.0)  # the Date header has seconds

    def end(self) -> None:
        self.should_exit = True
        self._told_to_end.set()


@asynccontextmanager
async def listening(store: SQLStore, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Listening]:
    """Serve ``store`` on ``host:port`` (0: any free port) while the context is open; the store stays open.

    Raises ``UsageError`` for a port that is taken, and for an address beyond this machine while the store has no token.
    """
    if not _is_loopback(host):
        _check_asks(host, await store.list_tokens())
    with closing(reserve_port(host, port)) as sock:
        async with _serving(store, sock) as where:
            yield where


@asynccontextmanager
async def _serving(store: SQLStore, sock: socket.socket) -> AsyncIterator[Listening]:
    nonce = os.urandom(8).hex()
    hosts = LOOPBACK_HOSTS if _is_loopback(sock.getsockname()[0]) else None
    config = uvicorn.Config(
        create_app(store, nonce, hosts),
        log_config=None,  # whoever runs the process says where it goes (``logs``)
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=75,  # longer than a client's pause between two long polls
        timeout_graceful_shutdown=STOP_GRACE,
        backlog=1024,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([sock]))
    try:
        yield Listening(_url(sock), sock.getsockname()[1], os.getpid(), nonce, store.label)
    finally:
        await store.stop_waiting()
        server.end()
        await serving


async def serve(
    host: str,
    port: int,
    database: str | Path | None,
    ready: Callable[[Listening], None] = lambda where: None,
    ready_file: Path | None = None,
) -> signal.Signals:
    """Open ``database`` (None: a temporary file), serve it until SIGINT or SIGTERM, and return which of the two it was.

    Call it in the main thread. ``ready`` is told once it listens, and ``ready_file`` then holds the same as JSON. A second signal exits
    at once: everything acknowledged is on disk. Raises ``UsageError`` as ``listening`` does.
    """
    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def stop(signum: signal.Signals) -> None:
        if stopped.done():
            os._exit(128 + signum)
        stopped.set_result(signum)

    if not _is_loopback(host):
        _check_asks(host, await asyncio.to_thread(tokens_of, database))
    # The port before the database: one that is taken leaves no file behind.
    with closing(reserve_port(host, port)) as sock, heap_at_rest():
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
        sys.setswitchinterval(SWITCH_INTERVAL)
        async with await SQLStore.open(database) as store, _serving(store, sock) as where:
            if ready_file is not None:
                _write_whole(ready_file, json.dumps(asdict(where)))
            ready(where)
            return await stopped


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_asks(host: str, tokens: Sequence[Token]) -> None:
    if all(token.revoked_at is not None for token in tokens):
        raise UsageError(
            f"without a token the store listens on this machine only, not on {host}",
            "make one first: leyden token create NAME --scope admin; or reach it through a tunnel: ssh -L 4747:127.0.0.1:4747 MACHINE",
        )


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _write_whole(path: Path, text: str) -> None:
    """A reader sees nothing or all of it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)
