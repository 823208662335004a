"""Versions of a model in one directory: ``version_0``, ``version_1``, … and the pointers ``champion`` and ``previous``.

A version appears by one rename, complete, with every file's sha256 in its ``manifest.json``, or not at all: a crash leaves only a
hidden ``.version_N.….draft``, which is never listed. Both pointers live in one small file, so that they change together.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from leyden.errors import Conflict, LeydenError, NotFound, UsageError
from leyden.files import disk_errors, relative_files, sha256_of, size_of, write_atomically
from leyden.models.draft import Draft, make_draft
from leyden.models.importer import check_checkpoint
from leyden.models.template import TEMPLATE, read_template
from leyden.models.version import MANIFEST, Version, read_version
from leyden.types import Record

_OURS = (MANIFEST, "result.json")  # a version of another directory brings its weights, not its past: nor its adapter
_NAME = re.compile(r"version_(0|[1-9]\d*)")
_DRAFT = re.compile(r"\.version_(0|[1-9]\d*)\.[0-9a-f]{8}\.draft")


class Promotion(Record):
    """One move of the champion, and why."""

    champion: str
    previous: str | None
    reason: str
    at: int  # microseconds since the epoch


class Judgement(Record):
    """What the gate said about a candidate, whether or not the pointer moved."""

    candidate: str
    champion: str | None
    decision: str  # promote, reject or undecided
    reason: str
    verdict: dict[str, Any]  # stages, numbers, power and warnings
    at: int  # microseconds since the epoch


class Pointers(Record):
    champion: str | None = None
    previous: str | None = None
    history: tuple[Promotion, ...] = ()
    judgements: tuple[Judgement, ...] = ()


class Registry:
    """The versions in one directory, which is made at the first write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # -- reading ---------------------------------------------------------------------------------------------------
    def list(self) -> Sequence[Version]:
        """Whole versions, oldest first."""
        paths = [path for path in self.directory.glob("version_*") if _NAME.fullmatch(path.name) and (path / MANIFEST).is_file()]
        return sorted((read_version(path) for path in paths), key=lambda version: version.number)

    def get(self, name: str) -> Version:
        """By name, or ``@champion``, ``@previous``, ``@latest``. Raises ``NotFound`` with the nearest name as a hint."""
        if name.startswith("@"):
            return self._resolve(name)
        path = self.directory / name
        if _NAME.fullmatch(name) and (path / MANIFEST).is_file():
            return read_version(path)
        known = [version.name for version in self.list()]
        near = difflib.get_close_matches(name, [*known, "@champion", "@previous", "@latest"], n=1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known) or 'nothing yet'}"
        raise NotFound(f"no version {name!r} in {self.directory}", hint)

    def base_of(self, version: Version) -> Version:
        """The imported model a version's line began with: what every merge starts from."""
        return self.get(version.manifest.lineage[0]) if version.manifest.lineage else version

    def find(self, run_id: str, iteration: int, arm: str | None = None) -> Version | None:
        """The version that this iteration of this run made."""
        made = (v for v in self.list() if (v.manifest.run_id, v.manifest.iteration, v.manifest.arm) == (run_id, iteration, arm))
        return next(made, None)

    def verify_files(self, version: Version) -> Sequence[str]:
        """Hash every file again: what is missing, changed or not in the manifest, one ``path: what`` each. Empty: all is well."""
        wanted = version.manifest.files
        found = set(relative_files(version.path)) - {MANIFEST}
        problems = dict.fromkeys(wanted.keys() - found, "missing") | dict.fromkeys(found - wanted.keys(), "not in the manifest")
        problems |= {name: "changed" for name in found & wanted.keys() if sha256_of(version.path / name) != wanted[name]}
        return [f"{name}: {what}" for name, what in sorted(problems.items())]

    @property
    def pointers(self) -> Pointers:
        """Raises ``LeydenError`` where their file is damaged."""
        try:
            return Pointers.model_validate_json(self._pointer_file.read_bytes())
        except FileNotFoundError:
            return Pointers()
        except ValidationError as error:
            raise LeydenError(f"{self._pointer_file} is damaged", "remove it, then: leyden models promote VERSION") from error

    # -- writing ---------------------------------------------------------------------------------------------------
    @property
    def next_name(self) -> str:
        """Of the version that is made next."""
        return f"version_{max((version.number for version in self.list()), default=-1) + 1}"

    def new_draft(self, parent: Version | None = None) -> Draft:
        """A version in the making, with the next number. It stays until it is committed, discarded or swept. Raises ``DiskError``."""
        return make_draft(self.directory, self.next_name, parent)

    def reopen_draft(self, directory_name: str, parent: Version | None = None) -> Draft | None:
        """The draft that an earlier process left under that name; None where there is none."""
        path = self.directory / directory_name
        return Draft(path, parent) if _DRAFT.fullmatch(directory_name) and path.is_dir() else None

    def sweep_drafts(self, keep: Collection[str] = ()) -> Sequence[str]:
        """Remove the drafts that earlier processes left, but for the directories named in ``keep``. Returns the names of the removed.

        Only for whoever is alone in the directory: another's draft looks the same.
        """
        paths = self.directory.glob(".version_*.draft")
        swept = sorted(path.name for path in paths if _DRAFT.fullmatch(path.name) and path.name not in keep)
        for name in swept:
            Draft(self.directory / name, None).discard()
        return swept

    def import_version(self, source: Path) -> Version:
        """Make ``source`` the base of this directory, and its champion. Weights are hard-linked where the file system can.

        Raises ``UsageError`` naming what a broken model directory lacks, ``Conflict`` where there is a version already, ``DiskError``.
        """
        check_model_dir(source)
        if self.list():
            raise Conflict(f"{self.directory} holds {self.list()[0].name} already", "use that one, or another run directory")
        draft = self.new_draft()
        try:
            with disk_errors(draft.path, needs=size_of(source, "*.safetensors")):
                for name in relative_files(source):
                    if "/" not in name and not name.startswith(".") and name not in _OURS:
                        _copy(source / name, draft.path / name, link=name.endswith(".safetensors"))
                if not (draft.path / TEMPLATE).exists():
                    (draft.path / TEMPLATE).write_text(read_template(source) or "")
            version = draft.commit()
        finally:
            draft.discard()  # nothing is there any more once it was committed
        return self.promote(version.name, "imported")

    def clone_from(self, other: Registry, version: Version) -> Version:
        """Begin this directory with another's version as champion, and its base, under the names and with the past they have there.

        What lies between the two stays there. Files are hard-linked where the file system can. A clone that was interrupted may be
        repeated. Raises ``Conflict`` where this directory holds anything else, ``DiskError``.
        """
        wanted = {v.name: v for v in (other.base_of(version), version)}
        strangers = [v.name for v in self.list() if v.name not in wanted or v.manifest != wanted[v.name].manifest]
        if strangers:
            raise Conflict(f"{self.directory} holds {strangers[0]} already", "fork into a new run directory")
        for original in wanted.values():
            if not (self.directory / original.name).exists():
                self._clone(original)
        return self.promote(version.name, f"forked from {other.directory}")

    def promote(self, name: str, reason: str) -> Version:
        """Make a version the champion; the old champion becomes ``previous``. Promoting the champion again changes nothing."""
        version, pointers = self.get(name), self.pointers
        if version.name != pointers.champion:
            self._point(version.name, pointers.champion, reason)
        return version

    def judge(self, candidate: str, champion: str | None, decision: str, reason: str, verdict: dict[str, Any]) -> None:
        """Keep what the gate said. Moves no pointer; saying the same once more changes nothing."""
        pointers = self.pointers
        known = [said.model_dump(exclude={"at"}) for said in pointers.judgements]
        said = {"candidate": candidate, "champion": champion, "decision": decision, "reason": reason, "verdict": verdict}
        if said not in known:
            judgement = Judgement.model_validate(said | {"at": time.time_ns() // 1000})
            self._write(pointers.model_copy(update={"judgements": (*pointers.judgements, judgement)}))

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
            versions = [version for version in self.list() if version.manifest.arm is None]
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
        move = Promotion(champion=champion, previous=previous, reason=reason, at=time.time_ns() // 1000)
        pointers = self.pointers
        self._write(pointers.model_copy(update={"champion": champion, "previous": previous, "history": (*pointers.history, move)}))

    def _write(self, pointers: Pointers) -> None:
        with disk_errors(self.directory):
            write_atomically(self._pointer_file, pointers.model_dump_json(indent=2))

    def _clone(self, original: Version) -> None:
        draft = make_draft(self.directory, original.name, None)
        try:
            with disk_errors(draft.path, needs=size_of(original.path)):
                for name in relative_files(original.path):
                    (draft.path / name).parent.mkdir(exist_ok=True)
                    _copy(original.path / name, draft.path / name, link=True)  # a version's files never change in place
                draft.publish(original.manifest)
        finally:
            draft.discard()


def check_model_dir(directory: Path) -> None:
    """Raise ``UsageError`` unless the directory holds what serving and training need: config, whole weights, tokenizer, chat template."""
    check_checkpoint(directory)
    if not read_template(directory):
        raise UsageError(f"{directory} is not a whole model: {TEMPLATE} missing", "import it again: leyden models import SOURCE")
    if "quantization_config" in json.loads((directory / "config.json").read_text()):
        raise UsageError(f"{directory} is quantised, and a merge would round twice", "use the model's 16-bit weights")


def _copy(source: Path, target: Path, *, link: bool) -> None:
    """``link``: as a hard link where the file system can."""
    if link:
        try:
            target.hardlink_to(source.resolve())
            return
        except OSError:  # another file system, or one without hard links
            pass
    shutil.copyfile(source, target)
