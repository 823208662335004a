"""A model of one's own: imported so that it can be trained, or refused in one line that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from leyden.errors import UsageError
from leyden.models.importer import import_model
from leyden.models.registry import check_model_dir
from leyden.models.template import HERMES

Make = Callable[..., Path]
NO_TOOLS = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


def template_of(directory: Path) -> str:
    return (directory / "chat_template.jinja").read_text()


def refused(source: Path, target: Path, chat_template: str | None = None) -> UsageError:
    with pytest.raises(UsageError) as caught:
        import_model(str(source), target, chat_template)
    assert not target.exists() and not list(target.parent.glob(f".{target.name}*")), "a half was left"
    assert caught.value.hint and "\n" not in caught.value.message
    return caught.value


def test_its_own_template_is_kept_and_another_one_put_in_on_demand(make_model: Make, tmp_path: Path) -> None:
    source, file = make_model(template=NO_TOOLS), tmp_path / "my.jinja"
    file.write_text("mine")
    assert template_of(import_model(str(source), tmp_path / "a")) == NO_TOOLS
    assert template_of(import_model(str(source), tmp_path / "b", "hermes")) == HERMES.read_text()
    assert template_of(import_model(str(source), tmp_path / "c", str(file))) == "mine"
    check_model_dir(tmp_path / "a")


def test_a_template_in_the_tokenizer_s_settings_becomes_a_file(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    (source / "chat_template.jinja").unlink()
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert template_of(import_model(str(source), tmp_path / "a")) == "with tools"


def test_a_missing_template_file_is_wrong_use(make_model: Make, tmp_path: Path) -> None:
    assert "no chat template at hermse" in refused(make_model(), tmp_path / "a", "hermse").message


def test_hermes_is_only_for_tokenizers_that_know_chatml(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    (source / "tokenizer.json").write_text("{}")
    assert "does not know ChatML" in refused(source, tmp_path / "a", "hermes").message
    (source / "tokenizer.json").rename(source / "tokenizer.model")
    (source / "chat_template.jinja").unlink()
    assert "--chat-template FILE" in str(refused(source, tmp_path / "a").hint)


def test_a_model_that_never_stops_is_refused_by_its_own_name(make_model: Make, tmp_path: Path) -> None:
    source = make_model(eos=None)
    error = refused(source, tmp_path / "a")
    assert error.message == f"{source} does not say which token ends a turn" and "generation_config.json" in str(error.hint)


def test_a_shard_or_a_tokenizer_that_is_missing_is_named(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (source / "model.safetensors").rename(source / weights["a"])
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    (source / "tokenizer.json").unlink()
    error = refused(source, tmp_path / "a")
    assert error.message == f"{source} is not a whole model: tokenizer.json, {weights['b']} missing"


def test_quantised_weights_are_refused(make_model: Make, tmp_path: Path) -> None:
    source = make_model(config={"quantization_config": {"quant_method": "gptq"}})
    assert "is quantised (gptq)" in refused(source, tmp_path / "a").message


def test_an_adapter_is_refused_with_the_line_that_merges_it(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    (source / "config.json").unlink()
    (source / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "ORG/BASE"}))
    error = refused(source, tmp_path / "a")
    assert error.message == f"{source} is a LoRA adapter for ORG/BASE, and adapters are not imported: only whole models are"
    assert "merge_and_unload" in str(error.hint)


def test_pickled_weights_are_refused_and_never_copied(make_model: Make, tmp_path: Path) -> None:
    source = make_model()
    shutil.copy(source / "model.safetensors", source / "pytorch_model.bin")
    assert not (import_model(str(source), tmp_path / "a") / "pytorch_model.bin").exists()
    (source / "model.safetensors").unlink()
    assert "are pickled (pytorch_model.bin)" in refused(source, tmp_path / "b").message


def test_a_disk_without_room_is_named_before_anything_is_copied(make_model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil._ntuple_diskusage(0, 0, 5)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    assert "MB left" in refused(make_model(), tmp_path / "a").message
