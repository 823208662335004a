"""A dataset and its sidecar on the disk: both whole, or both absent."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.files import sync


def sidecar_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.meta.json")


class FilePair:
    """Temporary files beside ``path`` while it is open (``scratch``: elsewhere, for what will not be published). What is not published is
    gone when it closes, whatever happened."""

    def __init__(self, path: Path, scratch: bool = False) -> None:
        self.path = path
        directory = Path(tempfile.gettempdir()) if scratch else path.parent
        stem = directory / f".{path.name}.{secrets.token_hex(4)}"
        self.lines_path, self.provenance_path, self.sidecar_path = (Path(f"{stem}.{part}.tmp") for part in ("lines", "origin", "meta"))

    def __enter__(self) -> Self:
        self.lines_path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = self.lines_path.open("wb")
        self.provenance = self.provenance_path.open("w+b")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.lines.close()
        self.provenance.close()
        for temporary in (self.lines_path, self.provenance_path, self.sidecar_path):
            temporary.unlink(missing_ok=True)

    def publish(self) -> None:
        """At no moment does a dataset lie beside another one's sidecar."""
        self.lines.close()
        sync(self.lines_path)
        sync(self.sidecar_path)
        sidecar_of(self.path).unlink(missing_ok=True)
        self.lines_path.replace(self.path)
        self.sidecar_path.replace(sidecar_of(self.path))
        sync(self.path.parent)

    def remove(self) -> None:
        """What an earlier export left under this name is not what this one found."""
        sidecar_of(self.path).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        sync(self.path.parent)
