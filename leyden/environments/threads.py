"""Code of the user's that is not async, kept off the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def is_async(call: Callable[..., Any]) -> bool:
    """An async function, or an object that is called like one."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


def takes(call: Callable[..., Any], arguments: int) -> bool:
    """It can be called with so many, in order. A builtin without a signature may be."""
    try:
        inspect.signature(call).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


async def in_thread(call: Callable[[], T], name: str) -> T:
    """In a daemon thread of its own: the loop's executor has few, and its threads keep the process from ending. Raises what it raises.

    Nothing can stop a thread: if this task is cancelled it is left behind, and what it gives is dropped.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def give(result: T) -> None:
        if not finished.done():
            finished.set_result(result)

    def fail(error: BaseException) -> None:
        if not finished.done():
            finished.set_exception(error)

    def work() -> None:
        with suppress(RuntimeError):  # the loop has closed: nobody waits for this any more
            try:
                result = context.run(call)
            except StopIteration as error:  # no future takes one
                loop.call_soon_threadsafe(fail, RuntimeError(f"StopIteration: {error}"))
            except BaseException as error:
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(give, result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await finished
