"""``SFT``: the loop of ``loop.py`` as an algorithm that a ``Trainer`` runs."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leyden.algorithm.algorithm import Algorithm, FastAlgorithm, as_list
from leyden.algorithm.baseline import Baseline
from leyden.algorithm.sft.ahead import TrainerAhead
from leyden.algorithm.sft.cost import IMPORT
from leyden.algorithm.sft.engines import Engines
from leyden.algorithm.sft.interpreter import resolve_backend
from leyden.algorithm.sft.loop import run_sft
from leyden.algorithm.sft.phases import Parts
from leyden.algorithm.sft.plan import describe_plan
from leyden.algorithm.sft.rundir import RunDir
from leyden.algorithm.sft.serving import living
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import Summary
from leyden.algorithm.sft.tasks import LoopTask, check_disjoint, leave_out_leaks, number_tasks
from leyden.errors import MissingExtra, UsageError
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import choose
from leyden.models.importer import import_in_child, model_directory, names_a_path
from leyden.models.registry import Registry, check_model_dir
from leyden.process import new_marker
from leyden.types import LLM

LOOP_EXTRA = ("torch", "transformers", "peft", "datasets")
TRAIN_EXTRA = ("torch", "transformers", "trl", "peft", "datasets", "accelerate")


@dataclass
class SFT(Algorithm):
    """Serve, collect, select, train, verify, evaluate, promote.

    ``model``: a model directory, a source that ``import_model`` knows (imported once into ``models``), or a hub name.
    """

    resumable = True

    config: SFTConfig = field(default_factory=SFTConfig)
    model: str = "smollm2"
    engine: EngineConfig = field(default_factory=EngineConfig)
    models: Path = Path("models")
    regression_dataset: Any = None  # tasks of another kind for the same agent: measured once a version, which must not be worse at them

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Summary:
        """Improve the model on ``train_dataset``, judged on ``val_dataset``: JSON tasks, none of them in both."""
        context = self.context
        registry = Registry(context.run.models)

        def next_log() -> Path:
            return context.run.log(f"train-{registry.next_name}")

        async with (
            Engines(self.engine, registry, context.run.log, context.marker) as engines,
            TrainerAhead(self.config.train, next_log, context.marker) as trainer,
        ):
            await self._first_version(registry, engines)
            train, heldout = self._tasks(train_dataset, val_dataset)
            parts = Parts(context.run, context.board, context.store, context.proxy, registry, engines, trainer, context.marker)
            return await run_sft(parts, self.config, train, heldout, self._regression)

    def _tasks(self, train_dataset: Any, val_dataset: Any) -> tuple[list[LoopTask], list[LoopTask]]:
        """To learn from, and held out. Says which of the former are left out."""
        train, heldout = number_tasks(as_list(train_dataset)), number_tasks(as_list(val_dataset))
        train, leakage = leave_out_leaks(train, [*heldout, *self._regression])
        if leakage.leaks:
            first = leakage.leaks[0]
            self.context.board.say(
                f"{len(leakage.leaks)} tasks are not learnt from, for they are nearly held-out ones: "
                f"{first.train_text!r} beside {first.eval_text!r} ({first.kind})"
            )
        return train, heldout

    def check(self, train_dataset: Any, val_dataset: Any) -> None:
        """Raises ``UsageError`` for tasks, a model, an engine or an environment that cannot do."""
        elsewhere = self.config.train.python is not None  # what trains is there; the rest of the loop is here
        for module in LOOP_EXTRA if elsewhere else TRAIN_EXTRA:
            if importlib.util.find_spec(module) is None:
                raise MissingExtra(module, "train")
        train, heldout = number_tasks(as_list(train_dataset)), number_tasks(as_list(val_dataset))
        if not train:
            raise UsageError("there are no tasks to learn from", "give at least one")
        check_disjoint(train, [*heldout, *self._regression])
        leave_out_leaks(train, [*heldout, *self._regression])
        self._check_serving()
        if elsewhere or self.config.train.backend == "unsloth":
            asyncio.run(resolve_backend(self.config.train, marker=new_marker()))

    def settings(self, train_dataset: Any, val_dataset: Any) -> dict[str, Any]:
        """The model, the configuration, and the ids of all tasks."""
        return {
            "algorithm": "sft",
            "model": str(self.model_dir),
            "train_tasks": [task.id for task in number_tasks(as_list(train_dataset))],
            "heldout_tasks": [task.id for task in number_tasks(as_list(val_dataset))],
            "regression_tasks": [task.id for task in self._regression],
            "sft": self.config.model_dump(mode="json"),
            "engine": self.engine.model_dump(mode="json"),
        }

    def plan(self, train_dataset: Any, val_dataset: Any, tasks_from: str) -> dict[str, str]:
        """What ``run`` would do, as heading → line."""
        there = self.model_dir
        model = f"{there}" if there.exists() else f"{self.model}, to be imported into {there}"
        return describe_plan(
            self.config,
            model=model,
            train=len(as_list(train_dataset)),
            heldout=len(as_list(val_dataset)),
            regression=len(self._regression),
            tasks_from=tasks_from,
            engine=str(choose(self.engine)),
        )

    def fast(self) -> FastAlgorithm:
        """One pass of the model as it is over some tasks. Raises ``UsageError`` for a model or an engine that cannot do."""
        self._check_serving()
        return Baseline(serve=self._serving)

    def _check_serving(self) -> None:
        if self.model_dir.exists() or names_a_path(self.model, self.models):
            check_model_dir(self.model_dir)
        choose(self.engine)

    @asynccontextmanager
    async def _serving(self, baseline: Baseline) -> AsyncIterator[LLM]:
        """The champion behind the proxy while the block lasts, which ends with ``EngineDied`` if the engine does."""
        context = self._context = baseline.context
        registry = Registry(context.run.models)
        async with Engines(self.engine, registry, context.run.log, context.marker) as engines:
            await self._first_version(registry, engines)
            engine = engines(registry.get("@champion"))
            try:
                with context.board.step(f"serve {engine.model_name}"):
                    await engine.start()
                entry = {"model": f"hosted_vllm/{engine.model_name}", "api_base": engine.base_url}
                context.proxy.update_model_list([{"model_name": engine.model_name, "litellm_params": entry}])
                sampling = {"temperature": self.config.temperature, "max_tokens": self.config.max_tokens}
                async with living(engine):
                    yield context.proxy.as_resource(engine.model_name, sampling)
            finally:
                await engine.stop()
                self._context = None

    async def _first_version(self, registry: Registry, engines: Engines) -> None:
        """Make version_0 of this run, unless it has a champion already: the model, or the champion of the run that is forked."""
        context = self.context
        if registry.pointers.champion is not None:
            return
        if (origin := context.run.config.get("forked_from")) is not None:
            source = Registry(RunDir.find(context.run.path.parent, origin).models)
            await asyncio.to_thread(registry.clone_from, source, source.get("@champion"))
            return
        if imported := registry.list():  # an earlier driver died before it could promote it
            registry.promote(imported[0].name, "imported")
            return
        await engines.prepare("version_0")
        if not self.model_dir.exists():
            with context.board.step(f"import {self.model} into {self.model_dir}") as view:
                await import_in_child(self.model, self.model_dir, marker=context.marker, log_path=context.run.log("import"))
            context.run.metric(step=IMPORT, seconds=round(view.seconds, 3))
        await asyncio.to_thread(registry.import_version, self.model_dir)

    @property
    def _regression(self) -> list[LoopTask]:
        return number_tasks(as_list(self.regression_dataset))

    @property
    def model_dir(self) -> Path:
        """Where the model is, or will be imported to."""
        return model_directory(self.model, self.models)
