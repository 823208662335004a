"""An ASGI app on a port of its own, in the event loop of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from leyden.ports import reserve_port


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An ASGI app on a free loopback port; yields its base URL."""
    socket = reserve_port("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[socket])  # without uvicorn's own loop, which stops only at its next tick
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        await server.shutdown(sockets=[socket])
