"""A plain function beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Its result. In a daemon thread: who is cancelled does not wait for it, and neither does the process at its end."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return  # cancelled: nobody waits for it any more
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def call() -> None:
        value, error = None, None
        try:
            value = context.run(work)
        except BaseException as raised:  # carried over to whoever waits
            error = raised
        with suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, name="algorithm", daemon=True).start()
    return await result
