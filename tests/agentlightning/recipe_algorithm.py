"""The recipe's algorithm, block by block. Only the import line is ours, and what stands in for two programs that need a GPU.

``vllm serve`` is the embedded engine (or what a test puts in its place); ``unsloth_training`` hands its dataset to our training child, in
a spawned process as there.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from datasets import Dataset as HuggingFaceDataset
from recipe_agent import GsmProblem, load_math_dataset

import leyden.agentlightning as agl
from leyden.agentlightning import Dataset, Rollout

VLLM_SERVE = [sys.executable, "-m", "leyden.models.embedded.server"]
TRAIN_TIMEOUT = 600.0


def vllm_server(model_path: str, port: int) -> tuple[subprocess.Popen[bytes], str]:
    vllm_process = subprocess.Popen(
        [*VLLM_SERVE, model_path, "--port", str(port), "--model-name", model_path],
        stderr=subprocess.DEVNULL,
    )
    # Wait for the server to be ready
    url = f"http://127.0.0.1:{port}/health"
    start = time.time()
    client = httpx.Client(trust_env=False)
    while time.time() - start < 300.0:
        try:
            if client.get(url).status_code == 200:
                break
        except httpx.ConnectError:
            time.sleep(0.2)
    server_address = f"http://127.0.0.1:{port}/v1"
    return vllm_process, server_address


async def sft_one_iter(
    *,
    store: agl.LightningStore,
    llm_proxy: agl.LLMProxy,
    data_adapter: Any,
    train_dataset: Dataset[GsmProblem],
    model_path: str,
    next_model_path: str,
    vllm_port: int,
    triplet_fraction: float,
) -> dict[str, Any]:
    vllm_process, server_address = await asyncio.to_thread(vllm_server, model_path, vllm_port)
    try:
        model_list = [
            {
                "model_name": "Qwen3-4B-Instruct",
                "litellm_params": {"model": f"hosted_vllm/{model_path}", "api_base": server_address},
            }
        ]
        llm_proxy.update_model_list(model_list)
        # If the proxy is not running, it will start automatically.
        await llm_proxy.restart()
        # Add the proxy as a resource to the store so that the runners can access it via URL.
        # (The tiny model never ends by itself, so it is told how much to say.)
        sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12}
        resources_update = await store.add_resources({"main_llm": llm_proxy.as_resource(sampling_parameters=sampling)})

        rollouts: list[Rollout] = []
        for sample in train_dataset:  # type: ignore[attr-defined]
            rollouts.append(
                await store.enqueue_rollout(
                    input=sample,
                    mode="train",
                    resources_id=resources_update.resources_id,
                )
            )

        completed_rollouts: list[Rollout] = []
        while True:
            completed_rollouts = await store.wait_for_rollouts(
                rollout_ids=[r.rollout_id for r in rollouts],
                timeout=0.0,
            )
            if len(completed_rollouts) == len(rollouts):
                break
            await asyncio.sleep(0.2)
    finally:
        vllm_process.terminate()
        await asyncio.to_thread(vllm_process.wait)

    all_triplets = []
    for rollout in completed_rollouts:
        spans = await store.query_spans(rollout.rollout_id, "latest")
        triplets = data_adapter.adapt(spans)

        recent_reward = None
        for triplet in reversed(triplets):
            if triplet.reward is not None:
                recent_reward = triplet.reward
            if recent_reward is None:
                continue
            input_ids = triplet.prompt["token_ids"] + triplet.response["token_ids"]
            # We don't train on prompt tokens, so they are masked out by setting to -100.
            labels = [-100] * len(triplet.prompt["token_ids"]) + triplet.response["token_ids"]
            # This matches the dataset format required by the Unsloth SFT trainer.
            all_triplets.append(
                {
                    "input_ids": input_ids,
                    "attention_mask": [1] * len(input_ids),
                    "labels": labels,
                    "reward": recent_reward,
                }
            )

    random.shuffle(all_triplets)
    all_triplets.sort(key=lambda x: x["reward"], reverse=True)
    sliced_triplets = all_triplets[: max(1, int(len(all_triplets) * triplet_fraction))]
    # Shuffle the sliced triplets again
    random.shuffle(sliced_triplets)
    sft_dataset = HuggingFaceDataset.from_list(sliced_triplets)

    context = multiprocessing.get_context("spawn")
    unsloth_process = context.Process(
        target=unsloth_training,
        args=(model_path, sft_dataset, next_model_path),
        daemon=True,
    )
    unsloth_process.start()
    await asyncio.to_thread(unsloth_process.join, timeout=TRAIN_TIMEOUT)
    return {"rollouts": completed_rollouts, "triplets": all_triplets, "exitcode": unsloth_process.exitcode}


def unsloth_training(model_path: str, sft_dataset: HuggingFaceDataset, next_model_path: str) -> None:
    from leyden.algorithm.dataset import supervised_tokens, write_rows
    from leyden.algorithm.rows import Row
    from leyden.algorithm.sft.config import TrainConfig
    from leyden.algorithm.sft.job import TrainJob
    from leyden.algorithm.sft.train import train
    from leyden.process import new_marker

    rows = [
        Row(row["input_ids"], row["labels"], row["reward"], rollout_id=f"r-{number}", attempt=1, task="t", generation_ids=(f"g-{number}",))
        for number, row in enumerate(sft_dataset)
    ]
    output = Path(next_model_path)
    dataset = output.with_suffix(".arrow")
    job = TrainJob(
        base_dir=Path(model_path),
        parent_dir=Path(model_path),
        dataset_path=dataset,
        dataset_sha256=write_rows(dataset, rows),
        output_dir=output,
        config=TrainConfig(r=4, alpha=8, batch_size=2, accumulation=1, max_steps=1, backend="trl"),
        expected_supervised_tokens=supervised_tokens(rows),
    )
    asyncio.run(train(job, on_progress=lambda _: None, log_path=output.with_suffix(".log"), marker=new_marker(), timeout=TRAIN_TIMEOUT))


async def main(store_url: str, model_path: str, next_model_path: str, vllm_port: int) -> None:
    """The algorithm's terminal of the three."""
    store = agl.LightningStoreClient(store_url)
    llm_proxy = agl.LLMProxy(port=0, store=store)
    try:
        done = await sft_one_iter(
            store=store,
            llm_proxy=llm_proxy,
            data_adapter=agl.LlmProxyTraceToTriplet(),
            train_dataset=load_math_dataset(),
            model_path=model_path,
            next_model_path=next_model_path,
            vllm_port=vllm_port,
            triplet_fraction=0.5,
        )
        print([rollout.status for rollout in done["rollouts"]], len(done["triplets"]), done["exitcode"])
    finally:
        await llm_proxy.stop()
        await store.close()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
