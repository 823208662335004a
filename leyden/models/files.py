"""Files that are whole or not there: hashed, synced, renamed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write beside ``path``, sync, rename over it: after a crash there is the old content or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush one file, or one directory's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(directory: Path) -> None:
    """Flush every file and directory below, and ``directory`` itself."""
    for root, _, names in os.walk(directory):
        for name in names:
            sync(Path(root, name))
        sync(Path(root))


def relative_files(directory: Path) -> list[str]:
    """Paths of all files below, relative and with ``/``, sorted."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
