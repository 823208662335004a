"""How to serve a version: which engine, whose interpreter, and vLLM's options under vLLM's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from leyden.types import Record

RECIPE_CONTEXT = 32_768  # tokens, on a GPU
CPU_CONTEXT = 2_048  # tokens: a CPU engine's cache is small


class EngineConfig(Record):
    """The defaults on a GPU are the recipe's; on a CPU, what vLLM needs to start there in half a minute."""

    kind: Literal["auto", "embedded", "vllm"] = "auto"  # auto: vLLM where there is a GPU and a vLLM, else embedded
    python: str | None = None  # an interpreter that has vLLM; None: a ``vllm`` on the PATH, else this one
    command: tuple[str, ...] | None = None  # instead: what to put before the model and the options, such as ("vllm", "serve")
    port: int = Field(0, ge=0, le=65_535)  # 0: any free one
    start_timeout: float = Field(600.0, gt=0)  # seconds; a large model compiles and loads for minutes

    dtype: str | None = None  # None: bfloat16 where the hardware computes in it, else float16 on a GPU, float32 on a CPU
    max_model_len: int | None = Field(None, ge=1)  # tokens; None: 32768 on a GPU, 2048 on a CPU, never beyond the model's own
    gpu_memory_utilization: float = Field(0.7, gt=0, le=1)  # GPU only
    quantization: str | None = None  # GPU only; "bitsandbytes" halves what a 4B model needs and answers slower
    tool_call_parser: str = "hermes"
    exact: bool = False  # each prompt goes on with the very ids that were sampled (docs/token-fidelity.md)
    enforce_eager: bool | None = None  # None: on a CPU, where compiling takes minutes
    kv_cache_gib: int = Field(2, ge=1)  # CPU only: VLLM_CPU_KVCACHE_SPACE
    runtime_lora: bool = False  # one engine on the base, adapters loaded into it; False: a restart on the merged weights
    max_lora_rank: int = Field(32, ge=1)
    extra_args: tuple[str, ...] = ()  # put last, so that they win

    @model_validator(mode="after")
    def _one_way_to_start(self) -> EngineConfig:
        if self.python and self.command:
            raise ValueError("python and command exclude each other: command names its own interpreter")
        return self
