"""Ctrl+C, and the death of a part: what ends a run from outside."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from leyden.algorithm.sft.report import Board
from leyden.errors import LeydenError
from leyden.process import find_by_marker

T = TypeVar("T")


class Interrupted(LeydenError):
    """Ctrl+C or SIGTERM; everything that was started has been ended."""

    code = "interrupted"

    def __init__(self, sig: signal.Signals) -> None:
        super().__init__("interrupted" if sig == signal.SIGINT else "terminated")
        self.exit_code = 128 + sig


async def interruptible(work: Coroutine[Any, Any, T], board: Board, marker: str) -> T:
    """Run the work. The first SIGINT or SIGTERM cancels it, and it cleans up; a second one ends everything at once."""
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def on_signal(sig: signal.Signals) -> None:
        received.append(sig)
        if len(received) == 1:
            board.say("stopping: ending the engine, the runners and the store (Ctrl+C again: at once)")
            task.cancel()
        else:
            for process in find_by_marker(marker):
                process.kill()
            os._exit(128 + sig)

    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, on_signal, sig)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None
    finally:
        for sig in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sig)


async def while_alive(work: Coroutine[Any, Any, T], needed: Coroutine[Any, Any, None]) -> T:
    """The work's result, unless what it needs fails first: then that error. A part that ends well is not missed."""
    working, watch = asyncio.ensure_future(work), asyncio.ensure_future(needed)
    try:
        await asyncio.wait({working, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watch.result()
        return await working
    finally:
        working.cancel()
        watch.cancel()
        await asyncio.wait({working, watch})
        for task in (working, watch):
            if not task.cancelled():
                task.exception()  # one of the two has been told; the other is its consequence, and no news
