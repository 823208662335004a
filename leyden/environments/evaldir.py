"""One directory for an eval: what was asked, what is known, and what came out.

::

    evals/latest → evals/<id>/
        eval.json      what was asked, with the fingerprints
        store.db       every attempt, from the moment it ended (unless the store is elsewhere)
        result.jsonl   the saved result, once there is one
        summary.json   its numbers
        lock           held by the process that drives it
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from leyden.errors import NotFound, UsageError
from leyden.files import disk_errors, write_atomically

LATEST = ("@latest", "latest")
_NEEDED = ("env_name", "k", "tasks", "seed", "env_fingerprint", "policy_fingerprint")


class EvalDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @property
    def store(self) -> Path:
        return self.path / "store.db"

    @property
    def result(self) -> Path:
        return self.path / "result.jsonl"

    @property
    def asked(self) -> dict[str, Any]:
        """What ``create`` was given. Raises ``UsageError`` for a file that was changed by hand."""
        path, hint = self.path / "eval.json", "it has been changed by hand: start a new eval"
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise UsageError(f"{path} is not JSON: {error}", hint) from None
        if not isinstance(found, dict) or (missing := [name for name in _NEEDED if name not in found]):
            raise UsageError(f"{path} is of no eval: {missing[0] + ' is missing' if isinstance(found, dict) else 'not an object'}", hint)
        return found

    @property
    def summary(self) -> dict[str, Any] | None:
        """None before its end."""
        try:
            return dict(json.loads((self.path / "summary.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Last: with it, the eval has come to its end."""
        with disk_errors(self.path):
            write_atomically(self.path / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def create(cls, evals: Path, asked: Mapping[str, Any]) -> EvalDir:
        """A new one, and ``latest`` points to it. Raises ``DiskError``."""
        run = cls(evals / f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}")
        with disk_errors(evals):
            run.path.mkdir(parents=True)
            write_atomically(run.path / "eval.json", json.dumps(asked, indent=2, ensure_ascii=False) + "\n")  # with it, it is an eval
            link = evals / f".latest.{os.getpid()}"
            link.unlink(missing_ok=True)
            link.symlink_to(run.id)
            link.replace(evals / "latest")
        return run

    @classmethod
    def all(cls, evals: Path) -> list[EvalDir]:
        """Oldest first."""
        if not evals.is_dir():
            return []
        begun = [path for path in evals.iterdir() if (path / "eval.json").is_file() and not path.is_symlink()]
        return [cls(path) for path in sorted(begun, key=_when)]

    @classmethod
    def find(cls, evals: Path, wanted: str) -> EvalDir:
        """By id, unique prefix, or ``@latest``. Raises ``NotFound``, or ``UsageError`` where several begin so."""
        if wanted in LATEST and (evals / "latest" / "eval.json").is_file():
            return cls(evals / (evals / "latest").resolve().name)
        ids = [run.id for run in cls.all(evals)]
        if wanted in LATEST and ids:  # killed before the link was there
            return cls(evals / ids[-1])
        matching = [name for name in ids if name == wanted] or [name for name in ids if name.startswith(wanted)]
        if len(matching) == 1:
            return cls(evals / matching[0])
        if matching:
            raise UsageError(f"{wanted} could be {', '.join(matching[:3])}", "give more of the id")
        near = get_close_matches(wanted, ids, n=1)
        raise NotFound(f"no eval {wanted!r} in {evals}", f"did you mean {near[0]}?" if near else "see which there are: leyden eval --list")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that drives it. Raises ``UsageError`` naming the one that does."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                raise UsageError(f"eval {self.id} is being run by process {holder}", "wait for it, or stop it with Ctrl+C there") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(fd)


def _when(path: Path) -> tuple[str, int, str]:
    """Ids tell the second; two within one were asked for in the order of their files."""
    return path.name[:15], (path / "eval.json").stat().st_mtime_ns, path.name
