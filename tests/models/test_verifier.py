"""A saved version that is not what it says does not pass, whatever is wrong with it."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from leyden.errors import Unavailable  # noqa: E402
from leyden.models.verifier import CONVERSATION, TOOLS, render, verify, verify_in_child  # noqa: E402
from leyden.process import new_marker  # noqa: E402

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def good(tiny_model, tmp_path_factory):
    """A version merged from a random adapter, as the training child does it."""
    from leyden.algorithm.sft.config import PROJECTIONS
    from leyden.algorithm.sft.trl_backend import copy_parent_files, merge

    version = tmp_path_factory.mktemp("good") / "version_1"
    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(PROJECTIONS), init_lora_weights=False, task_type="CAUSAL_LM")
    peft.get_peft_model(base, lora).save_pretrained(version / "adapter")
    merge(tiny_model, version / "adapter", version)
    copy_parent_files(tiny_model, version)
    return version


@pytest.fixture
def version(good, tmp_path):
    """A copy to break."""
    return shutil.copytree(good, tmp_path / "version_1")


def failures(version, base) -> dict[str, str]:
    report = verify(version, base, version / "adapter", parent_dir=base)
    assert len(report.checks) == 9 and report.ok == (not report.failures)
    return {check.name: check.detail for check in report.failures}


def change_tensor(version, name: str, change) -> None:
    tensors = load_file(version / "model.safetensors")
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, version / "model.safetensors", metadata={"format": "pt"})


def change_json(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_version_as_it_should_be_passes(version, tiny_model):
    assert failures(version, tiny_model) == {}


def test_it_renders_a_tool_conversation_to_the_ids_of_its_parent(version, tiny_model):
    ids = render(version)
    assert ids == render(tiny_model)
    text = transformers.AutoTokenizer.from_pretrained(version).decode(ids)
    assert '"arguments": {"expression": "12 + 34"}' in text and "<tool_response>\n46\n" in text and text.endswith("assistant\n")
    assert CONVERSATION[2]["tool_calls"][0]["function"]["name"] == TOOLS[0]["function"]["name"]


def test_it_renders_a_tool_conversation_to_the_ids_the_engine_saw(version, tiny_model):
    from leyden.models.embedded.completion import Completion
    from leyden.models.embedded.engine import TransformersEngine
    from leyden.models.embedded.protocol import ChatRequest

    call = CONVERSATION[2]["tool_calls"][0]
    as_text = call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}  # as OpenAI clients send it
    messages = [*CONVERSATION[:2], CONVERSATION[2] | {"tool_calls": [as_text]}, CONVERSATION[3]]
    request = ChatRequest(model="m", messages=messages, tools=TOOLS)

    async def seen(directory) -> list[int]:
        engine = TransformersEngine(directory, device="cpu")
        completion = Completion(engine, request)
        completion.samples.close()
        engine.close()
        return completion.prompt_ids

    assert asyncio.run(seen(tiny_model)) == asyncio.run(seen(version)) == render(version)


def test_one_wrong_weight_is_found(version, tiny_model):
    def nudge(tensor):
        tensor[3, 5] += 0.5
        return tensor

    change_tensor(version, UP, nudge)
    assert f"{UP} is not base + adapter: 1 entries differ" in failures(version, tiny_model)["weights"]


def test_a_merge_that_was_rounded_twice_is_found(version, tiny_model):
    """Base and update each rounded before the sum, as a merge in bfloat16 does."""
    adapter = load_file(version / "adapter" / "adapter_model.safetensors")
    module = "base_model.model." + UP.removesuffix(".weight")
    update = (2 * adapter[f"{module}.lora_B.weight"] @ adapter[f"{module}.lora_A.weight"]).bfloat16()
    change_tensor(version, UP, lambda tensor: load_file(tiny_model / "model.safetensors")[UP] + update)
    assert UP in failures(version, tiny_model)["weights"]


def test_an_update_that_was_not_merged_or_twice_is_found(version, tiny_model, good):
    shutil.copyfile(tiny_model / "model.safetensors", version / "model.safetensors")
    found = failures(version, tiny_model)
    assert set(found) == {"weights", "changed", "logits"} and "no weight differs" in found["changed"]

    base, once = load_file(tiny_model / "model.safetensors"), load_file(good / "model.safetensors")
    twice = {name: (2 * once[name].float() - base[name].float()).bfloat16() for name in once}
    save_file(twice, version / "model.safetensors", metadata={"format": "pt"})
    assert set(failures(version, tiny_model)) == {"weights", "logits"}


def test_another_precision_and_numbers_that_are_none_are_found(version, tiny_model):
    change_tensor(version, UP, lambda tensor: tensor.float())
    assert "float32" in failures(version, tiny_model)["dtype"]
    change_tensor(version, UP, lambda tensor: torch.full_like(tensor, torch.nan).bfloat16())
    assert {"finite", "weights", "logits"} <= set(failures(version, tiny_model))


def test_an_untied_head_is_found(version, tiny_model):
    tensors = load_file(version / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, version / "model.safetensors", metadata={"format": "pt"})
    assert {"tied", "weights"} <= set(failures(version, tiny_model))


def test_another_chat_template_or_tokenizer_is_found(version, tiny_model):
    template = version / "chat_template.jinja"
    template.write_text(template.read_text().replace("<tool_response>", "<result>"))
    assert set(failures(version, tiny_model)) == {"chat_template", "tokenizer"}
    template.unlink()
    assert "FileNotFoundError" in failures(version, tiny_model)["chat_template"]


@pytest.mark.parametrize(("eos", "detail"), [(None, "never stop"), (0, "ends a turn with 2"), ([2, 9999], "outside the vocabulary")])
def test_a_model_that_would_not_stop_is_found(version, tiny_model, eos, detail):
    change_json(version / "generation_config.json", eos_token_id=eos)
    assert detail in failures(version, tiny_model)["config"]


def test_a_changed_config_is_found(version, tiny_model):
    change_json(version / "config.json", rms_norm_eps=1e-5)
    assert failures(version, tiny_model)["config"] == "config.json differs from the parent's in rms_norm_eps"


def test_a_verifier_that_dies_is_reported(version, tiny_model, tmp_path):
    with pytest.raises(Unavailable, match="died") as failure:
        asyncio.run(
            verify_in_child(
                version, tiny_model, version / "adapter", parent_dir=tiny_model, marker=new_marker(), log_path=tmp_path / "log",
                python="/bin/false",
            )
        )  # fmt: skip
    assert failure.value.exit_code == 3
