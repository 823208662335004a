"""``Algorithm``: what a ``Trainer`` runs against a store, a proxy and runners. Subclass it, and write ``run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.errors import UsageError

if TYPE_CHECKING:
    from leyden.algorithm.sft.report import Board
    from leyden.algorithm.sft.rundir import RunDir
    from leyden.proxy import LLMProxy
    from leyden.server.interface import Store
    from leyden.types import Resource


@dataclass(frozen=True)
class Context:
    """What a trainer hands to its algorithm. All of it is ready, and all of it is the trainer's to end."""

    run: RunDir
    board: Board
    store: Store
    store_url: str
    proxy: LLMProxy
    marker: str  # of every child process
    adapter: Any = None  # None: the algorithm's own
    initial_resources: Mapping[str, Resource] = field(default_factory=dict)


class Algorithm:
    """Turns what runners did into something better. ``run`` is its whole life; the parts it works with come from the trainer."""

    resumable: ClassVar[bool] = False
    """Whether ``run`` goes on where an earlier process stopped, given the same run directory and store."""

    _context: Context | None = None

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Any:
        """What to do; ``async def`` or a plain one, which gets a thread. ``Trainer.fit`` returns its result."""
        raise NotImplementedError(f"{type(self).__name__} has no `run`")

    def check(self, train_dataset: Any, val_dataset: Any) -> None:
        """Raise ``UsageError`` for whatever would stop ``run`` later. Called before anything is started."""

    def settings(self, train_dataset: Any, val_dataset: Any) -> dict[str, Any]:
        """What makes this run this run, as JSON: kept in its directory, and compared when a run goes on."""
        from leyden.algorithm.sft.steps import fingerprint

        tasks = fingerprint([as_list(train_dataset), as_list(val_dataset)])
        return {"algorithm": f"{type(self).__module__}.{type(self).__qualname__}", "tasks": tasks}

    def plan(self, train_dataset: Any, val_dataset: Any, tasks_from: str) -> dict[str, str]:
        """What ``run`` would do, as heading → line."""
        return {"algorithm": type(self).__name__, "tasks": f"{size(train_dataset)} to train, {size(val_dataset)} to validate"}

    def attach(self, context: Context | None) -> None:
        """The trainer's parts, for as long as it runs; None once they have ended."""
        self._context = context

    @property
    def context(self) -> Context:
        """Raises ``UsageError`` where no trainer runs it."""
        if self._context is None:
            raise UsageError(f"{type(self).__name__} has no store yet", "run it under a trainer: Trainer(algorithm=...).fit(agent, tasks)")
        return self._context

    def get_store(self) -> Any:
        """The trainer's ``Store``."""
        return self.context.store

    def get_llm_proxy(self) -> Any:
        """The trainer's ``LLMProxy``, started; its model list is the algorithm's to fill."""
        return self.context.proxy

    def get_adapter(self) -> Any:
        """The trainer's adapter, or ``GenerationsToTriplets``."""
        return self.context.adapter or GenerationsToTriplets()

    def get_initial_resources(self) -> Mapping[str, Resource]:
        """What the trainer was given as ``initial_resources``. They are the store's latest already."""
        return self.context.initial_resources


class FastAlgorithm(Algorithm):
    """One that ends within minutes and trains nothing: what ``Trainer.dev`` runs."""


def as_list(dataset: Any) -> list[Any]:
    """Every task of a dataset: None, an iterable, or anything with ``__len__`` and ``__getitem__``."""
    if dataset is None:
        return []
    if isinstance(dataset, Sequence) or hasattr(dataset, "__iter__"):
        return list(dataset)
    return [dataset[index] for index in range(len(dataset))]


def size(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") else len(as_list(dataset))
