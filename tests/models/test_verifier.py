"""A saved version that is not what it says does not pass, whatever is wrong with it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from leyden.errors import Unavailable, UsageError  # noqa: E402
from leyden.models.engine import EmbeddedEngine  # noqa: E402
from leyden.models.tensors import bf16_step  # noqa: E402
from leyden.models.verifier import CONVERSATION, TOOLS, Check, load_tokenizer, render, try_engine, verify, verify_in_child  # noqa: E402
from leyden.ports import reserve_port  # noqa: E402
from leyden.process import new_marker  # noqa: E402

EMBEDDING = "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"


def merged(tiny_model, version, **lora):
    """A version merged from a random adapter."""
    from leyden.algorithm.sft.config import PROJECTIONS

    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(PROJECTIONS), init_lora_weights=False, task_type="CAUSAL_LM", **lora)
    adapted = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "modules_to_save" in name:
                parameter += 0.01 * torch.randn(parameter.shape)
    return saved(adapted, tiny_model, version)


def saved(adapted, tiny_model, version):
    """As the training child saves what it has trained."""
    from leyden.algorithm.sft.checkpoint import copy_parent_files, merge

    adapted.save_pretrained(version / "adapter", save_embedding_layers=False)
    merge(tiny_model, version / "adapter", version)
    copy_parent_files(tiny_model, version)
    return version


@pytest.fixture(scope="module")
def good(tiny_model, tmp_path_factory):
    return merged(tiny_model, tmp_path_factory.mktemp("good") / "version_1")


@pytest.fixture(scope="module")
def good_whole(tiny_model, tmp_path_factory):
    """Its embedding was trained whole, and is tied to its head."""
    directory = tmp_path_factory.mktemp("whole") / "version_1"
    return merged(tiny_model, directory, modules_to_save=["embed_tokens"], ensure_weight_tying=True)


@pytest.fixture
def version(good, tmp_path):
    """A copy to break."""
    return shutil.copytree(good, tmp_path / "version_1")


def failures(version, base) -> dict[str, str]:
    report = verify(version, base, version / "adapter", parent_dir=base)
    assert len(report.checks) == 10 and report.ok == (not report.failures)
    return {check.name: check.detail for check in report.failures}


def change_tensor(version, name: str, change) -> None:
    tensors = load_file(version / "model.safetensors")
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, version / "model.safetensors", metadata={"format": "pt"})


def change_json(path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_version_as_it_should_be_passes(version, tiny_model):
    assert failures(version, tiny_model) == {}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_version_of_a_base_in_another_precision_passes(tiny_model, tmp_path, dtype):
    base = shutil.copytree(tiny_model, tmp_path / "version_0")
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(base / "model.safetensors").items()}
    torch.manual_seed(2)
    finer = {name: tensor * (1 + 0.004 * torch.rand_like(tensor)) for name, tensor in tensors.items()}  # digits that bfloat16 has not
    save_file(finer, base / "model.safetensors", metadata={"format": "pt"})
    assert failures(merged(base, tmp_path / "version_1"), base) == {}


def test_what_rounding_takes_of_a_small_update_is_told_and_no_failure(tiny_model, tmp_path):
    """Gradients point along the activations, and so does what is lost of them: it moves logits far more than random errors of that size."""
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=1, lora_alpha=1, target_modules=["down_proj", "v_proj"], task_type="CAUSAL_LM"))
    calls = []

    def note(module, given, answer):
        answer.retain_grad()
        calls.append((module, given[0].detach(), answer))

    for module in adapted.modules():
        if hasattr(module, "lora_A"):
            module.register_forward_hook(note)
    adapted(torch.tensor([render(load_tokenizer(tiny_model))])).logits[0, -1, 7].backward()
    with torch.no_grad():
        for module, given, answer in calls:
            step = bf16_step(module.base_layer.weight).median()
            module.lora_A["default"].weight.copy_(given[0, -1].sign()[None])
            module.lora_B["default"].weight.copy_((answer.grad[0, -1].sign() * 0.45 * step)[:, None])

    version = saved(adapted, tiny_model, tmp_path / "version_1")
    report = verify(version, tiny_model, version / "adapter", parent_dir=tiny_model)
    assert report.ok, report.failures
    [detail] = [check.detail for check in report.checks if check.name == "logits"]
    difference, tolerance, moved = map(float, re.findall(r"\d+\.\d+", detail))
    assert difference <= tolerance < moved / 2, detail


def test_a_module_that_was_trained_whole_is_checked_like_any_other(good_whole, tiny_model, tmp_path):
    version = shutil.copytree(good_whole, tmp_path / "version_1")
    report = verify(version, tiny_model, version / "adapter", parent_dir=tiny_model)
    assert report.ok, report.failures
    assert any("14 adapted, 1 trained whole" in check.detail for check in report.checks)

    base = load_file(tiny_model / "model.safetensors")
    change_tensor(version, EMBEDDING, lambda tensor: base[EMBEDDING])  # a merge that forgot it
    assert f"{EMBEDDING} is not base + adapter" in failures(version, tiny_model)["weights"]


def test_an_adapter_whose_tied_embeddings_differ_is_found(good_whole, tiny_model, tmp_path):
    version = shutil.copytree(good_whole, tmp_path / "version_1")
    adapter = version / "adapter" / "adapter_model.safetensors"
    tensors = load_file(adapter)
    tensors["base_model.model.lm_head.weight"] = tensors["base_model.model.lm_head.weight"] + 1
    save_file(tensors, adapter, metadata={"format": "pt"})
    assert "the adapter does not" in failures(version, tiny_model)["weights"]


@pytest.mark.parametrize("setting", [{"use_dora": True}, {"rank_pattern": {"q_proj": 8}}, {"bias": "all"}])
def test_an_adapter_of_a_kind_that_cannot_be_summed_does_not_pass(version, tiny_model, setting):
    change_json(version / "adapter" / "adapter_config.json", **setting)
    assert f"an adapter with {next(iter(setting))}" in failures(version, tiny_model)["weights"]


def test_an_adapter_for_tensors_that_are_not_there_is_found(version, tiny_model):
    adapter = version / "adapter" / "adapter_model.safetensors"
    tensors = {name.replace("layers.1.", "layers.9."): tensor for name, tensor in load_file(adapter).items()}
    save_file(tensors, adapter, metadata={"format": "pt"})
    assert "model.layers.9." in failures(version, tiny_model)["weights"]


def test_a_quantised_base_is_refused_by_the_merge_and_by_the_verifier(version, tiny_model, tmp_path):
    from leyden.algorithm.sft.checkpoint import merge

    base = shutil.copytree(tiny_model, tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    save_file(tensors | {UP: tensors[UP].to(torch.int8)}, base / "model.safetensors", metadata={"format": "pt"})
    assert "holds weights in bfloat16, int8" in failures(version, base)["base"]
    change_json(base / "config.json", quantization_config={"load_in_4bit": True})
    assert "the base is quantised" in failures(version, base)["base"]
    with pytest.raises(UsageError, match="is quantised, and a merge would round twice"):
        merge(base, version / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_renders_a_tool_conversation_to_the_ids_of_its_parent(version, tiny_model):
    ids = render(load_tokenizer(version))
    assert ids == render(load_tokenizer(tiny_model))
    text = transformers.AutoTokenizer.from_pretrained(version).decode(ids)
    assert '"arguments": {"expression": "12 + 34"}' in text and "<tool_response>\n46\n" in text and text.endswith("assistant\n")
    assert CONVERSATION[2]["tool_calls"][0]["function"]["name"] == TOOLS[0]["function"]["name"]


def test_it_renders_a_tool_conversation_to_the_ids_the_engine_saw(version, tiny_model):
    from leyden.models.embedded.completion import prompt_of
    from leyden.models.embedded.engine import TransformersEngine
    from leyden.models.embedded.protocol import ChatRequest

    call = CONVERSATION[2]["tool_calls"][0]
    as_text = call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}  # as OpenAI clients send it
    messages = [*CONVERSATION[:2], CONVERSATION[2] | {"tool_calls": [as_text]}, CONVERSATION[3]]
    request = ChatRequest(model="m", messages=messages, tools=TOOLS)

    async def seen(directory) -> list[int]:
        engine = TransformersEngine(directory, device="cpu")
        try:
            return prompt_of(engine, request)
        finally:
            engine.close()

    assert asyncio.run(seen(tiny_model)) == asyncio.run(seen(version)) == render(load_tokenizer(version))


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


def test_a_changed_generation_config_is_found(version, tiny_model):
    change_json(version / "generation_config.json", temperature=0.2)
    assert failures(version, tiny_model)["config"] == "generation_config.json differs from the parent's in temperature"


def verified_in_child(version, base, tmp_path, **options):
    return asyncio.run(
        verify_in_child(
            version, base, version / "adapter", parent_dir=base, marker=new_marker(), log_path=tmp_path / "log", **options
        )
    )  # fmt: skip


class StandIn:
    """Stands for an engine whose start, or whose answer, fails."""

    model_name, can_switch = "version_1", False

    def __init__(self, base_url: str = "", error: Unavailable | None = None) -> None:
        self.base_url, self.error, self.stopped = base_url, error, False

    async def start(self) -> None:
        if self.error:
            raise self.error

    async def stop(self) -> None:
        self.stopped = True


def test_an_engine_starts_on_a_version_and_answers(version, tmp_path):
    engine = EmbeddedEngine(version, log_path=tmp_path / "engine.log", marker=new_marker())
    check = asyncio.run(try_engine(engine))
    assert (check.name, check.ok, check.detail) == ("engine", True, "it starts and answers")
    assert engine.base_url == "", "it was stopped again"


def test_an_engine_that_does_not_start_or_answer_fails_the_check():
    with reserve_port("127.0.0.1", 0) as socket:
        unused = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    dead, silent = StandIn(error=Unavailable("the engine died while starting")), StandIn(unused)
    checks = [asyncio.run(try_engine(engine)) for engine in (dead, silent)]
    assert checks[0] == Check(name="engine", ok=False, detail="the engine died while starting")
    assert not checks[1].ok and "did not answer" in checks[1].detail
    assert dead.stopped and silent.stopped


def test_a_verifier_that_dies_is_reported(version, tiny_model, tmp_path):
    with pytest.raises(Unavailable, match="died") as failure:
        verified_in_child(version, tiny_model, tmp_path, python="/bin/false")
    assert failure.value.exit_code == 3
