"""The driver's side of a training: start the child, pass its progress on, believe nothing it has not written down."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from leyden.algorithm.sft.job import RESULT_FILE, TrainJob, TrainProgress, TrainResult
from leyden.errors import Unavailable
from leyden.models.files import write_atomically
from leyden.process import Child, spawn

OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1",
}  # fmt: skip


async def train(
    job: TrainJob,
    *,
    python: str | None = None,
    on_progress: Callable[[TrainProgress], None],
    log_path: Path,
    marker: str,
    timeout: float | None = None,
) -> TrainResult:
    """Run the job in a child and return its checked result. A cancelled call ends the child and all it started.

    ``python``: the interpreter (default: this one), which must have ``leyden[train]``. ``timeout``: seconds. The job file is
    written beside ``log_path``. Raises ``Unavailable`` when the child fails, runs out of time, or did not do what was asked.
    """
    job.output_dir.mkdir(parents=True, exist_ok=True)
    job_path = log_path.with_suffix(".job.json")
    job_path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(job_path, job.model_dump_json(indent=2))
    command = [python or sys.executable, "-m", "leyden.algorithm.sft.child", str(job_path)]
    child = await spawn(command, marker=marker, log_path=log_path, env=OFFLINE, stdout_pipe=True)
    try:
        async with asyncio.timeout(timeout):
            error = await _follow(child, on_progress)
            code = await child.wait()
    except TimeoutError:
        raise Unavailable(f"the training did not end within {timeout:g} s", _log_hint(child)) from None
    finally:
        await child.stop(grace=2.0)
    if code != 0:
        error = error or {"message": f"exit status {code}", "hint": None}
        raise Unavailable(f"the training failed: {error['message']}", "\n".join(filter(None, [error["hint"], _log_hint(child)])))
    return check_result(job)


def check_result(job: TrainJob) -> TrainResult:
    """The result file of a finished training. Raises ``Unavailable`` where it, a file it names, or a trained token is missing."""
    path = job.output_dir / RESULT_FILE
    try:
        result = TrainResult.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise Unavailable(f"the training left no result at {path}: {error}".splitlines()[0]) from error
    for name, size in result.files.items():
        file = job.output_dir / name
        if not file.is_file() or file.stat().st_size != size:
            raise Unavailable(f"the training's result names {name} with {size} bytes, which {job.output_dir} does not hold")
    seen, expected = result.supervised_tokens, job.expected_supervised_tokens
    whole_pass = result.epochs >= 1
    if seen > expected or (whole_pass and seen != expected):
        raise Unavailable(
            f"the training saw {seen} labelled tokens in one pass over the rows, but {expected} were selected",
            "rows were cut, or labels shifted, between the dataset and the loss: this checkpoint is not what its manifest would say",
        )
    return result


async def _follow(child: Child, on_progress: Callable[[TrainProgress], None]) -> dict[str, Any] | None:
    """Pass progress on until the child closes stdout; the error of its error event, if it sent one."""
    assert child.stdout is not None
    error = None
    async for line in child.stdout:
        event: dict[str, Any] = orjson.loads(line)
        if event.pop("event") == "step":
            on_progress(TrainProgress(**event))
        else:
            error = event["error"]
    return error


def _log_hint(child: Child) -> str:
    return f"last lines of {child.log_path}:\n{child.tail()}"
