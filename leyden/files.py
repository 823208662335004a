"""Files that are whole or not there: hashed, synced, renamed. A disk that takes no more is one clear error."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leyden.errors import DiskError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write beside ``path``, sync, rename over it: after a crash there is the old content or the new one, after an ``OSError`` the old."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        sync(temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a part of it would take the last room there is
        raise
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


def size_of(directory: Path, pattern: str = "*") -> int:
    """Bytes of all files below whose names match."""
    return sum(path.stat().st_size for path in directory.rglob(pattern) if path.is_file())


@contextmanager
def disk_errors(directory: Path, needs: int = 0) -> Iterator[None]:
    """An error of the disk while writing below ``directory`` becomes a ``DiskError``. ``needs``: bytes, about, of the whole write."""
    try:
        yield
    except Exception as error:
        number = _errno(error)
        if number in _FULL:
            raise no_space(directory, needs) from error
        if number is not None or isinstance(error, OSError):
            reason = os.strerror(number) if number is not None else str(error)
            raise DiskError(f"cannot write to {directory}: {reason}", "see to that disk, then run the same command again") from error
        raise


def check_space(directory: Path, needs: int) -> None:
    """Raise ``DiskError`` where fewer than ``needs`` bytes are free: better before an hour's training than after it."""
    if shutil.disk_usage(_existing(directory)).free < needs:
        raise no_space(directory, needs)


def no_space(directory: Path, needs: int) -> DiskError:
    """``needs``: bytes; 0 where it is not known."""
    free = _in_units(shutil.disk_usage(_existing(directory)).free)
    about = f"needs about {_in_units(needs)}, {free} free" if needs else f"{free} free"
    return DiskError(f"no space left on the disk of {directory}: {about}", "make room there, then run the same command again")


def _errno(error: BaseException) -> int | None:
    """Of the operating system's error. safetensors raises a type of its own, which names the number only in its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    named = re.search(r"\(os error (\d+)\)", str(error))
    return int(named[1]) if named else None


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def _in_units(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
