"""The whole recipe, with its own code, against our store, proxy and runners: in one process, and under a ``Trainer``.

In three processes, with a real engine: ``faults/test_recipe_in_three_processes.py``, because it takes long.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import recipe_algorithm
from recipe_agent import GsmProblem, load_math_dataset, math_agent
from recipe_algorithm import sft_one_iter
from scripted_vllm import copy_model

import leyden.agentlightning as agl
from leyden.agentlightning import Dataset, LLMProxy, Trainer
from leyden.models.registry import check_model_dir
from leyden.process import MARKER, find_by_marker, new_marker

pytestmark = pytest.mark.timeout(1200)  # two processes import torch, one after another

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def check(done: dict[str, Any], next_model_path: Path, n: int = 6) -> None:
    assert [rollout.status for rollout in done["rollouts"]] == ["succeeded"] * n
    assert len(done["triplets"]) >= n  # a call each, at least
    for row in done["triplets"]:
        sampled = [label for label in row["labels"] if label != -100]
        assert row["input_ids"][-len(sampled) :] == sampled
        assert 1 <= len(sampled) <= 12
        assert row["reward"] in (0.0, 1.0)
    assert done["exitcode"] == 0
    check_model_dir(next_model_path)


@pytest.fixture
def scripted_vllm(monkeypatch):
    """An engine that starts at once."""
    monkeypatch.setattr(recipe_algorithm, "VLLM_SERVE", [sys.executable, str(HERE / "scripted_vllm.py")])


def test_in_one_process(tiny_model, tmp_path, scripted_vllm):
    async def scenario() -> dict[str, Any]:
        store = agl.InMemoryLightningStore()
        llm_proxy = agl.LLMProxy(port=0, store=store)
        runner = agl.LitAgentRunner(tracer=agl.OtelTracer(), concurrency=6)
        try:
            with runner.run_context(agent=math_agent, store=store, worker_id=0):
                running = asyncio.create_task(runner.iter())
                done = await sft_one_iter(
                    store=store,
                    llm_proxy=llm_proxy,
                    data_adapter=agl.LlmProxyTraceToTriplet(),
                    train_dataset=load_math_dataset(),
                    model_path=str(tiny_model),
                    next_model_path=str(tmp_path / "version_1"),
                    vllm_port=free_port(),
                    triplet_fraction=0.5,
                )
                # What the adapter gave is what the engine sampled, token for token.
                generations = await store.inner.list_generations([rollout.rollout_id for rollout in done["rollouts"]])
                sampled = sorted(generation.prompt_token_ids + generation.response_token_ids for generation in generations)
                assert sampled == sorted(row["input_ids"] for row in done["triplets"])
                running.cancel()
                await asyncio.wait({running})
                return done
        finally:
            await llm_proxy.stop()
            await store.close()

    check(asyncio.run(scenario()), tmp_path / "version_1")


class UnslothSupervisedFinetuning(agl.Algorithm):
    def __init__(self, max_iterations: int, vllm_port: int, train_triplet_fraction: float, initial_model_path: str) -> None:
        self.max_iterations = max_iterations
        self.vllm_port = vllm_port
        self.train_triplet_fraction = train_triplet_fraction
        self.initial_model_path = initial_model_path

    async def run(
        self,
        train_dataset: Dataset[GsmProblem] | None = None,
        val_dataset: Dataset[GsmProblem] | None = None,
    ) -> list[dict[str, Any]]:
        # Use the store, llm_proxy, and adapter from the trainer
        store = self.get_store()
        llm_proxy = self.get_llm_proxy()
        data_adapter = self.get_adapter()
        assert train_dataset is not None
        done = []
        model_path = self.initial_model_path
        for iteration in range(self.max_iterations):
            next_model_path = str(Path(self.initial_model_path).parent / f"version_{iteration + 1}")
            done.append(
                await sft_one_iter(
                    store=store,
                    llm_proxy=llm_proxy,
                    data_adapter=data_adapter,
                    train_dataset=train_dataset,
                    model_path=model_path,
                    next_model_path=next_model_path,
                    vllm_port=self.vllm_port,
                    triplet_fraction=self.train_triplet_fraction,
                )
            )
            model_path = next_model_path
        return done


def test_an_algorithm_of_the_users_under_a_trainer(tiny_model, tmp_path, monkeypatch, scripted_vllm):
    monkeypatch.setattr(recipe_algorithm, "unsloth_training", copy_model)  # the other one trains
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(MARKER, marker := new_marker())
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "version_0").symlink_to(tiny_model)
    algo = UnslothSupervisedFinetuning(
        max_iterations=2,
        vllm_port=free_port(),
        train_triplet_fraction=0.5,
        initial_model_path=str(tmp_path / "models" / "version_0"),
    )
    proxy_port = free_port()
    # The LLM proxy can be created before Trainer
    trainer = Trainer(
        n_runners=2,
        concurrency=2,
        algorithm=algo,
        llm_proxy=LLMProxy(port=proxy_port),
    )
    first, second = trainer.fit(math_agent, load_math_dataset(3))
    check(first, tmp_path / "models" / "version_1", 3)
    check(second, tmp_path / "models" / "version_2", 3)
    ours = [process for process in find_by_marker(marker) if "resource_tracker" not in " ".join(process.cmdline())]  # multiprocessing's
    assert ours == []
    assert algo._context is None
    assert trainer.llm_proxy is not None
    assert not trainer.llm_proxy.is_running()
