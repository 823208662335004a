"""The recipe's ``Trainer``, in front of ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from leyden.agentlightning.offered import NotOffered
from leyden.agentlightning.proxy import LLMProxy
from leyden.agentlightning.store import LightningStore
from leyden.algorithm.algorithm import Algorithm
from leyden.runners.agent import Agent
from leyden.runners.hooks import Hook
from leyden.runners.tracer import OtelTracer, Tracer
from leyden.server.client import StoreClient
from leyden.trainer import Trainer as OurTrainer
from leyden.types import Resource

NOT_OFFERED = {
    "runner": "runners are processes of one kind; n_runners and concurrency say how many",
    "strategy": "an agent that can be imported runs in processes, another one in a thread",
    "dev": "trainer.dev(agent, tasks)",
    "n_workers": "n_runners",
    "daemon": "every process ends with the trainer",
    "max_tasks": "max_rollouts",
    "triplet_exporter": "adapter",
}


class Trainer:
    """Starts whatever is not handed over and ends all of it. ``inner`` is ours; more of its options may be given by name."""

    def __init__(
        self,
        *,
        n_runners: int = 1,
        max_rollouts: int | None = None,
        initial_resources: Mapping[str, Resource] | None = None,
        tracer: Tracer | str | None = None,
        adapter: Any = None,
        store: LightningStore | StoreClient | str | None = None,
        port: int | None = None,
        algorithm: Algorithm | None = None,
        llm_proxy: LLMProxy | None = None,
        hooks: Hook | Sequence[Hook | type[Hook] | str] | None = None,
        concurrency: int = 1,
        **more: Any,
    ) -> None:
        for name in more:
            if name in NOT_OFFERED:
                raise NotOffered(f"Trainer({name}=...) is not offered", NOT_OFFERED[name])
        if tracer is None and importlib.util.find_spec("opentelemetry") and importlib.util.find_spec("opentelemetry.sdk"):
            tracer = OtelTracer()
        if store is None and llm_proxy is not None:
            store = llm_proxy.store
        self.llm_proxy = llm_proxy
        self.inner = OurTrainer(
            algorithm=algorithm,
            n_runners=n_runners,
            concurrency=concurrency,
            store=store.url if isinstance(store, LightningStore) else store,
            llm_proxy=llm_proxy.inner if llm_proxy else None,
            adapter=adapter,
            tracer=tracer,
            hooks=(hooks,) if isinstance(hooks, Hook) else tuple(hooks or ()),
            port=port,
            initial_resources=initial_resources,
            max_rollouts=max_rollouts,
            **more,
        )

    def fit(self, agent: Agent | str | None, train_dataset: Any = None, val_dataset: Any = None) -> Any:
        """Run the algorithm with runners for the agent; returns what ``run`` returns. Blocks."""
        return self.inner.fit(agent, train_dataset, val_dataset)

    def dev(self, agent: Agent | str | None, train_dataset: Any = None, val_dataset: Any = None) -> Any:
        """A quick run of a ``FastAlgorithm`` (default: ``Baseline``), which trains nothing."""
        return self.inner.dev(agent, train_dataset, val_dataset)
