"""The model that an eval asks: one that is served while it lasts, imported first if need be, or an endpoint that serves already."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.errors import UsageError
from leyden.types import LLM

if TYPE_CHECKING:
    from leyden.algorithm.sft.report import Board
    from leyden.models.version import Version


@asynccontextmanager
async def served(how: Mapping[str, Any], directory: Path, marker: str, board: Board) -> AsyncIterator[LLM | None]:
    """What ``how`` names: ``model_dir`` (made of ``model_source`` where it is not there) and ``engine``, or ``base_url`` and
    ``served_model``, and how to sample. None where it names nothing. The logs lie in ``directory``. Should the engine die, the block is
    cancelled and its error raised. Raises ``UsageError`` for a directory or a source that holds no model."""
    if not how.get("model_dir"):
        yield described(how)
        return
    from leyden.algorithm.sft.serving import living
    from leyden.models.engine_config import EngineConfig
    from leyden.models.engines import choose, make_engine
    from leyden.models.importer import import_in_child

    config = EngineConfig.model_validate({"kind": how.get("engine") or "auto"})
    path = Path(how["model_dir"])
    if is_to_be_imported(how):
        with board.step(f"import {how['model_source']} into {path}"):
            await import_in_child(how["model_source"], path, marker=marker, log_path=_log(directory, "import"))
    llm, version = described(how), _version(path)
    assert llm is not None
    engine = make_engine(config, version, version, log_path=_log(directory, "engine"), marker=marker)
    try:
        with board.step(f"start {choose(config)}"):
            await engine.start()
        async with living(engine):
            yield llm.model_copy(update={"endpoint": engine.base_url, "model": engine.model_name})
    finally:
        await engine.stop()


def _log(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}.log"


def is_to_be_imported(how: Mapping[str, Any]) -> bool:
    """Raises ``UsageError`` for a name that no import knows either."""
    from leyden.models.importer import names_a_path

    source, directory = how.get("model_source"), Path(how["model_dir"])
    if source is None or directory.exists() or names_a_path(source):
        return False
    if source != "smollm2" and source.count("/") != 1:
        raise UsageError(f"no model at {source}, nor at {directory}", "give a directory, a hub name like ORG/NAME, or smollm2")
    return True


def described(how: Mapping[str, Any]) -> LLM | None:
    """The model as far as it is known before it is served: without its digest where it is to be imported. Raises ``UsageError`` as
    ``served`` does."""
    sampling = {name: how[name] for name in ("temperature", "max_tokens") if how.get(name) is not None}
    if how.get("model_dir"):
        path = Path(how["model_dir"])
        if is_to_be_imported(how):
            return LLM(endpoint="", model=path.name, sampling_parameters=sampling)
        name = _version(path).name
        return LLM(endpoint="", model=name, sampling_parameters=sampling, checkpoint=f"{name}-{_digest(path)[:12]}")
    if how.get("base_url"):
        return LLM(endpoint=how["base_url"], model=how["served_model"], sampling_parameters=sampling, api_key=_key(how.get("api_key_env")))
    return None


def _key(variable: str | None) -> str | None:
    if variable is not None and not os.environ.get(variable):
        raise UsageError(f"the environment has no {variable}", f"export {variable}=...")
    return os.environ[variable] if variable else None


def _version(path: Path) -> Version:
    from leyden.models.registry import check_model_dir
    from leyden.models.version import MANIFEST, Manifest, Version, read_version

    check_model_dir(path)
    if (path / MANIFEST).is_file():
        return read_version(path)
    return Version(path, Manifest(version=path.resolve().name, files={}, created_at=0))


def _digest(path: Path) -> str:
    """Of what is in it: two directories of one name are two models."""
    from leyden.files import relative_files, sha256_of
    from leyden.models.version import MANIFEST

    if (path / MANIFEST).is_file():  # it holds the digest of every file
        return sha256_of(path / MANIFEST)
    whole = hashlib.sha256()
    for name in relative_files(path):
        whole.update(f"{name} {sha256_of(path / name)}\n".encode())
    return whole.hexdigest()
