"""``python -m leyden.algorithm.sft.child job.json``: train as the job says, in a process of its own.

Stdout carries one JSON object a line: ``{"event": "step", …}`` and, at a failure, ``{"event": "error", …}``. All else goes to stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import orjson

from leyden.algorithm.dataset import check_rows, read_rows
from leyden.algorithm.sft.job import RESULT_FILE, TrainJob, TrainProgress
from leyden.errors import LeydenError, MissingExtra
from leyden.models.files import write_atomically
from leyden.process import watch_parent


def main(arguments: list[str]) -> int:
    watch_parent()
    emit = _emitter(_take_stdout())
    try:
        run(TrainJob.model_validate_json(Path(arguments[0]).read_bytes()), emit)
    except LeydenError as error:
        traceback.print_exc()
        emit({"event": "error", **error.as_dict()})
        return error.exit_code
    return 0


def run(job: TrainJob, emit: Callable[[dict[str, Any]], None]) -> None:
    """Raises ``UsageError`` for a dataset that is not the one the job names, or whose labels do not fit its tokens."""
    rows = read_rows(job.dataset_path, job.dataset_sha256)
    check_rows(rows, job.config.max_length)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one process trains on one GPU; TRL refuses to start when it sees several
    try:
        from leyden.algorithm.sft import trl_backend
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "trl", "train") from error

    def report(progress: TrainProgress) -> None:
        emit({"event": "step", **progress.model_dump()})

    result = trl_backend.train(job, rows, report)
    write_atomically(job.output_dir / RESULT_FILE, result.model_dump_json(indent=2))


def _take_stdout() -> TextIO:
    """Keep stdout for our events: what libraries print goes to stderr from here on."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return ours


def _emitter(stream: TextIO) -> Callable[[dict[str, Any]], None]:
    def emit(event: dict[str, Any]) -> None:
        stream.write(orjson.dumps(event).decode() + "\n")

    return emit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
