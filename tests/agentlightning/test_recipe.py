"""The whole recipe, with its own code, against our store, proxy and runners: in one process, in three, and under a ``Trainer``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import recipe_algorithm
from recipe_agent import GsmProblem, load_math_dataset, math_agent
from recipe_algorithm import sft_one_iter

import leyden.agentlightning as agl
from leyden.agentlightning import Dataset, LLMProxy, Trainer
from leyden.models.registry import check_model_dir
from leyden.process import MARKER, end_leftovers, find_by_marker, new_marker

pytestmark = pytest.mark.timeout(1200)  # three processes import torch, one after another

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def check(done: dict[str, Any], next_model_path: Path) -> None:
    assert [rollout.status for rollout in done["rollouts"]] == ["succeeded"] * 6
    assert len(done["triplets"]) >= 6  # a call each, at least
    for row in done["triplets"]:
        sampled = [label for label in row["labels"] if label != -100]
        assert row["input_ids"][-len(sampled) :] == sampled
        assert 1 <= len(sampled) <= 12
        assert row["reward"] in (0.0, 1.0)
    assert done["exitcode"] == 0
    check_model_dir(next_model_path)


@pytest.fixture
def scripted_vllm(monkeypatch):
    """An engine that starts at once; the test in three processes uses a real one."""
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


def test_in_three_processes(tiny_model, tmp_path):
    marker, port = new_marker(), free_port()
    env = os.environ | {MARKER: marker}
    url = f"http://127.0.0.1:{port}"

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    store = start("-m", "leyden", "store", "--port", str(port), "--database", str(tmp_path / "store.db"), "--ready-file", "ready")
    try:
        while not (tmp_path / "ready").exists():
            assert store.poll() is None
        runners = start(str(HERE / "recipe_runners.py"), url)
        algorithm = start(str(HERE / "recipe_algorithm.py"), url, str(tiny_model), str(tmp_path / "version_1"), str(free_port()))
        out, _ = algorithm.communicate(timeout=900)
        assert algorithm.returncode == 0
        assert out.startswith(str(["succeeded"] * 6)), out
        assert out.rstrip().endswith(" 0")  # the training's exit status
        check_model_dir(tmp_path / "version_1")
        for process in (runners, store):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl+C does: to the children too
            process.communicate(timeout=60)
    finally:
        end_leftovers(marker)


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
    first, second = trainer.fit(math_agent, load_math_dataset())
    check(first, tmp_path / "models" / "version_1")
    check(second, tmp_path / "models" / "version_2")
    ours = [process for process in find_by_marker(marker) if "resource_tracker" not in " ".join(process.cmdline())]  # multiprocessing's
    assert ours == []
    assert algo._context is None
    assert trainer.llm_proxy is not None
    assert not trainer.llm_proxy.is_running()
