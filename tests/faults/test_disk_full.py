"""A disk that is really full, at each place where a version is written: one clear line, and a registry in which all is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "training")]

pytest.importorskip("trl")

from backend_suite import CONFIG, make_job, run_training  # noqa: E402

from leyden.algorithm.sft.job import TrainProgress  # noqa: E402
from leyden.algorithm.sft.rundir import RunDir  # noqa: E402
from leyden.errors import DiskError, LeydenError, Unavailable  # noqa: E402
from leyden.models.registry import Registry  # noqa: E402

FULL = r"no space left on the disk of .*free"


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode != 0:
        pytest.skip(f"a small file system needs root: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def registry(disk, tiny_model) -> Registry:
    """With an imported version and one committed draft."""
    registry = Registry(disk / "models")
    registry.import_version(tiny_model)
    add_version(registry)
    return registry


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> Path:
    from tinymodel import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "version_0")


def add_version(registry: Registry):
    draft = registry.new_draft(registry.get("@champion"))
    (draft.path / "model.safetensors").write_bytes(b"weights")
    return draft.commit(run_id="run-1", iteration=1)


def fill(disk: Path, leaving: int = 0) -> None:
    """Take all there is but for ``leaving`` bytes, in whole pages."""
    with (disk / "filler").open("ab") as filler:
        while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > leaving:
            filler.write(b"\0" * min(free - leaving, 1 << 20))
            filler.flush()


def is_whole(registry: Registry, names: list[str]) -> None:
    assert [version.name for version in registry.list()] == names
    for version in registry.list():
        assert registry.verify_files(version) == []
    assert registry.get("@champion").name == "version_0"
    assert not list(registry.directory.rglob("*.tmp"))


def works_again(registry: Registry, disk: Path) -> None:
    (disk / "filler").unlink()
    registry.sweep_drafts()
    assert registry.promote(add_version(registry).name, "room again") == registry.get("@champion")


def test_while_the_child_saves_what_it_trained(registry, disk, tmp_path):
    draft = registry.new_draft(registry.get("version_0"))
    job = make_job(draft.parent.path, draft.path, config=CONFIG.model_copy(update={"max_steps": 2}))

    def fill_at_the_last_step(progress: TrainProgress) -> None:
        if progress.step == 1:
            fill(disk)

    with pytest.raises(Unavailable, match=f"the training failed: {FULL}") as failure:
        run_training(job, tmp_path / "train.log", fill_at_the_last_step)
    assert "needs about" in failure.value.message and failure.value.hint.startswith("make room there, then run the same command again")
    draft.discard()
    is_whole(registry, ["version_0", "version_1"])
    works_again(registry, disk)


def test_before_a_training_that_would_not_fit(registry, disk, tmp_path):
    fill(disk, leaving=100_000)
    draft = registry.new_draft(registry.get("version_0"))
    job = make_job(draft.parent.path, draft.path, dataset_path=tmp_path / "rows.arrow", dataset_sha256="")
    with pytest.raises(DiskError, match=FULL):
        run_training(job, tmp_path / "train.log")
    assert not (tmp_path / "train.log").exists(), "a child was started for nothing"


def test_while_a_dataset_is_written(registry, disk, tiny_model):
    fill(disk)
    with pytest.raises(DiskError, match=FULL):
        make_job(tiny_model, disk / "out")
    assert not [path for path in disk.iterdir() if "arrow" in path.name]


@pytest.mark.parametrize("leaving", [0, 4096, 8192])
def test_while_a_version_is_committed(registry, disk, leaving):
    draft = registry.new_draft(registry.get("version_0"))
    (draft.path / "model.safetensors").write_bytes(b"weights")
    fill(disk, leaving)
    try:
        draft.commit()
    except LeydenError as error:
        assert isinstance(error, DiskError) and "no space left on the disk" in error.message
        assert draft.path.is_dir(), "what was trained is still there"
        is_whole(registry, ["version_0", "version_1"])
        (disk / "filler").unlink()
        assert draft.commit().name == "version_2"
    else:
        assert leaving > 0
        is_whole(registry, ["version_0", "version_1", "version_2"])


def test_while_the_champion_moves(registry, disk):
    fill(disk)
    with pytest.raises(DiskError, match=FULL):
        registry.promote("version_1", "better")
    is_whole(registry, ["version_0", "version_1"])
    works_again(registry, disk)


def test_while_a_run_writes_down_what_it_did(disk):
    run = RunDir.create(disk / "runs", "one", {})
    run.metric(step="collect")
    fill(disk)
    for write in (lambda: run.metric(note="x" * 9000), lambda: run.write_summary({"note": "x" * 9000})):
        with pytest.raises(DiskError, match=FULL):
            write()
    assert [line.get("step") for line in run.metrics()] == ["collect"]
    assert run.summary is None


def test_while_a_model_is_imported(disk, tiny_model):
    registry = Registry(disk / "models")
    registry.directory.mkdir()
    fill(disk, leaving=150_000)
    with pytest.raises(DiskError, match=r"needs about 20\d kB") as failure:
        registry.import_version(tiny_model)
    assert failure.value.exit_code == 3 and registry.list() == [] and list(registry.directory.iterdir()) == []
    (disk / "filler").unlink()
    assert registry.import_version(tiny_model).name == "version_0"
