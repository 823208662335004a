"""Versions of a model in one directory: ``version_0``, ``version_1``, … and the pointers ``champion`` and ``previous``.

A version appears by one rename, complete, with every file's sha256 in its ``manifest.json``, or not at all: a crash leaves only a
hidden ``.version_N.….tmp``, which nothing here ever lists. Both pointers live in one small file, so that they change together.
"""

from __future__ import annotations

import difflib
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from leyden.errors import Conflict, NotFound, UsageError
from leyden.models.files import relative_files, sha256_of, sync, sync_tree, write_atomically
from leyden.models.importer import check_checkpoint
from leyden.types import Record

MANIFEST = "manifest.json"
TEMPLATE = "chat_template.jinja"
_OURS = (MANIFEST, "result.json")  # a version of another directory brings its weights, not its past: nor its adapter
_NAME = re.compile(r"version_(0|[1-9]\d*)")


class Manifest(Record):
    """What a version is and where it came from. ``files`` names all of them but this one."""

    version: str
    parent: str | None = None
    lineage: tuple[str, ...] = ()  # ancestors, the base first
    dataset_sha256: str | None = None
    training: dict[str, Any] | None = None  # the resolved config
    metrics: dict[str, Any] = Field(default_factory=dict)
    run_id: str | None = None
    iteration: int | None = None
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


class Promotion(Record):
    """One move of the champion, and why."""

    champion: str
    previous: str | None
    reason: str
    at: int  # microseconds since the epoch


class Pointers(Record):
    champion: str | None = None
    previous: str | None = None
    history: tuple[Promotion, ...] = ()


@dataclass
class Draft:
    """A version in the making: fill ``path``, then ``commit``."""

    path: Path
    name: str
    parent: Version | None
    _directory: Path
    committed: Version | None = field(default=None, init=False)

    def commit(
        self,
        *,
        dataset_sha256: str | None = None,
        training: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        run_id: str | None = None,
        iteration: int | None = None,
    ) -> Version:
        """Hash and sync every file, write the manifest, rename into place. Raises ``Conflict`` if another driver took the number."""
        manifest = Manifest(
            version=self.name,
            parent=self.parent.name if self.parent else None,
            lineage=(*self.parent.manifest.lineage, self.parent.name) if self.parent else (),
            dataset_sha256=dataset_sha256,
            training=training,
            metrics=metrics or {},
            run_id=run_id,
            iteration=iteration,
            files={name: sha256_of(self.path / name) for name in relative_files(self.path)},
            created_at=_now(),
        )
        (self.path / MANIFEST).write_text(manifest.model_dump_json(indent=2))
        sync_tree(self.path)
        final = self._directory / self.name
        try:
            self.path.rename(final)  # onto a directory that is not empty this fails
        except OSError as error:
            raise Conflict(f"{final} exists already", "another training in this directory was faster: run the iteration again") from error
        sync(self._directory)
        self.committed = Version(final, manifest)
        return self.committed


class Registry:
    """The versions in one directory, which is made at the first write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # -- reading ---------------------------------------------------------------------------------------------------
    def list(self) -> Sequence[Version]:
        """Whole versions, oldest first."""
        paths = [path for path in self.directory.glob("version_*") if _NAME.fullmatch(path.name) and (path / MANIFEST).is_file()]
        return sorted((_read_version(path) for path in paths), key=lambda version: version.number)

    def get(self, name: str) -> Version:
        """By name, or ``@champion``, ``@previous``, ``@latest``. Raises ``NotFound`` with the nearest name as a hint."""
        if name.startswith("@"):
            return self._resolve(name)
        path = self.directory / name
        if _NAME.fullmatch(name) and (path / MANIFEST).is_file():
            return _read_version(path)
        known = [version.name for version in self.list()]
        near = difflib.get_close_matches(name, [*known, "@champion", "@previous", "@latest"], n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known) or 'nothing yet'}"
        raise NotFound(f"no version {name!r} in {self.directory}", hint)

    def base_of(self, version: Version) -> Version:
        """The imported model a version's line began with: what every merge starts from."""
        return self.get(version.manifest.lineage[0]) if version.manifest.lineage else version

    @property
    def pointers(self) -> Pointers:
        try:
            return Pointers.model_validate_json(self._pointer_file.read_bytes())
        except FileNotFoundError:
            return Pointers()

    # -- writing ---------------------------------------------------------------------------------------------------
    @contextmanager
    def new_version(self, parent: Version | None = None) -> Iterator[Draft]:
        """A draft of the next number in a hidden directory, removed again unless it was committed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"version_{max((version.number for version in self.list()), default=-1) + 1}"
        path = self.directory / f".{name}.{secrets.token_hex(4)}.tmp"
        path.mkdir()
        try:
            yield Draft(path, name, parent, self.directory)
        finally:
            shutil.rmtree(path, ignore_errors=True)  # nothing is there any more once it was renamed

    def import_version(self, source: Path) -> Version:
        """Make ``source`` the base of this directory, and its champion. Weights are hard-linked where the file system can.

        Raises ``UsageError`` naming what a broken model directory lacks, ``Conflict`` where there is a version already.
        """
        check_model_dir(source)
        if self.list():
            raise Conflict(f"{self.directory} holds {self.list()[0].name} already", "use that one, or another run directory")
        with self.new_version() as draft:
            for name in relative_files(source):
                if "/" not in name and not name.startswith(".") and name not in _OURS:
                    _link_or_copy(source / name, draft.path / name)
            if not (draft.path / TEMPLATE).exists():
                (draft.path / TEMPLATE).write_text(_template_in_config(source) or "")
            version = draft.commit()
        self.promote(version.name, "imported")
        return version

    def promote(self, name: str, reason: str) -> Version:
        """Make a version the champion; the old champion becomes ``previous``. Promoting the champion again changes nothing."""
        version, pointers = self.get(name), self.pointers
        if version.name != pointers.champion:
            self._point(version.name, pointers.champion, reason)
        return version

    def rollback(self, reason: str = "rolled back") -> Version:
        """Swap champion and previous. Raises ``Conflict`` if nothing was champion before."""
        pointers = self.pointers
        if pointers.previous is None:
            raise Conflict("there is no previous champion to go back to", "see which versions there are: leyden models list")
        version = self.get(pointers.previous)
        self._point(version.name, pointers.champion, reason)
        return version

    # -- details ---------------------------------------------------------------------------------------------------
    @property
    def _pointer_file(self) -> Path:
        return self.directory / "pointers.json"

    def _resolve(self, pointer: str) -> Version:
        if pointer == "@latest":
            versions = self.list()
            if not versions:
                raise NotFound(f"no version in {self.directory}", "import a model first: leyden models import SOURCE")
            return versions[-1]
        if pointer not in ("@champion", "@previous"):
            near = difflib.get_close_matches(pointer, ["@champion", "@previous", "@latest"], n=1)
            raise NotFound(f"no pointer {pointer!r}", f"did you mean {near[0]}?" if near else "there are @champion, @previous and @latest")
        name = self.pointers.champion if pointer == "@champion" else self.pointers.previous
        if name is None:
            raise NotFound(f"{pointer} points to nothing in {self.directory}", "make one the champion: leyden models promote VERSION")
        return self.get(name)

    def _point(self, champion: str, previous: str | None, reason: str) -> None:
        move = Promotion(champion=champion, previous=previous, reason=reason, at=_now())
        pointers = Pointers(champion=champion, previous=previous, history=(*self.pointers.history, move))
        write_atomically(self._pointer_file, pointers.model_dump_json(indent=2))


def check_model_dir(directory: Path) -> None:
    """Raise ``UsageError`` unless the directory holds what serving and training need: config, whole weights, tokenizer, chat template."""
    check_checkpoint(directory)
    index = directory / "model.safetensors.index.json"
    shards = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    missing = sorted(shard for shard in shards if not (directory / shard).is_file())
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        missing.append("tokenizer.json")
    if not (directory / TEMPLATE).is_file() and not _template_in_config(directory):
        missing.append(TEMPLATE)
    if missing:
        raise UsageError(f"{directory} is not a whole model: {', '.join(missing)} missing", "import it again: leyden models import SOURCE")
    if "quantization_config" in json.loads((directory / "config.json").read_text()):
        raise UsageError(f"{directory} is quantised, and a merge would round twice", "use the model's 16-bit weights")


def _template_in_config(directory: Path) -> str | None:
    """The chat template as older versions of transformers saved it."""
    template = json.loads((directory / "tokenizer_config.json").read_text()).get("chat_template")
    return template if isinstance(template, str) else None


def _link_or_copy(source: Path, target: Path) -> None:
    if source.suffix == ".safetensors":
        try:
            target.hardlink_to(source.resolve())
            return
        except OSError:  # another file system, or one without hard links
            pass
    shutil.copyfile(source, target)


def _read_version(path: Path) -> Version:
    return Version(path, Manifest.model_validate_json((path / MANIFEST).read_bytes()))


def _now() -> int:
    return time.time_ns() // 1000
