"""vLLM as a child process, in an interpreter of its own: it and the agents' stack do not share an environment."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from leyden.errors import Unavailable, UsageError
from leyden.models.accelerator import Gpu, read_gpus, wait_free
from leyden.models.device import cpu_has_bf16
from leyden.models.engine import EngineChild
from leyden.models.engine_config import CPU_CONTEXT, RECIPE_CONTEXT, EngineConfig
from leyden.models.importer import check_checkpoint
from leyden.models.keeper import kept
from leyden.models.version import Version
from leyden.ports import check_port_free, holder_of, reserve_port
from leyden.process import find_by_marker, spawn, wait_ready

HOST = "127.0.0.1"
_ERROR = re.compile(r"(?:^|\] )((?:\w+\.)*\w*(?:Error|Exception): .*)")  # the last line of a traceback, with or without a logger's head
_NOISE = re.compile(r" - leaked|nanobind: | - \.\.\. skipped|See https://nanobind")  # its compiler's, at every exit

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what --max-lora-rank takes


class VLLMEngine:
    """Serves the merged weights of ``version``; with ``config.runtime_lora`` the weights of ``base`` and the version's adapter.

    Ready means this child, this model: besides its nice name the model is served under a random one, told to this child alone, and
    /v1/models must list that. A server that we did not start cannot know it, whatever else it answers.
    """

    def __init__(
        self, version: Version, base: Version, *, config: EngineConfig, prefix: Sequence[str], log_path: Path | None, marker: str
    ) -> None:
        self.version, self.base, self.config, self.prefix = version, base, config, tuple(prefix)
        self.loaded = base if config.runtime_lora else version  # whose weights the child loads
        self.model_name = self.loaded.name
        self.base_url = ""
        self.can_switch, self.exact = config.runtime_lora, config.exact
        self.log_path, self.marker = log_path, marker
        self._child = EngineChild(f"vLLM with {self.loaded.path}")
        self._gpus_before: list[Gpu] = []
        self._adapters: set[str] = set()  # loaded, by name

    async def start(self) -> None:
        check_checkpoint(self.loaded.path)
        if self.version.name != self.loaded.name:
            check_adapter(self.version, self.base, self.config.max_lora_rank)
        if self.config.port:
            check_port_free(HOST, self.config.port)
            port = self.config.port
        else:
            with reserve_port(HOST, 0) as free:
                port = free.getsockname()[1]
        nonce = f"leyden-{secrets.token_hex(8)}"
        self._gpus_before = await asyncio.to_thread(read_gpus)
        options = arguments(self.config, self.loaded.path, self._gpus_before)
        names = ["--served-model-name", self.loaded.name, nonce]
        command = [*self.prefix, str(self.loaded.path.resolve()), "--host", HOST, "--port", str(port), *names, *options]
        child = await spawn(kept(command), marker=self.marker, log_path=self.log_path, env=environment(self.config))
        child.digest = errors_in
        self._child.process = child
        try:
            await wait_ready(child, lambda: self._probe(port, nonce), self.config.start_timeout, self._child.what)
            self.base_url = f"http://{HOST}:{port}/v1"
            if self.version.name != self.loaded.name:
                await self.switch(self.version)
        except BaseException:
            await self.stop()
            raise

    async def _probe(self, port: int, nonce: str) -> bool:
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            try:
                answer = await client.get(f"http://{HOST}:{port}/v1/models")
                listed = {model["id"] for model in answer.json()["data"]} if answer.is_success else set()
            except httpx.TransportError:
                return False
            except (ValueError, KeyError, TypeError):
                listed = set()
        if nonce not in listed:
            raise Unavailable(
                f"port {port} is taken{holder_of(port)}, which is not the vLLM just started", "stop it, or choose another port"
            )
        return True

    async def stop(self) -> None:
        self.base_url = ""
        process = self._child.process
        if process is None:
            return
        ours = {process.pid, *(member.pid for member in await asyncio.to_thread(find_by_marker, process.marker))}
        await self._child.stop()
        self.model_name = self.loaded.name
        self._adapters.clear()
        await wait_free(self._gpus_before, ours)

    async def wait_death(self) -> Unavailable:
        return await self._child.wait_death()

    async def switch(self, version: Version) -> None:
        """See ``Engine``. The former adapter is unloaded last; if that fails, it stays loaded, unused, until the next switch."""
        if not self.can_switch:
            raise RuntimeError("this vLLM was not started with runtime_lora: start another")
        name = self.loaded.name
        async with httpx.AsyncClient(base_url=self.base_url, timeout=120.0, trust_env=False) as client:
            if version.name != self.loaded.name:
                name = f"{version.name}-{secrets.token_hex(3)}"
                await self._load(client, check_adapter(version, self.base, self.config.max_lora_rank), name)
            self.version, self.model_name = version, name
            for former in self._adapters - {name}:
                if await self._unload(client, former):
                    self._adapters.discard(former)

    async def _load(self, client: httpx.AsyncClient, adapter_dir: Path, name: str) -> None:
        """Load, and ask for one token: an adapter that is listed may still be one that cannot be applied."""
        self._adapters.add(name)
        try:
            await _post(client, "/load_lora_adapter", {"lora_name": name, "lora_path": str(adapter_dir)})
            await _post(client, "/completions", {"model": name, "prompt": "1 + 1 =", "max_tokens": 1, "temperature": 0})
        except httpx.HTTPError as error:
            if await self._unload(client, name):
                self._adapters.discard(name)
            detail = error.response.text[:500] if isinstance(error, httpx.HTTPStatusError) else str(error) or type(error).__name__
            raise Unavailable(
                f"vLLM does not serve the adapter {name}: {detail}", f"see {self.log_path}" if self.log_path else None
            ) from error

    async def _unload(self, client: httpx.AsyncClient, name: str) -> bool:
        """Whether the adapter is gone."""
        try:
            answer = await client.post("/unload_lora_adapter", json={"lora_name": name})
        except httpx.HTTPError:
            return False
        return answer.is_success or answer.status_code == 404


def arguments(config: EngineConfig, model_dir: Path, gpus: Sequence[Gpu]) -> list[str]:
    """vLLM's options but for address and names. ``gpus``: what there is; empty for the CPU."""
    context = config.max_model_len or min(RECIPE_CONTEXT if gpus else CPU_CONTEXT, model_context(model_dir) or CPU_CONTEXT)
    options = ["--dtype", config.dtype or _dtype(gpus), "--max-model-len", str(context)]
    options += ["--generation-config", "vllm"]  # sampling defaults off: nothing unseen shapes the samples
    options += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_call_parser, "--disable-uvicorn-access-log"]
    if gpus:
        options += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
        options += ["--quantization", config.quantization] if config.quantization else []
    if config.enforce_eager or (config.enforce_eager is None and not gpus):
        options.append("--enforce-eager")
    if config.exact:
        options.append("--enable-scale-out")  # rendering and generating apart
    if config.runtime_lora:
        # Two at once, so that the new one is loaded and tried while calls on the old one end.
        rank = next((rank for rank in RANKS if rank >= config.max_lora_rank), RANKS[-1])
        options += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2"]
    return [*options, *config.extra_args]


def environment(config: EngineConfig) -> dict[str, str]:
    """For the child, besides what ``spawn`` gives. The model is a local directory: the network is not asked for anything."""
    env = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
    env["VLLM_CPU_KVCACHE_SPACE"] = str(config.kv_cache_gib)
    if (os.cpu_count() or 1) < 4:
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"  # else it keeps one core free for others, and with two that halves its speed
    if config.runtime_lora:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    return env


def model_context(model_dir: Path) -> int | None:
    """The longest context that the model's own config names, in tokens."""
    config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
    return config.get("text_config", config).get("max_position_embeddings")


def check_adapter(version: Version, base: Version, max_rank: int) -> Path:
    """The version's adapter. Raises ``UsageError`` for one that an engine on ``base`` cannot serve."""
    if version.adapter_dir is None or version.manifest.lineage[:1] != (base.name,):
        raise UsageError(f"{version.name} is not an adapter on {base.name}", "serve it by a restart: leave runtime_lora off")
    rank = json.loads((version.adapter_dir / "adapter_config.json").read_text())["r"]
    if rank > max_rank:
        raise UsageError(f"the adapter of {version.name} has rank {rank}, the engine takes {max_rank}", f"set max_lora_rank to {rank}")
    return version.adapter_dir.resolve()


def errors_in(lines: list[str]) -> list[str]:
    """What went wrong, of a log in which the cause stands far above the last lines: its errors, each once, else the last lines."""
    found = dict.fromkeys(match[1] for line in lines if (match := _ERROR.search(line)))
    said = [line for line in lines if not _NOISE.match(line)]
    return list(found)[-8:] or said[-20:]


def _dtype(gpus: Sequence[Gpu]) -> str:
    """The rule of ``device.compute_dtype``, but for old GPUs, where vLLM is made for float16. Emulated bfloat16 is slow everywhere."""
    if gpus:
        return "bfloat16" if all(gpu.has_bf16 for gpu in gpus) else "float16"
    return "bfloat16" if cpu_has_bf16() else "float32"


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    (await client.post(path, json=body)).raise_for_status()
