"""The driver's side of a training: start the child, pass its progress on, believe nothing it has not written down."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from leyden.algorithm.sft.ahead import TrainerAhead, job_path, start_child
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.interpreter import resolve_backend
from leyden.algorithm.sft.job import RESULT_FILE, TrainJob, TrainProgress, TrainResult
from leyden.errors import Unavailable
from leyden.files import check_space, disk_errors, write_atomically
from leyden.process import Child


async def train(
    job: TrainJob,
    *,
    on_progress: Callable[[TrainProgress], None],
    log_path: Path,
    marker: str,
    timeout: float | None = None,
    ahead: TrainerAhead | None = None,
) -> TrainResult:
    """Run the job in a child and return its checked result. A cancelled call ends the child and all it started.

    The child runs under ``job.config.python``; ``ahead`` may have one for ``log_path``, beside which the job file is written. ``timeout``:
    seconds. Raises ``UsageError``
    where that interpreter cannot do it, ``DiskError`` where the disk has no room for the result, ``Unavailable`` when the child fails,
    runs out of memory or time, or did not do what was asked.
    """
    if job.backend is None:
        job = job.model_copy(update={"backend": await resolve_backend(job.config, marker=marker)})
    with disk_errors(job.output_dir):
        job.output_dir.mkdir(parents=True, exist_ok=True)
        check_space(job.output_dir, job.output_size)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(job_path(log_path), job.model_dump_json(indent=2))
    child = (await ahead.take(log_path) if ahead else None) or await start_child(job.config, log_path, marker)
    child.release()
    try:
        async with asyncio.timeout(timeout):
            error = await _follow(child, on_progress)
            code = await child.wait()
    except TimeoutError:
        raise Unavailable(f"the training did not end within {timeout:g} s", _log_hint(child)) from None
    finally:
        await child.stop(grace=2.0)
    if code != 0:
        error = error or _silent_death(code, job.config)
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


def _silent_death(code: int, config: TrainConfig) -> dict[str, Any]:
    """What to make of a child that ended without a word."""
    if code == -signal.SIGKILL:
        return {"message": "killed from outside (SIGKILL), as the system does when memory runs out", "hint": config.less_memory}
    return {"message": f"exit status {code}", "hint": None}


def _log_hint(child: Child) -> str:
    return f"last lines of {child.log_path}:\n{child.tail()}"
