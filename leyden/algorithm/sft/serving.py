"""One version at a time behind the proxy: its engine, its place in the model list, and the resources lent to runners."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from leyden.algorithm.sft.driver import Driver

if TYPE_CHECKING:
    from leyden.models.engine import Engine
    from leyden.proxy import LLMProxy

DRAIN = 30.0  # seconds that calls in flight get before another version takes their engine's place

MakeEngine = Callable[[Path, str], "Engine"]
"""(model directory, version) → an engine that is not started yet."""


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

    async def start(self, version: str, model_dir: Path) -> None:
        await self.stop(drain=DRAIN)
        engine = self._make_engine(model_dir, version)
        self._engine = engine  # from here on, ours to stop
        await engine.start()
        self._proxy.update_model_list(
            [
                {
                    "model_name": engine.model_name,
                    "litellm_params": {"model": f"hosted_vllm/{engine.model_name}", "api_base": engine.base_url},
                    "model_info": {"id": self._deployment(version), "checkpoint": version},
                }
            ]
        )
        self.version = version

    async def resources(self, temperature: float) -> str:
        """The id of the resources that pin a rollout to this version at this temperature."""
        if self._engine is None:
            raise RuntimeError("nothing is served")
        if temperature not in self._lent:
            sampling = {"temperature": temperature, "max_tokens": self._max_tokens}
            llm = self._proxy.as_resource(self._engine.model_name, sampling)
            self._lent[temperature] = await self._driver.lend({"main_llm": llm})
        return self._lent[temperature]

    async def stop(self, drain: float = 0.0) -> None:
        """Take the resources back, give calls in flight ``drain`` seconds to end, stop the engine. Safe to call twice."""
        engine, version = self._engine, self.version
        if engine is None:
            return
        try:
            if version is not None:
                while self._lent:
                    await self._driver.take_back(self._lent.popitem()[1])
                self._proxy.update_model_list([])
                await self._proxy.drain(self._deployment(version), drain)
        finally:
            self._engine = self.version = None
            await engine.stop()

    def _deployment(self, version: str) -> str:
        return f"{self._driver.run_id}-{version}"
