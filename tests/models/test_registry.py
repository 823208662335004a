"""Versions appear whole or not at all, know where they came from, and are found by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from leyden.errors import Conflict, NotFound, UsageError
from leyden.models.files import sha256_of
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
    with registry.new_version(registry.get(parent)) as draft:
        (draft.path / "adapter").mkdir()
        (draft.path / "adapter" / "adapter_config.json").write_text("{}")
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
    assert list(manifest.files) == ["adapter/adapter_config.json"]
    assert version.adapter_dir == version.path / "adapter"
    assert registry.base_of(version).name == "version_0"


def test_what_was_not_committed_is_gone_and_its_number_is_free(registry):
    with pytest.raises(ZeroDivisionError), registry.new_version() as draft:
        (draft.path / "model.safetensors").write_text("half")
        raise ZeroDivisionError
    with registry.new_version() as draft:
        assert draft.name == "version_1" and draft.path.name.startswith(".")
    assert {path.name for path in registry.directory.iterdir()} == {"version_0", "pointers.json"}


def test_what_a_killed_driver_leaves_is_never_listed(registry):
    dies_while_writing = (
        "import os, sys; from pathlib import Path; from leyden.models.registry import Registry\n"
        "with Registry(Path(sys.argv[1])).new_version() as draft:\n"
        "    (draft.path / 'manifest.json').write_text('{}'); os._exit(9)"
    )
    killed = subprocess.run([sys.executable, "-c", dies_while_writing, str(registry.directory)], check=False)
    assert killed.returncode == 9
    (registry.directory / "version_7").mkdir()  # a copy by hand that never got its manifest
    assert len(list(registry.directory.glob(".version_1.*.tmp"))) == 1
    assert [version.name for version in registry.list()] == ["version_0"]
    assert add_version(registry, "version_0").name == "version_1"


def test_two_drivers_cannot_both_have_a_number(registry):
    with registry.new_version() as first, registry.new_version() as second:
        first.commit()
        with pytest.raises(Conflict, match="version_1 exists already"):
            second.commit()


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
