"""The proxy in front of an engine, as the latest resources of a store while it lives: ``python deploy/proxy.py``.

LEYDEN_STORE, LEYDEN_TOKEN   the store, and a token with the scopes ingest and resources
LEYDEN_MODEL_DIR             a model directory, served here with vLLM or the embedded engine
LEYDEN_ENGINE_URL            or a server that serves it already (http://…/v1), by the name LEYDEN_SERVED_MODEL
LEYDEN_PROXY_PORT            on 127.0.0.1 (4748): agents live in the same network namespace (docker-compose.yml), or on this machine

Claims wait while it is away: nothing is given out for a model that does not answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.cli import reported
from leyden.errors import Unavailable, UsageError
from leyden.proxy import LLMProxy
from leyden.server.client import StoreClient

if TYPE_CHECKING:
    from leyden.models.engine import Engine

LEASE = 60.0  # seconds the resources outlive us, should we be killed
KEEP = 20.0
NAME = "policy"  # for agents


async def serve() -> int:
    """Returns the exit status, 128 and the signal's number. Raises ``Unavailable`` when the engine dies."""
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def stop(signum: int) -> None:
        if not stopped.done():
            stopped.set_result(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
    async with StoreClient(os.environ.get("LEYDEN_STORE", "http://127.0.0.1:4747")) as store, engine() as (url, model, died):
        proxy = LLMProxy(store, port=port())
        proxy.update_model_list([{
            "model_name": NAME,
            "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": url},
            "model_info": {"checkpoint": model},
        }])  # fmt: skip
        await proxy.start()
        try:
            resources = await store.add_resources({"main_llm": proxy.as_resource(NAME)}, lease_seconds=LEASE)
            print(f"proxy: {proxy.base_url}  model {model} at {url}  resources {resources.id}", file=sys.stderr, flush=True)
            keeping = asyncio.ensure_future(keep(store, resources.id))
            ends: set[asyncio.Future[Any]] = {stopped, died, keeping}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if died.done():
                    raise died.result()
                if keeping.done():
                    keeping.result()  # raises
            finally:
                keeping.cancel()
            await store.retire_resources(resources.id)
        finally:
            await proxy.stop()
    return 128 + stopped.result()


def port() -> int:
    text = os.environ.get("LEYDEN_PROXY_PORT", "4748")
    if not text.isdecimal() or int(text) > 65_535:
        raise UsageError(f"LEYDEN_PROXY_PORT is {text!r}, which is no port", "a number up to 65535; 0: any free one")
    return int(text)


async def keep(store: StoreClient, resources_id: str) -> None:
    while True:
        await asyncio.sleep(KEEP)
        await store.keep_resources(resources_id, LEASE)


@asynccontextmanager
async def engine() -> AsyncIterator[tuple[str, str, asyncio.Future[Unavailable]]]:
    """Its URL, the model's name there, and what is done once it has died."""
    if url := os.environ.get("LEYDEN_ENGINE_URL"):
        yield url, os.environ.get("LEYDEN_SERVED_MODEL", NAME), asyncio.get_running_loop().create_future()
        return
    if not (directory := os.environ.get("LEYDEN_MODEL_DIR")):
        raise UsageError("no model is named", "set LEYDEN_MODEL_DIR to a model directory, or LEYDEN_ENGINE_URL to a server's")
    served = engine_for(Path(directory))
    try:
        await served.start()
        death = asyncio.ensure_future(served.wait_death())
        yield served.base_url, served.model_name, death
        death.cancel()
    finally:
        await served.stop()


def engine_for(directory: Path) -> Engine:
    from leyden.models.engine_config import EngineConfig
    from leyden.models.engines import make_engine
    from leyden.models.importer import check_checkpoint
    from leyden.models.version import Manifest, Version
    from leyden.process import new_marker

    check_checkpoint(directory)
    version = Version(directory, Manifest(version=directory.resolve().name, files={}, created_at=0))
    return make_engine(EngineConfig(), version, version, log_path=None, marker=new_marker())


if __name__ == "__main__":
    sys.exit(reported(lambda: asyncio.run(serve())))
