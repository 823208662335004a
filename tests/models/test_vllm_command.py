"""The command line and environment that vLLM gets, by device."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from leyden.models import vllm
from leyden.models.accelerator import Gpu
from leyden.models.engine_config import EngineConfig
from leyden.models.vllm import arguments, environment

GIB = 1 << 30
H100 = Gpu("GPU-1", "H100", 80 * GIB, 0, (9, 0))
T4 = Gpu("GPU-2", "T4", 16 * GIB, 0, (7, 5))


@pytest.fixture
def model_dir(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 262_144}))
    return tmp_path


def option(args: list[str], name: str) -> str | None:
    return args[args.index(name) + 1] if name in args else None


def test_on_a_gpu_the_recipes_values(model_dir):
    args = arguments(EngineConfig(), model_dir, [H100])
    assert option(args, "--gpu-memory-utilization") == "0.7"
    assert option(args, "--max-model-len") == "32768"
    assert option(args, "--tool-call-parser") == "hermes" and "--enable-auto-tool-choice" in args
    assert option(args, "--dtype") == "bfloat16"
    assert option(args, "--generation-config") == "vllm"  # no sampling default of the model's own
    assert "--enforce-eager" not in args and "--quantization" not in args and "--enable-lora" not in args


def test_on_the_cpu_no_option_of_a_gpu(model_dir, monkeypatch):
    monkeypatch.setattr(vllm, "cpu_has_bf16", lambda: False)
    args = arguments(EngineConfig(quantization="bitsandbytes"), model_dir, [])
    assert "--gpu-memory-utilization" not in args and "--quantization" not in args
    assert option(args, "--max-model-len") == "2048" and "--enforce-eager" in args
    assert option(args, "--dtype") == "float32"
    monkeypatch.setattr(vllm, "cpu_has_bf16", lambda: True)
    assert option(arguments(EngineConfig(), model_dir, []), "--dtype") == "bfloat16"
    assert environment(EngineConfig(kv_cache_gib=5))["VLLM_CPU_KVCACHE_SPACE"] == "5"


def test_an_old_gpu_computes_in_float16(model_dir):
    assert option(arguments(EngineConfig(), model_dir, [T4]), "--dtype") == "float16"


def test_the_context_is_never_longer_than_the_models_own(model_dir):
    (model_dir / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 1024}}))
    assert option(arguments(EngineConfig(), model_dir, [H100]), "--max-model-len") == "1024"
    assert option(arguments(EngineConfig(), model_dir, []), "--max-model-len") == "1024"


def test_what_is_asked_for_is_passed_on(model_dir):
    config = EngineConfig(
        dtype="half", max_model_len=4096, gpu_memory_utilization=0.5, quantization="bitsandbytes", tool_call_parser="llama3_json",
        enforce_eager=True, extra_args=("--tensor-parallel-size", "2"),
    )  # fmt: skip
    args = arguments(config, model_dir, [H100, H100])
    asked = {
        "--dtype": "half", "--max-model-len": "4096", "--gpu-memory-utilization": "0.5", "--quantization": "bitsandbytes",
        "--tool-call-parser": "llama3_json", "--tensor-parallel-size": "2",
    }  # fmt: skip
    assert {name: option(args, name) for name in asked} == asked
    assert "--enforce-eager" in args and args[-2:] == list(config.extra_args)


def test_adapters_at_run_time_need_leave_and_room(model_dir):
    config = EngineConfig(runtime_lora=True, max_lora_rank=24)
    args = arguments(config, model_dir, [H100])
    assert "--enable-lora" in args and option(args, "--max-lora-rank") == "32"  # the next one that vLLM takes
    assert environment(config)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(EngineConfig())


def test_one_interpreter_not_two():
    with pytest.raises(ValidationError, match="exclude"):
        EngineConfig(python="/usr/bin/python3", command=("vllm", "serve"))
