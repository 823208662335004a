"""A training child made ahead: it loads its libraries while the last rollouts of a collection run, on cores they leave idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.interpreter import child_command, resolve_backend
from leyden.errors import LeydenError
from leyden.process import Child, spawn

OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "UNSLOTH_DISABLE_STATISTICS": "1",
}  # fmt: skip
AHEAD = "--ahead"  # the child's own word for it


class TrainerAhead:
    """``async with TrainerAhead(...) as trainer``: for the child that nobody may come for. It holds no model, and nothing of a GPU.

    ``log``: the log of the next training, beside which its job will be.
    """

    def __init__(self, config: TrainConfig, log: Callable[[], Path], marker: str) -> None:
        self._config, self._log, self._marker = config, log, marker
        self._starting: asyncio.Task[Child | None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if (child := await self._started()) is not None:
            await child.stop(grace=0.5)

    def prepare(self) -> None:
        """Start it, unless it has been already. TRL alone: Unsloth takes a GPU's memory as it is loaded, which the engine has now."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())

    async def take(self, log_path: Path) -> Child | None:
        """The child that waits to be released to the job beside ``log_path``; it is the caller's to end. None where there is none."""
        child = await self._started()
        if child is None or (child.returncode is None and child.log_path == log_path):
            return child
        await child.stop(grace=0.5)
        return None

    async def _start(self) -> Child | None:
        if await resolve_backend(self._config, marker=self._marker) != "trl":
            return None
        log_path = self._log()
        return await start_child(self._config, log_path, self._marker, AHEAD)

    async def _started(self) -> Child | None:
        starting, self._starting = self._starting, None
        if starting is not None:
            with suppress(LeydenError):  # the training will say it
                return await starting
        return None


def job_path(log_path: Path) -> Path:
    """Where the job lies of the training that writes that log."""
    return log_path.with_suffix(".job.json")


async def start_child(config: TrainConfig, log_path: Path, marker: str, *options: str) -> Child:
    """Raises ``UsageError`` for an interpreter that cannot be started."""
    command = child_command(config.python, str(job_path(log_path)), *options)
    return await spawn(command, marker=marker, log_path=log_path, env=OFFLINE, stdout_pipe=True)
