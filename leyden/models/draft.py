"""A version in the making: a hidden directory that becomes a version by one rename, or is discarded."""

from __future__ import annotations

import errno
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leyden.errors import Conflict
from leyden.files import disk_errors, relative_files, sha256_of, size_of, sync, sync_tree, write_atomically
from leyden.models.version import ADAPTER_WEIGHTS, MANIFEST, Manifest, Merge, Version


@dataclass(frozen=True)
class Draft:
    """Fill ``path``, then ``commit`` or ``discard``. Until then it stays, also over the end of this process."""

    path: Path
    parent: Version | None

    @property
    def name(self) -> str:
        """Of the version it is to become."""
        return self.path.name.split(".")[1]

    def commit(
        self,
        *,
        dataset_sha256: str | None = None,
        training: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        run_id: str | None = None,
        iteration: int | None = None,
        arm: str | None = None,
    ) -> Version:
        """Hash and sync every file, write the manifest, rename into place.

        Raises ``Conflict`` if another driver took the number, ``DiskError`` where it could not be written: the draft is still there then.
        """
        with disk_errors(self.path, needs=size_of(self.path)):
            files = {name: sha256_of(self.path / name) for name in relative_files(self.path) if name != MANIFEST}
            lineage = (*self.parent.manifest.lineage, self.parent.name) if self.parent else ()
            manifest = Manifest(
                version=self.name,
                parent=self.parent.name if self.parent else None,
                lineage=lineage,
                weights=Merge(base=lineage[0], adapter_sha256=files[ADAPTER_WEIGHTS]) if lineage and ADAPTER_WEIGHTS in files else None,
                dataset_sha256=dataset_sha256,
                training=training,
                metrics=metrics or {},
                run_id=run_id,
                iteration=iteration,
                arm=arm,
                files=files,
                created_at=time.time_ns() // 1000,
            )
            write_atomically(self.path / MANIFEST, manifest.model_dump_json(indent=2))
            return self.publish(manifest)

    def publish(self, manifest: Manifest) -> Version:
        """Make the directory as it is, its manifest included, the version of that name. Raises ``Conflict`` if there is one already."""
        final = self.path.with_name(manifest.version)
        sync_tree(self.path)
        try:
            self.path.rename(final)  # onto a directory that is not empty this fails
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise Conflict(f"{final} exists already", "another training in this directory was faster: run the iteration again") from error
        sync(final.parent)
        return Version(final, manifest)

    def discard(self) -> None:
        """Remove it and all in it; nothing happens where it was committed or discarded already."""
        shutil.rmtree(self.path, ignore_errors=True)


def make_draft(directory: Path, version: str, parent: Version | None) -> Draft:
    """An empty one in ``directory``, which is made where it is missing. Raises ``DiskError``."""
    path = directory / f".{version}.{secrets.token_hex(4)}.draft"
    with disk_errors(directory):
        path.mkdir(parents=True)
    return Draft(path, parent)
