"""A training child that was made before there was a job: it trains what it is told, and nobody is left with it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("trl")

from backend_suite import CONFIG, make_job, run_training

from leyden.algorithm.sft.ahead import TrainerAhead
from leyden.algorithm.sft.job import TrainProgress, TrainResult
from leyden.algorithm.sft.train import train
from leyden.errors import UsageError
from leyden.process import Child, find_by_marker, new_marker


def pids(marker: str) -> set[int]:
    return {process.pid for process in find_by_marker(marker)}


async def made(trainer: TrainerAhead) -> Child:
    trainer.prepare()
    trainer.prepare()  # one is enough
    assert trainer._starting is not None
    child = await trainer._starting
    assert child is not None
    return child


def test_it_trains_as_one_that_was_started_for_its_job(tiny_model: Path, tmp_path: Path) -> None:
    marker, log = new_marker(), tmp_path / "ahead.log"
    job = make_job(tiny_model, tmp_path / "out-ahead")
    trained_by: set[int] = set()

    def look(progress: TrainProgress) -> None:
        trained_by.update(pids(marker))

    async def ahead() -> tuple[TrainResult, int]:
        async with TrainerAhead(job.config, lambda: log, marker) as trainer:
            child = await made(trainer)
            result = await train(job, on_progress=look, log_path=log, marker=marker, timeout=240, ahead=trainer)
        return result, child.pid

    result, pid = asyncio.run(ahead())
    assert trained_by == {pid}
    assert not pids(marker)
    alone = run_training(job.model_copy(update={"output_dir": tmp_path / "out"}), tmp_path / "alone.log")
    assert result.losses == alone.losses and result.supervised_tokens == alone.supervised_tokens
    adapters = [tmp_path / out / "adapter" / "adapter_model.safetensors" for out in ("out-ahead", "out")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_the_one_that_nobody_comes_for_is_ended(tmp_path: Path) -> None:
    marker = new_marker()

    async def nothing_to_learn() -> int:
        async with TrainerAhead(CONFIG, lambda: tmp_path / "train.log", marker) as trainer:
            child = await made(trainer)
            assert child.pid in pids(marker)
        return child.returncode or 0

    assert asyncio.run(nothing_to_learn()) == -signal.SIGTERM
    assert not pids(marker)


@pytest.mark.parametrize("trouble", ["killed", "of another log"])
def test_where_it_cannot_be_used_another_trains(trouble: str, tiny_model: Path, tmp_path: Path) -> None:
    marker, log = new_marker(), tmp_path / "train.log"
    job = make_job(tiny_model, tmp_path / "out")
    trained_by: set[int] = set()

    def look(progress: TrainProgress) -> None:
        trained_by.update(pids(marker))

    async def ahead() -> int:
        named = log if trouble == "killed" else tmp_path / "another.log"
        async with TrainerAhead(job.config, lambda: named, marker) as trainer:
            child = await made(trainer)
            if trouble == "killed":
                os.kill(child.pid, signal.SIGKILL)
                await child.wait()
            await train(job, on_progress=look, log_path=log, marker=marker, timeout=240, ahead=trainer)
        return child.pid

    pid = asyncio.run(ahead())
    assert len(trained_by) == 1 and pid not in trained_by
    assert not pids(marker)


def test_an_interpreter_that_cannot_train_is_told_when_it_should(tiny_model: Path, tmp_path: Path) -> None:
    marker, log = new_marker(), tmp_path / "train.log"
    job = make_job(tiny_model, tmp_path / "out", config=CONFIG.model_copy(update={"python": "/bin/false"}))

    async def ahead() -> None:
        async with TrainerAhead(job.config, lambda: log, marker) as trainer:
            trainer.prepare()
            with pytest.raises(UsageError, match="no Python interpreter"):
                await train(job, on_progress=lambda progress: None, log_path=log, marker=marker, ahead=trainer)

    asyncio.run(ahead())
    assert not pids(marker)
