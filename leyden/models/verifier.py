"""Is a saved version what it says: unquantised base + adapter, in the right precision, reading conversations as its parent does?

``python -m leyden.models.verifier VERSION --base BASE --adapter ADAPTER --parent PARENT`` prints the report as JSON, exit status 1
where a check fails. ``verify_in_child`` does that for a process that must not load torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from leyden.errors import LeydenError, Unavailable
from leyden.models.tensors import Adapter, Weights, bf16_step
from leyden.process import leave_after, spawn, watch_parent
from leyden.types import Record

if TYPE_CHECKING:
    from leyden.models.engine import Engine

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You are careful. Use the calculator, then answer with ### and the number."},
    {"role": "user", "content": "What is 12 + 34?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "calculate", "arguments": {"expression": "12 + 34"}}},
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "name": "calculate", "content": "46"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Evaluates an expression.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
        },
    }
]

ANSWER_TIMEOUT = 120.0  # seconds for one token of a model that has just been loaded


class Check(Record):
    name: str
    ok: bool
    detail: str


class Report(Record):
    version: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]


def verify(version_dir: Path, base_dir: Path, adapter_dir: Path, *, parent_dir: Path) -> Report:
    """Run every check. Needs torch, and memory for one float32 copy of the model and its base. A check that cannot run has failed."""
    inspection = Inspection(version_dir, base_dir, adapter_dir, parent_dir)
    return Report(version=version_dir.name, checks=tuple(_run(name, check) for name, check in inspection.checks().items()))


async def verify_in_child(
    version_dir: Path,
    base_dir: Path,
    adapter_dir: Path,
    *,
    parent_dir: Path,
    marker: str,
    python: str | None = None,
    log_path: Path | None = None,
    timeout: float | None = 900.0,
) -> Report:
    """``verify`` in a process of its own.

    Raises ``Unavailable`` when the process dies or takes longer than ``timeout`` seconds.
    """
    command = [python or sys.executable, "-m", "leyden.models.verifier", str(version_dir)]
    command += ["--base", str(base_dir), "--adapter", str(adapter_dir), "--parent", str(parent_dir)]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    child = await spawn(command, marker=marker, log_path=log_path, env=offline, stdout_pipe=True)
    assert child.stdout is not None
    try:
        async with asyncio.timeout(timeout):
            answer = await child.stdout.read()
            code = await child.wait()
    except TimeoutError:
        raise Unavailable(f"verifying {version_dir.name} took longer than {timeout:g} s", child.tail() or None) from None
    finally:
        await child.stop(grace=2.0)
    if code not in (0, 1) or not answer:
        raise Unavailable(f"the verifier of {version_dir.name} died (exit status {code})", child.tail() or None)
    return Report.model_validate_json(answer.splitlines()[-1])  # libraries may have printed before


async def try_engine(engine: Engine) -> Check:
    """The check ``engine``: it starts on its version and answers with a token. It is stopped again."""
    question = {"model": engine.model_name, "messages": CONVERSATION[:2], "max_tokens": 1}
    try:
        await engine.start()
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT, trust_env=False) as client:
            answer = await client.post(f"{engine.base_url}/chat/completions", json=question)
    except LeydenError as error:
        return Check(name="engine", ok=False, detail=error.message)
    except httpx.TransportError as error:
        return Check(name="engine", ok=False, detail=f"it started, and did not answer: {error!r}")
    finally:
        await engine.stop()
    if answer.status_code != 200:
        return Check(name="engine", ok=False, detail=f"it started, and answered {answer.status_code}: {answer.text[:200]}")
    return Check(name="engine", ok=True, detail="it starts and answers")


class Inspection:
    """One version, opened next to what it was made from. Each check returns what it found, or raises ``AssertionError``."""

    def __init__(self, version_dir: Path, base_dir: Path, adapter_dir: Path, parent_dir: Path) -> None:
        self.version_dir, self.base_dir, self.adapter_dir, self.parent_dir = version_dir, base_dir, adapter_dir, parent_dir

    def checks(self) -> dict[str, Callable[[], str]]:
        return {
            "base": self.base,
            "chat_template": self.chat_template,
            "tokenizer": self.tokenizer,
            "config": self.config,
            "dtype": self.dtype,
            "finite": self.finite,
            "tied": self.tied,
            "weights": self.weights,
            "changed": self.changed,
            "logits": self.logits,
        }

    def base(self) -> str:
        """A base of 4 or 8 bits would put its rounding into every version for good."""
        config = _read(self.base_dir / "config.json")
        _require("quantization_config" not in config, "the base is quantised: a merge must start from its 16-bit weights")
        weights = Weights(self.base_dir)
        found = {str(weights[name].dtype).removeprefix("torch.") for name in weights.names}
        _require(found <= {"float32", "bfloat16", "float16"}, f"the base holds weights in {', '.join(sorted(found))}")
        return f"unquantised, in {', '.join(sorted(found))}"

    def chat_template(self) -> str:
        ours, theirs = ((directory / "chat_template.jinja").read_bytes() for directory in (self.version_dir, self.parent_dir))
        _require(bool(ours), "the chat template is empty")
        _require(ours == theirs, f"the chat template ({len(ours)} bytes) is not the parent's ({len(theirs)} bytes)")
        return f"{len(ours)} bytes, the parent's"

    def tokenizer(self) -> str:
        ours, theirs = self._ids, render(load_tokenizer(self.parent_dir))
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        _require(ours == theirs, f"a conversation with a tool call renders to other ids than the parent's, from position {at} on")
        return f"a conversation with a tool call and its result renders to the parent's {len(ours)} ids"

    def config(self) -> str:
        ours, theirs = (_read(directory / "config.json") for directory in (self.version_dir, self.parent_dir))
        own = {"dtype", "torch_dtype", "transformers_version"}  # may differ
        changed = [key for key in sorted({*ours, *theirs} - own) if ours.get(key) != theirs.get(key)]
        _require(not changed, f"config.json differs from the parent's in {', '.join(changed)}")
        generation = _read(self.version_dir / "generation_config.json")
        eos = generation.get("eos_token_id")
        _require(eos is not None, "generation_config.json names no eos_token_id: the model would never stop")
        eos_ids: list[Any] = eos if isinstance(eos, list) else [eos]
        size = ours["vocab_size"]
        _require(all(0 <= i < size for i in eos_ids), f"eos_token_id {eos_ids} is outside the vocabulary of {size}")
        tokenizer_eos = self._tokenizer.eos_token_id
        _require(tokenizer_eos in eos_ids, f"the tokenizer ends a turn with {tokenizer_eos}, generation stops at {eos_ids}")
        kept = _read(self.parent_dir / "generation_config.json") if (self.parent_dir / "generation_config.json").is_file() else generation
        changed = [key for key in sorted({*generation, *kept} - own) if generation.get(key) != kept.get(key)]
        _require(not changed, f"generation_config.json differs from the parent's in {', '.join(changed)}")
        return f"the parent's; stops at {eos_ids}"

    def dtype(self) -> str:
        import torch

        found = {tensor.dtype for tensor in map(self._merged.__getitem__, self._merged.names)}
        _require(found == {torch.bfloat16}, f"tensors are saved as {', '.join(sorted(map(str, found)))}, not bfloat16")
        named = _read(self.version_dir / "config.json").get("dtype")
        _require(named == "bfloat16", f"config.json says {named}")
        return f"{len(self._merged.names)} tensors in bfloat16"

    def finite(self) -> str:
        bad = [name for name in sorted(self._merged.names) if not self._merged[name].isfinite().all()]
        _require(not bad, f"{len(bad)} tensors hold NaN or inf, first {bad[:1]}")
        return "no NaN, no inf"

    def tied(self) -> str:
        config = _read(self.version_dir / "config.json")
        if not config.get("tie_word_embeddings"):
            return "the model ties nothing"
        model = self._model  # a second, different head in the file makes the loader untie the two
        shared = model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
        _require(shared, "the output head is not the input embedding")
        return "one matrix for input and output"

    def weights(self) -> str:
        """Every saved tensor is float32(base) + scale * B @ A, cast once; sums in another order may round to the other neighbour.
        A module that was trained whole (PEFT's ``modules_to_save``) is the adapter's copy of it, cast once."""
        base, adapter = Weights(self.base_dir), self._adapter
        _require(base.names == self._merged.names, f"tensors added or lost: {sorted(base.names ^ self._merged.names)[:3]}")
        unknown = sorted(adapter.names - base.names)
        _require(not unknown, f"the adapter holds matrices for tensors that are not there: {unknown[:3]}")
        for name in sorted(base.names):
            exact = adapter.applied_to(name, base[name].float())
            saved = self._merged[name]
            differing = saved != exact.to(saved.dtype)
            if differing.any():
                error = (saved.float() - exact).abs()
                nearest = error <= bf16_step(exact) * (0.5 + 1e-3)
                _require(
                    name in adapter.factors and bool(nearest.all()),
                    f"{name} is not base + adapter: {int(differing.sum())} entries differ, by up to {float(error.max()):.3g}",
                )
        whole = f", {len(adapter.whole)} trained whole" if adapter.whole else ""
        return f"{len(base.names)} tensors, of which {len(adapter.factors)} adapted{whole}, are bfloat16(base + {adapter.scale:g} B A)"

    def changed(self) -> str:
        parent = Weights(self.parent_dir)
        entries = changed = 0
        for name in self._adapter.names:
            differs = self._merged[name] != parent[name]
            entries += differs.numel()
            changed += int(differs.sum())
        _require(changed > 0, "no weight differs from the parent's: the update was lost, or too small for bfloat16")
        return f"{changed / entries:.1%} of the adapted entries differ from the parent's"

    def logits(self) -> str:
        """On a real prompt, the saved model against base + adapter as PEFT sums them, rounded to bfloat16; both computed in float32.

        A sum in another order may round to the other neighbour here and there. So the tolerance is what random errors of up to half a
        bfloat16 step in every adapted weight make in the same logits. What rounding itself does to them is told, and no error: of an update
        smaller than a step it keeps little, and what it loses points in one direction, not in random ones.
        """
        import torch
        from peft import PeftModel

        ids = torch.tensor([self._ids])
        with torch.inference_mode():
            adapted: Any = PeftModel.from_pretrained(load(self.base_dir), self.adapter_dir)
            exact = adapted(ids).logits
            found = self._model(ids).logits
            summed = adapted.merge_and_unload()
            adapted_weights = [summed.get_parameter(name) for name in self._adapter.names]
            for weight in summed.parameters():  # all of them: the base may have been in float32
                weight.copy_(weight.bfloat16())
            expected = summed(ids).logits
            errors = torch.rand(max(weight.numel() for weight in adapted_weights), generator=torch.Generator().manual_seed(0)) - 0.5
            for weight in adapted_weights:
                weight += errors[: weight.numel()].view_as(weight) * bf16_step(weight)
            tolerance = float((summed(ids).logits - expected).abs().max())
        difference, rounding = float((expected - found).abs().max()), float((expected - exact).abs().max())
        detail = f"largest difference {difference:.4f}, tolerance {tolerance:.4f}, of {ids.shape[1]} positions"
        _require(difference <= tolerance, detail)
        return f"{detail}; bfloat16 moves them by up to {rounding:.4f}"

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self.version_dir)

    @cached_property
    def _ids(self) -> list[int]:
        return render(self._tokenizer)

    @cached_property
    def _model(self) -> Any:
        return load(self.version_dir)

    @cached_property
    def _merged(self) -> Weights:
        return Weights(self.version_dir)

    @cached_property
    def _adapter(self) -> Adapter:
        return Adapter(self.adapter_dir, tied=bool(_read(self.base_dir / "config.json").get("tie_word_embeddings")))


def load_tokenizer(directory: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def render(tokenizer: Any) -> list[int]:
    """The ids of ``CONVERSATION`` with its tool, up to where the model would speak."""
    return list(tokenizer.apply_chat_template(CONVERSATION, tools=TOOLS, add_generation_prompt=True, return_dict=False))


def load(directory: Path) -> Any:
    """The model in float32 on the CPU, whatever it was saved in."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # of reading weights: it would fill the terminal of ``leyden models verify``
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name=name, ok=True, detail=check())
    except Exception as error:  # whatever a damaged directory makes a library raise is what this check has found
        detail = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Check(name=name, ok=False, detail=detail)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def main(arguments: list[str]) -> int:
    watch_parent()
    parser = argparse.ArgumentParser(prog="python -m leyden.models.verifier", description="Check a saved version.")
    parser.add_argument("version", type=Path)
    for name in ("base", "adapter", "parent"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args(arguments)
    report = verify(options.version, options.base, options.adapter, parent_dir=options.parent)
    print(report.model_dump_json())
    return 0 if report.ok else 1


if __name__ == "__main__":
    leave_after(lambda: main(sys.argv[1:]))
