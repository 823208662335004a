"""What the driver and the training child tell each other: a job file in, progress lines and a result file out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from leyden.algorithm.sft.config import TrainConfig
from leyden.files import size_of
from leyden.types import Record

RESULT_FILE = "result.json"


class TrainJob(Record):
    """One training. ``base_dir`` is the unquantised model every merge starts from; ``parent_dir`` the version being improved.

    With ``parent_adapter_dir`` its adapter is trained on, else a fresh one is attached to the base. ``output_dir`` becomes a model
    directory with ``adapter/`` in it.
    """

    version: Literal[1] = 1
    backend: Literal["trl", "unsloth"] | None = None  # None: not resolved yet, which ``train`` does
    base_dir: Path
    parent_dir: Path
    parent_adapter_dir: Path | None = None
    dataset_path: Path
    dataset_sha256: str
    output_dir: Path
    config: TrainConfig = TrainConfig()
    expected_supervised_tokens: int = Field(ge=1)

    @property
    def output_size(self) -> int:
        """Bytes, about, that the output will take: a merged model like the base, and the adapter."""
        return size_of(self.base_dir, "*.safetensors") * 5 // 4


class TrainProgress(Record):
    """After each optimizer step (and once, at step 0, when the first one begins). ``tokens``: labelled tokens the loss has seen."""

    step: int
    steps: int
    loss: float | None = None
    tokens: int = 0
    seconds_left: float | None = None


class TrainResult(Record):
    """Written last, so that its presence says that everything else is there."""

    supervised_tokens: int  # that the loss saw in its first pass over the rows
    rows: int
    steps: int
    epochs: float
    losses: list[float]  # one a step
    seconds: float
    backend: str
    software: dict[str, str]  # package → version, of what shaped the weights
    device: str
    dtype: str
    shared_prefix: bool
    files: dict[str, int]  # relative path → bytes
