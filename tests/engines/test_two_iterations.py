"""Two whole iterations with real engines: vLLM serves, Unsloth trains, and every token is the same one all the way."""

from __future__ import annotations

import asyncio
import json

import pytest
from asking import ask, differences

from leyden.algorithm.dataset import read_rows
from leyden.algorithm.rows import IGNORED
from leyden.models.device import cpu_has_bf16
from leyden.models.engine import EmbeddedEngine
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.registry import Registry
from leyden.process import find_by_marker, new_marker

pytestmark = pytest.mark.timeout(1500)

NEAR_TIE = 0.25 if cpu_has_bf16() else 0.01
"""Log-probabilities nearer than this may come out either way round: kernels add in different orders, bfloat16 in steps of 1/8 at 16–32."""


def summary_of(run):
    return json.loads((run.path / "summary.json").read_text())


def stage(rollout) -> str:
    return rollout.metadata["step"]


def first_calls(run, iteration: int, step: str):
    """The first generation of each rollout of a step, with its recorded request."""
    wanted = {rollout.id for rollout in run.rollouts if rollout.iteration == iteration and stage(rollout) == step}
    calls = {}
    for generation in sorted(run.generations, key=lambda item: item.started_at):
        if generation.rollout_id in wanted:
            calls.setdefault(generation.rollout_id, generation)
    return list(calls.values())


def test_both_iterations_trained_a_version_with_unsloth_and_served_it_with_vllm(two_iterations):
    run = two_iterations
    iterations = summary_of(run)["iterations"]
    assert [iteration["candidate"] for iteration in iterations] == ["version_1", "version_2"], iterations
    for number in (1, 2):
        directory = run.path / f"iteration_{number}"
        assert json.loads((directory / "train.json").read_text())["outputs"]["backend"] == "unsloth"
        assert all(check["ok"] for check in json.loads((directory / "verify.json").read_text())["outputs"]["checks"])
        engine_log = (run.path / "logs" / f"engine-version_{number}.log").read_text()
        assert "Initializing a V1 LLM engine" in engine_log
        assert {call.checkpoint for call in first_calls(run, number, "evaluate-t0")} == {f"version_{number}"}
    assert find_by_marker(run.marker) == []


def test_training_rows_are_the_tokens_in_the_store(two_iterations):
    """Each labelled token of a row was sampled in one of its generations, each unlabelled one stood in a prompt, and nothing is left."""
    run = two_iterations
    by_id = {generation.id: generation for generation in run.generations}
    for number in (1, 2):
        rows = read_rows(run.path / f"iteration_{number}" / "rows.arrow")
        assert len(rows) >= 4
        for row in rows:
            calls = [by_id[generation_id] for generation_id in row.generation_ids]
            assert {call.rollout_id for call in calls} == {row.rollout_id}
            assert row.input_ids == calls[-1].prompt_token_ids + calls[-1].response_token_ids
            sampled = [label for label in row.labels if label != IGNORED]
            assert sampled == [token for call in calls for token in call.response_token_ids]


def test_what_vllm_says_directly_is_what_the_store_holds_and_what_the_embedded_engine_says(two_iterations, vllm_python, tmp_path, capsys):
    """The last version, served once by each engine, gets the requests of its own greedy evaluation."""
    run = two_iterations
    registry = Registry(run.path / "models")
    version, base = registry.get("version_2"), registry.get("version_0")
    calls = first_calls(run, 2, "evaluate-t0")
    assert len(calls) >= 20
    requests = [call.request for call in calls]
    marker = new_marker()

    async def answers(engine):
        await engine.start()
        try:
            return await ask(engine.base_url, engine.model_name, requests)
        finally:
            await engine.stop()

    config = EngineConfig(kind="vllm", python=vllm_python)
    vllm = asyncio.run(answers(make_engine(config, version, base, log_path=tmp_path / "vllm.log", marker=marker)))
    embedded = asyncio.run(answers(EmbeddedEngine(version.path, log_path=tmp_path / "embedded.log", marker=marker)))
    assert find_by_marker(marker) == []

    stored = [call.prompt_token_ids for call in calls]
    assert [answer.prompt for answer in vllm] == stored
    assert [answer.prompt for answer in embedded] == stored
    for name, one in (("vLLM asked directly", vllm), ("the embedded engine", embedded)):
        other = [type(a)(a.prompt, call.response_token_ids, a.lead) for a, call in zip(one, calls, strict=True)]
        found = differences(one, other)
        with capsys.disabled():
            print(f"\n{name} against the store: {len(calls) - len(found)} of {len(calls)} greedy answers are equal")
            for number, at, lead in found:
                print(f"  request {number}, token {at}: the two best were {lead:.4f} apart")
        assert all(lead < NEAR_TIE for _, _, lead in found)
