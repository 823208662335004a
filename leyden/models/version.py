"""A version of a model: a directory, and the manifest in it that says what it is and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from leyden.errors import LeydenError
from leyden.types import Record

MANIFEST = "manifest.json"
ADAPTER_WEIGHTS = "adapter/adapter_model.safetensors"


class Merge(Record):
    """What the weights are the sum of. ``base`` is the version that the line began with, never a merged one."""

    base: str
    adapter_sha256: str  # of ``ADAPTER_WEIGHTS``
    summed_in: str = "float32"
    saved_as: str = "bfloat16"


class Manifest(Record):
    """What a version is and where it came from. ``files`` names all of them but this one."""

    version: str
    parent: str | None = None
    lineage: tuple[str, ...] = ()  # ancestors, the base first
    weights: Merge | None = None  # None: as they were imported
    dataset_sha256: str | None = None
    training: dict[str, Any] | None = None  # the resolved config
    metrics: dict[str, Any] = Field(default_factory=dict)  # what the training child reported, software versions included
    run_id: str | None = None
    iteration: int | None = None
    arm: str | None = None  # "control": made to compare with, not to serve
    files: dict[str, str]  # relative path → sha256
    created_at: int  # microseconds since the epoch


@dataclass(frozen=True)
class Version:
    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.version

    @property
    def number(self) -> int:
        return int(self.name.removeprefix("version_"))

    @property
    def adapter_dir(self) -> Path | None:
        """The LoRA adapter this version was merged from; None for an imported one."""
        adapter = self.path / "adapter"
        return adapter if adapter.is_dir() else None


def read_version(path: Path) -> Version:
    """Raises ``LeydenError`` for a damaged manifest."""
    try:
        return Version(path, Manifest.model_validate_json((path / MANIFEST).read_bytes()))
    except ValidationError as error:
        raise LeydenError(f"{path / MANIFEST} is damaged", f"restore it from a copy, or remove {path}") from error
