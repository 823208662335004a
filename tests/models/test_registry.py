"""Versions appear whole or not at all, know where they came from, and are found by name."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from leyden.errors import Conflict, DiskError, LeydenError, NotFound, UsageError
from leyden.files import sha256_of
from leyden.models.registry import Registry, check_model_dir


@pytest.fixture
def source(tmp_path):
    """The smallest directory that passes for a model: one tensor of four bytes."""
    directory = tmp_path / "source"
    directory.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


@pytest.fixture
def registry(tmp_path, source):
    registry = Registry(tmp_path / "models")
    registry.import_version(source)
    return registry


def add_version(registry: Registry, parent: str, **manifest):
    draft = registry.new_draft(registry.get(parent))
    (draft.path / "adapter").mkdir()
    (draft.path / "adapter" / "adapter_model.safetensors").write_text(f"{draft.name}'s")
    return draft.commit(**manifest)


def test_an_imported_model_is_version_0_and_champion(registry, source):
    version = registry.get("version_0")
    assert registry.get("@champion") == registry.get("@latest") == version
    assert version.manifest.parent is None and version.manifest.lineage == () and version.adapter_dir is None
    assert version.manifest.files == {path.name: sha256_of(path) for path in source.iterdir()}
    check_model_dir(version.path)


def test_a_version_names_its_parent_its_data_and_every_file(registry):
    add_version(registry, "version_0")
    version = add_version(
        registry, "version_1", dataset_sha256="d" * 64, training={"r": 16}, metrics={"loss": 1.5}, run_id="run-1", iteration=1
    )
    manifest = registry.get("version_2").manifest
    assert manifest == version.manifest
    assert (manifest.parent, manifest.lineage) == ("version_1", ("version_0", "version_1"))
    assert (manifest.dataset_sha256, manifest.training, manifest.run_id, manifest.iteration) == ("d" * 64, {"r": 16}, "run-1", 1)
    assert list(manifest.files) == ["adapter/adapter_model.safetensors"]
    assert version.adapter_dir == version.path / "adapter"
    assert registry.base_of(version).name == "version_0"
    assert manifest.weights.base == "version_0", "a merge starts from the imported weights, whatever its parent"
    assert manifest.weights.adapter_sha256 == manifest.files["adapter/adapter_model.safetensors"]
    assert (manifest.weights.summed_in, manifest.weights.saved_as) == ("float32", "bfloat16")
    assert registry.get("version_0").manifest.weights is None


def test_a_discarded_draft_is_gone_and_its_number_is_free(registry):
    draft = registry.new_draft()
    assert draft.name == "version_1" and draft.path.name.startswith(".")
    (draft.path / "model.safetensors").write_text("half")
    draft.discard()
    draft.discard()
    assert registry.new_draft().name == "version_1"
    assert registry.reopen_draft(draft.path.name) is None


def test_a_discarded_draft_does_not_take_its_version_with_it(registry):
    draft = registry.new_draft(registry.get("version_0"))
    version = draft.commit()
    draft.discard()
    assert registry.get("version_1") == version and registry.verify_files(version) == []


KILLED_WHILE_WRITING = """
import os, sys
from pathlib import Path
from leyden.models.registry import Registry
draft = Registry(Path(sys.argv[1])).new_draft()
(draft.path / "model.safetensors").write_text("weights")
os.replace = os.rename = Path.rename = Path.replace = lambda *args: os._exit(9)  # just before the manifest or the version is there
if sys.argv[2] == "at the rename":
    import leyden.models.draft as room
    room.write_atomically = lambda path, text: path.write_text(text)
draft.commit(run_id="run-1", iteration=1)
"""


@pytest.mark.parametrize("moment", ["at the manifest", "at the rename"])
def test_what_a_killed_driver_leaves_is_never_listed_and_can_be_finished(registry, moment):
    killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(registry.directory), moment], check=False)
    assert killed.returncode == 9
    (registry.directory / "version_7").mkdir()  # a copy by hand that never got its manifest
    (left,) = registry.directory.glob(".version_1.*.draft")
    assert [version.name for version in registry.list()] == ["version_0"]
    assert registry.find("run-1", 1) is None

    assert registry.reopen_draft("../version_0") is None and registry.reopen_draft("version_0") is None
    draft = registry.reopen_draft(left.name, registry.get("version_0"))
    assert draft is not None and draft.name == "version_1"
    version = draft.commit(run_id="run-1", iteration=1)
    assert version.manifest.parent == "version_0" and "manifest.json" not in version.manifest.files
    assert registry.find("run-1", 1) == version and registry.find("run-1", 2) is None
    assert (version.path / "model.safetensors").read_text() == "weights" and not left.exists()


def test_drafts_are_swept_but_for_those_to_keep(registry):
    kept, left = registry.new_draft(), registry.new_draft()
    (registry.directory / ".version_1.notes").mkdir()  # somebody else's
    assert registry.sweep_drafts(keep=[kept.path.name]) == [left.path.name]
    assert kept.path.is_dir() and not left.path.exists() and (registry.directory / ".version_1.notes").is_dir()
    assert registry.sweep_drafts() == [kept.path.name]
    assert Registry(registry.directory / "nowhere").sweep_drafts() == []


def test_two_drivers_cannot_both_have_a_number(registry):
    first, second = registry.new_draft(), registry.new_draft()
    first.commit()
    with pytest.raises(Conflict, match="version_1 exists already"):
        second.commit()
    assert second.path.is_dir()


def test_damage_is_named_file_by_file(registry):
    version = add_version(registry, "version_0")
    (version.path / "config.json").write_text("{}")
    version = registry.get(version.name)
    assert registry.verify_files(version) == ["config.json: not in the manifest"]
    (version.path / "config.json").unlink()
    (version.path / "adapter" / "adapter_model.safetensors").write_text("another")
    assert registry.verify_files(version) == ["adapter/adapter_model.safetensors: changed"]
    (version.path / "adapter" / "adapter_model.safetensors").unlink()
    assert registry.verify_files(version) == ["adapter/adapter_model.safetensors: missing"]


def test_a_damaged_manifest_or_pointer_file_is_one_clear_error(registry):
    (registry.directory / "pointers.json").write_text("{")
    with pytest.raises(LeydenError, match=re.escape("pointers.json is damaged")):
        registry.get("@champion")
    (registry.get("version_0").path / "manifest.json").write_text("{")
    with pytest.raises(LeydenError, match=re.escape("manifest.json is damaged")):
        registry.list()


def test_a_fork_begins_with_the_base_and_the_champion_of_another_run(registry, tmp_path):
    for parent in ("version_0", "version_1"):
        add_version(registry, parent, run_id="run-1", iteration=1)
    fork = Registry(tmp_path / "fork")
    version = fork.clone_from(registry, registry.get("version_2"))
    assert [v.name for v in fork.list()] == ["version_0", "version_2"], "what lies between was not asked for"
    assert fork.get("@champion") == version and version.manifest == registry.get("version_2").manifest
    assert fork.base_of(version).name == "version_0" and version.adapter_dir == fork.directory / "version_2" / "adapter"
    assert all(fork.verify_files(v) == [] for v in fork.list())
    assert (version.path / "manifest.json").stat().st_ino == (registry.get("version_2").path / "manifest.json").stat().st_ino
    assert fork.new_draft(version).name == "version_3"
    assert fork.pointers.history[0].reason.startswith("forked from ")


def test_an_interrupted_fork_may_be_repeated_and_another_refused(registry, tmp_path, monkeypatch):
    first, second = add_version(registry, "version_0"), add_version(registry, "version_0")
    fork = Registry(tmp_path / "fork")
    monkeypatch.setattr(Registry, "promote", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fork.clone_from(registry, first)
    monkeypatch.undo()
    assert fork.clone_from(registry, first) == fork.get("@champion")
    with pytest.raises(Conflict, match="version_1 already"):
        fork.clone_from(registry, second)
    base = registry.get("version_0")
    assert Registry(tmp_path / "other").clone_from(registry, base).manifest == base.manifest


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left on the disk of .* free"),
        (errno.EIO, "cannot write to .*Input/output error"),
    ],
)
def test_a_disk_that_fails_at_any_write_leaves_the_registry_whole(registry, monkeypatch, number, message):
    """The first fsync fails, then the second, and so on until all goes well: of the manifest, the tree, the directory, the pointers."""
    before = registry.get("version_0")
    for writes in range(100):
        left = iter(range(writes))
        fsync = os.fsync

        def failing(fd, fsync=fsync, left=left):
            if next(left, None) is None:
                raise OSError(number, os.strerror(number))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", failing)
        try:
            version = add_version(registry, "version_0")
            registry.promote(version.name, "better")
        except DiskError as error:
            problem = error
        else:
            break
        finally:
            monkeypatch.undo()
            registry.sweep_drafts()
        assert all(registry.verify_files(version) == [] for version in registry.list())
        assert registry.get("@champion").name == "version_0" or registry.get("@previous").name == "version_0"
        assert not list(registry.directory.glob("**/*.tmp"))
        for version in registry.list()[1:]:
            shutil.rmtree(version.path)
        (registry.directory / "pointers.json").unlink()
        registry.promote("version_0", "imported")
    assert writes >= 6 and registry.get("@champion").name == "version_1" and registry.get("version_0") == before
    assert re.search(message, problem.message)
    assert problem.hint.endswith("run the same command again")


def test_promote_and_roll_back(registry):
    for parent in ("version_0", "version_1"):
        add_version(registry, parent)
    registry.promote("version_1", "0.2 → 0.6")
    registry.promote("@latest", "0.6 → 0.7")
    registry.promote("version_2", "again: changes nothing")
    assert (registry.get("@champion").name, registry.get("@previous").name) == ("version_2", "version_1")
    assert registry.rollback("worse in use").name == "version_1"
    assert (registry.get("@champion").name, registry.get("@previous").name) == ("version_1", "version_2")
    history = registry.pointers.history
    assert [move.champion for move in history] == ["version_0", "version_1", "version_2", "version_1"]
    assert history[1].reason == "0.2 → 0.6" and history[-1].reason == "worse in use"


def test_what_the_gate_said_is_kept_once_and_moves_nothing(registry):
    verdict = {"stages": [{"name": "pass rate", "outcome": "failed"}]}
    for _ in range(2):  # a driver that died before it wrote the step down says it again
        registry.judge("version_1", "version_0", "reject", "worse", verdict)
    registry.judge("version_1", "version_0", "undecided", "neither", {})
    said = registry.pointers.judgements
    assert [(one.candidate, one.champion, one.decision, one.reason) for one in said] == [
        ("version_1", "version_0", "reject", "worse"), ("version_1", "version_0", "undecided", "neither"),
    ]  # fmt: skip
    assert said[0].verdict == verdict
    assert registry.pointers.champion == "version_0"
    registry.promote("version_0", "again")
    registry._point("version_0", None, "moved")
    assert len(registry.pointers.judgements) == 2


def test_pointers_that_an_older_version_wrote_are_read(registry):
    path = registry.directory / "pointers.json"
    kept = json.loads(path.read_text())
    del kept["judgements"]
    path.write_text(json.dumps(kept))
    assert registry.pointers.champion == "version_0"
    assert registry.pointers.judgements == ()


def test_what_is_made_to_compare_with_is_neither_the_latest_nor_its_iterations_version(registry):
    for arm in (None, "control"):
        draft = registry.new_draft(registry.get("version_0"))
        (draft.path / "config.json").write_text(str(arm))
        draft.commit(run_id="run", iteration=1, arm=arm)
    assert [version.manifest.arm for version in registry.list()] == [None, None, "control"]
    assert registry.get("@latest").name == "version_1"
    assert registry.find("run", 1).name == "version_1"
    assert registry.find("run", 1, "control").name == "version_2"


def test_nothing_to_roll_back_to(registry):
    with pytest.raises(Conflict, match="no previous champion"):
        registry.rollback()
    with pytest.raises(NotFound, match="@previous points to nothing"):
        registry.get("@previous")


@pytest.mark.parametrize(("name", "hint"), [("verison_0", "version_0"), ("@champoin", "@champion"), ("version_00", "version_0")])
def test_an_unknown_name_gets_the_nearest_one(registry, name, hint):
    with pytest.raises(NotFound) as failure:
        registry.get(name)
    assert failure.value.hint == f"did you mean {hint}?"


def test_names_are_not_paths(registry):
    for name in ("../models/version_0", "/etc", "version_0/adapter"):
        with pytest.raises(NotFound):
            registry.get(name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_a_broken_directory_is_refused_by_what_it_lacks(source, tmp_path, name):
    (source / name).unlink()
    with pytest.raises(UsageError, match="safetensors" if name.endswith("safetensors") else re.escape(name)):
        Registry(tmp_path / "models").import_version(source)
    assert not (tmp_path / "models").exists()


def test_cut_weights_a_missing_shard_and_quantised_weights_are_refused(source):
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model.safetensors", "v": "model-00002-of-00002.safetensors"}}))
    with pytest.raises(UsageError, match=re.escape("model-00002-of-00002.safetensors missing")):
        check_model_dir(source)
    index.unlink()
    (source / "config.json").write_text('{"model_type": "llama", "quantization_config": {}}')
    with pytest.raises(UsageError, match="is quantised"):
        check_model_dir(source)
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UsageError, match=re.escape("model.safetensors is damaged")):
        check_model_dir(source)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_a_cut_json_file_is_named(source, name):
    (source / name).write_text('{"half": ')
    with pytest.raises(UsageError, match=re.escape(f"{name} is damaged")):
        check_model_dir(source)


def test_a_template_inside_the_tokenizer_config_is_written_out(source, tmp_path):
    (source / "chat_template.jinja").unlink()
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ old }}"}))
    version = Registry(tmp_path / "models").import_version(source)
    assert (version.path / "chat_template.jinja").read_text() == "{{ old }}"
    assert "chat_template.jinja" in version.manifest.files


def test_importing_a_trained_version_takes_its_weights_and_not_its_past(registry, source, tmp_path):
    trained = registry.get("version_0").path
    (trained / "adapter").mkdir()
    (trained / "adapter" / "adapter_config.json").write_text("{}")
    version = Registry(tmp_path / "other").import_version(trained)
    assert version.adapter_dir is None and version.manifest.created_at != registry.get("version_0").manifest.created_at


def test_a_directory_takes_one_base(registry, source):
    with pytest.raises(Conflict, match="holds version_0 already"):
        registry.import_version(source)
