"""A dataset and its sidecar on the disk: both whole, or both absent."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from leyden.errors import UsageError
from leyden.files import sync

KIND = "leyden.export"  # what a sidecar says that it is, in its first lines
LEFT = "{} was there before, without a sidecar that says an export left it: it lies there still"


def sidecar_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.meta.json")


def check_target(path: Path) -> None:
    """Raise ``UsageError`` for what a file cannot be renamed to: a directory, a device, a link (/dev/stdout is one)."""
    for one in (path, sidecar_of(path)) if path.name else (path,):  # "." and "/" have no name to put one beside
        if one.is_dir():
            raise UsageError(f"{one} is a directory", "name a file in it" if one == path else "name another file")
        if one.is_symlink() or (one.exists() and not one.is_file()):
            raise UsageError(f"{one} is a link or a device", "name a file: what is written is renamed to it when it is whole")


class FilePair:
    """Temporary files beside ``path`` while it is open (``scratch``: elsewhere, for what will not be published). What is not published is
    gone when it closes, whatever happened. Raises ``UsageError`` for a ``path`` that no file can have."""

    def __init__(self, path: Path, scratch: bool = False) -> None:
        check_target(path)
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

    def remove(self) -> bool:
        """What an earlier export left under this name is not what this one found. False: a file lies there that no export left (it has no
        sidecar), and it was left alone."""
        if not _is_sidecar(sidecar_of(self.path)):
            return not self.path.exists()
        self.path.unlink(missing_ok=True)  # the dataset first: cut short after it, the sidecar is known still
        sidecar_of(self.path).unlink()
        sync(self.path.parent)
        return True


def _is_sidecar(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return f'"kind": "{KIND}"'.encode() in file.read(200)
    except FileNotFoundError:
        return False
