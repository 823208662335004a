"""Two environments that ``make test-engines`` builds, one small real model, and one run of two iterations that several tests look at."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "examples" / "math")]


def interpreter(name: str) -> str:
    """``LEYDEN_TEST_VLLM`` and ``LEYDEN_TEST_UNSLOTH`` name other ones than those that make builds."""
    path = Path(os.environ.get(f"LEYDEN_TEST_{name.upper()}", ROOT / f".venv-{name}" / "bin" / "python"))
    if not path.exists():
        pytest.fail(f"there is no {path}: run make test-engines, which builds it", pytrace=False)
    return str(path)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    return interpreter("vllm")


@pytest.fixture(scope="session")
def unsloth_python() -> str:
    return interpreter("unsloth")


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """SmolLM2-135M-Instruct, where ``make demo`` puts it too."""
    from leyden.models.importer import default_directory, import_model

    directory = default_directory("smollm2", ROOT / "models")
    return directory if directory.exists() else import_model("smollm2", directory)


@dataclass(frozen=True)
class Run:
    """What is left of a run, and everything its store recorded."""

    path: Path
    marker: str
    rollouts: list
    generations: list  # of each rollout's latest attempt


@pytest.fixture(scope="session")
def two_iterations(vllm_python, unsloth_python, model_dir, tmp_path_factory) -> Run:
    """The math agent with its MCP calculator, vLLM serving, Unsloth training: serve to promote, twice."""
    from tasks import make_tasks

    from leyden.algorithm.selection import SelectionConfig
    from leyden.algorithm.sft.algorithm import SFT
    from leyden.algorithm.sft.config import DEMO
    from leyden.algorithm.sft.settings import SFTConfig
    from leyden.models.engine_config import EngineConfig
    from leyden.process import MARKER, new_marker
    from leyden.server.sqlstore import SQLStore
    from leyden.trainer import Trainer

    config = SFTConfig(
        iterations=2,
        max_tokens=48,
        selection=SelectionConfig(min_rows=4),
        train=DEMO.model_copy(update={"backend": "unsloth", "python": unsloth_python}),
    )
    engine = EngineConfig(kind="vllm", python=vllm_python)
    runs = tmp_path_factory.mktemp("engines") / "runs"
    trainer = Trainer(algorithm=SFT(config, str(model_dir), engine), n_runners=1, concurrency=32, runs=runs)
    marker = os.environ[MARKER] = new_marker()
    try:
        agent = f"{ROOT / 'examples' / 'math' / 'math_agent.py'}:math_agent"
        trainer.fit(agent, make_tasks("signed", 40, 0, "train"), make_tasks("signed", 24, 0, "test"))
    finally:
        del os.environ[MARKER]

    async def read() -> tuple[list, list]:
        store = await SQLStore.open(runs / "latest" / "store.db")
        try:
            rollouts = await store.list_rollouts(limit=1000)
            return rollouts, await store.list_generations([rollout.id for rollout in rollouts])
        finally:
            await store.close()

    return Run((runs / "latest").resolve(), marker, *asyncio.run(read()))
