"""One version at a time behind the proxy: its engine, its place in the model list, and the resources lent to runners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from leyden.algorithm.sft.driver import Driver, one_error
from leyden.errors import Unavailable

if TYPE_CHECKING:
    from leyden.models.engine import Engine
    from leyden.models.registry import Version
    from leyden.proxy import LLMProxy

DRAIN = 30.0  # seconds that calls in flight get before another version takes their engine's place


class MakeEngine(Protocol):
    """Whoever makes engines, and may begin with one before its version is there."""

    def __call__(self, version: Version) -> Engine:
        """One for this version that is not started yet."""
        ...

    async def prepare(self, name: str) -> None:
        """The version of that name will be served next."""
        ...


T = TypeVar("T")


class EngineDied(Unavailable):
    """Nobody stopped it, or it never came up. The hint holds the end of its log."""


class Serving:
    """Serves the version it was last told to. Stop it however the run ends."""

    def __init__(self, proxy: LLMProxy, driver: Driver, make_engine: MakeEngine, max_tokens: int) -> None:
        self.version: str | None = None
        self._proxy = proxy
        self._driver = driver
        self._make_engine = make_engine
        self._max_tokens = max_tokens
        self._engine: Engine | None = None
        self._lent: dict[float, str] = {}

    async def start(self, version: Version) -> None:
        """Serve this version and no other, once calls in flight have ended or had ``DRAIN`` seconds.

        Raises ``EngineDied`` for an engine that does not come up.
        """
        await self._driver.check()
        if self._engine is not None and self._engine.can_switch:
            await self._withdraw(DRAIN)
            await self._engine.switch(version)
        else:
            await self.stop(drain=DRAIN)
            self._engine = self._make_engine(version)  # from here on, ours to stop
            try:
                await self._engine.start()
            except Unavailable as error:
                await self.stop()
                raise EngineDied(error.message, error.hint) from error
        engine = self._engine
        self._proxy.update_model_list(
            [
                {
                    "model_name": engine.model_name,
                    "litellm_params": {"model": f"hosted_vllm/{engine.model_name}", "api_base": engine.base_url},
                    "model_info": {"id": self._deployment(version.name), "checkpoint": version.name, "exact": engine.exact},
                }
            ]
        )
        self.version = version.name

    async def resources(self, temperature: float) -> str:
        """The id of the resources that pin a rollout to this version at this temperature."""
        if self._engine is None:
            raise RuntimeError("nothing is served")
        if temperature not in self._lent:
            sampling = {"temperature": temperature, "max_tokens": self._max_tokens}
            llm = self._proxy.as_resource(self._engine.model_name, sampling)
            self._lent[temperature] = await self._driver.lend({"main_llm": llm})
        return self._lent[temperature]

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. If the engine dies first, the work is cancelled, nothing is lent any more, and ``EngineDied`` raised."""
        if self._engine is None:
            raise RuntimeError("nothing is served")
        working, death = asyncio.ensure_future(work), asyncio.ensure_future(self._engine.wait_death())
        try:
            await asyncio.wait({working, death}, return_when=asyncio.FIRST_COMPLETED)
            if not death.done() or (working.done() and not working.exception()):
                return working.result()
        finally:
            await _end(working)
            await _end(death)
        error = death.result()
        await self.stop()
        raise EngineDied(error.message, error.hint)

    async def stop(self, drain: float = 0.0) -> None:
        """Take the resources back, give calls in flight ``drain`` seconds to end, stop the engine. Safe to call twice."""
        engine = self._engine
        if engine is None:
            return
        try:
            await self._withdraw(drain)
        finally:
            self._engine = self.version = None
            await engine.stop()

    async def _withdraw(self, drain: float) -> None:
        version, self.version = self.version, None
        if version is None:
            return
        while self._lent:
            await self._driver.take_back(self._lent.popitem()[1])
        self._proxy.update_model_list([])
        await self._proxy.drain(self._deployment(version), drain)

    def _deployment(self, version: str) -> str:
        return f"{self._driver.run_id}-{version}"


@asynccontextmanager
async def living(engine: Engine) -> AsyncIterator[None]:
    """A block that lasts as long as the engine: cancelled at its death, it ends with ``EngineDied``."""

    async def watch() -> NoReturn:
        error = await engine.wait_death()
        raise EngineDied(error.message, error.hint)

    with one_error():
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            yield
            watching.cancel()


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel it where it still runs, and see it end."""
    task.cancel()
    await asyncio.wait({task})
