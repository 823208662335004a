"""``python -m leyden.algorithm.sft.child job.json``: train as the job says, in a process of its own. With ``--ahead`` it loads its
libraries first and then waits to be released, until when there may be no job.

Stdout carries one JSON object a line: ``{"event": "step", …}`` and, at a failure, ``{"event": "error", …}``. All else goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from leyden.algorithm.dataset import check_rows, read_rows
from leyden.algorithm.sft.ahead import AHEAD
from leyden.algorithm.sft.job import RESULT_FILE, TrainJob, TrainProgress
from leyden.algorithm.sft.lora import check_shape
from leyden.errors import LeydenError, MissingExtra, Unavailable
from leyden.files import disk_errors, write_atomically
from leyden.process import leave_after, wait_for_release, watch_parent


def main(arguments: list[str]) -> int:
    watch_parent()
    emit = _emitter(_take_stdout())
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one process trains on one GPU; TRL refuses to start when it sees several
    if AHEAD in arguments:
        with suppress(ModuleNotFoundError):  # the training will say it
            from leyden.algorithm.sft import fit, trl_backend  # noqa: F401
        wait_for_release()
    job = TrainJob.model_validate_json(Path(arguments[0]).read_bytes())
    try:
        run(job, emit)
    except LeydenError as error:
        traceback.print_exc()
        emit({"event": "error", **error.as_dict()})
        return error.exit_code
    return 0


def run(job: TrainJob, emit: Callable[[dict[str, Any]], None]) -> None:
    """Raises ``UsageError`` for a dataset that is not the one the job names or whose labels do not fit its tokens, and for an adapter of
    another shape; ``DiskError`` where the disk is full, ``Unavailable`` where the memory is not enough."""
    rows = read_rows(job.dataset_path, job.dataset_sha256)
    check_rows(rows, job.config.max_length)
    if job.parent_adapter_dir is not None:
        check_shape(job.parent_adapter_dir, job.config)

    def report(progress: TrainProgress) -> None:
        emit({"event": "step", **progress.model_dump()})

    with tempfile.TemporaryDirectory(prefix="leyden-train-") as scratch:
        os.environ["UNSLOTH_COMPILE_LOCATION"] = scratch  # else it writes into the directory this happens to run in
        try:
            prepare = _backend(job)
            from leyden.algorithm.sft.fit import fit
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "trl", "train") from error
        try:
            result = fit(job, rows, prepare, report)
        except Exception as error:
            if not _out_of_memory(error):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unavailable(f"out of memory: {reason}", job.config.less_memory) from error
    with disk_errors(job.output_dir):
        write_atomically(job.output_dir / RESULT_FILE, result.model_dump_json(indent=2))


def _backend(job: TrainJob) -> Any:
    """Its ``prepare``. Unsloth patches the libraries that all else here is built on, so it is imported before them."""
    if job.backend == "unsloth":
        from leyden.algorithm.sft import unsloth_backend

        return unsloth_backend.prepare
    from leyden.algorithm.sft import trl_backend

    return trl_backend.prepare


def _out_of_memory(error: Exception) -> bool:
    """torch has a type of its own for a GPU's memory; for ours it raises a ``RuntimeError`` that only its text tells from others."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(text in str(error) for text in ("DefaultCPUAllocator", "(os error 12)", "Cannot allocate memory"))


def _take_stdout() -> TextIO:
    """Keep stdout for our events: what libraries print goes to stderr from here on."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return ours


def _emitter(stream: TextIO) -> Callable[[dict[str, Any]], None]:
    def emit(event: dict[str, Any]) -> None:
        stream.write(json.dumps(event) + "\n")

    return emit


if __name__ == "__main__":
    leave_after(lambda: main(sys.argv[1:]))
