"""The recipe's ``Algorithm`` and ``@algo``: ours, with the recipe's store, proxy and adapter in hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from leyden.agentlightning.adapter import TracerTraceToTriplet
from leyden.agentlightning.proxy import LLMProxy
from leyden.agentlightning.store import LightningStore, LightningStoreClient
from leyden.algorithm import algorithm as ours
from leyden.trainer.threads import in_thread


class Algorithm(ours.Algorithm):
    """Subclass it and write ``run(self, train_dataset=None, val_dataset=None)``, async or not."""

    _store: LightningStore | None = None

    def get_store(self) -> LightningStore:
        """The trainer's store."""
        if self._store is None or self._store.url != self.context.store_url:
            self._store = LightningStoreClient(self.context.store_url)
        return self._store

    def get_llm_proxy(self) -> LLMProxy:
        """The trainer's proxy, started."""
        return LLMProxy.around(self.context.proxy, self.get_store())

    def get_adapter(self) -> Any:
        """The trainer's adapter; ``TracerTraceToTriplet`` unless it was given another."""
        return self.context.adapter or TracerTraceToTriplet()


class FunctionalAlgorithm(Algorithm):
    """A function as an algorithm. It gets those of the arguments below that it names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Any:
        offered = {
            "store": self.get_store,
            "llm_proxy": self.get_llm_proxy,
            "adapter": self.get_adapter,
            "initial_resources": self.get_initial_resources,
            "train_dataset": lambda: train_dataset,
            "val_dataset": lambda: val_dataset,
        }
        given = {name: offered[name]() for name in inspect.signature(self.function).parameters if name in offered}
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**given)
        return await in_thread(lambda: self.function(**given))


def algo(function: Callable[..., Any]) -> FunctionalAlgorithm:
    """Decorate ``async def algorithm(*, store, train_dataset, ...)``: an algorithm for ``Trainer(algorithm=...)``."""
    return FunctionalAlgorithm(function)
