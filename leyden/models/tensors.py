"""Tensors as they lie in files: a model's, and what a LoRA adapter adds to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Weights:
    """The tensors of a directory's safetensors files, read one at a time."""

    def __init__(self, directory: Path, pattern: str = "*.safetensors") -> None:
        from safetensors import safe_open

        files = [safe_open(path, framework="pt") for path in sorted(directory.glob(pattern))]
        self._file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (not a dict)
        if not files:
            raise FileNotFoundError(f"no {pattern} in {directory}")

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._file_of[name].get_tensor(name)


class Adapter:
    """What a LoRA adapter changes, by the names of the base's tensors. Raises ``AssertionError`` for a kind that cannot be summed here."""

    def __init__(self, directory: Path, *, tied: bool) -> None:
        config = json.loads((directory / "adapter_config.json").read_text())
        tensors = Weights(directory, "adapter_model.safetensors")
        odd = [key for key in ("use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out") if config.get(key)]
        if config.get("bias", "none") != "none":
            odd.append("bias")
        if odd:
            raise AssertionError(f"this cannot tell what an adapter with {', '.join(odd)} sums to")
        self.scale: float = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
        self.factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # A [r, in], B [out, r], float32
        self.whole: dict[str, torch.Tensor] = {}
        for key in sorted(tensors.names):
            name = key.removeprefix("base_model.model.")
            if name.endswith(".lora_A.weight"):
                module = name.removesuffix(".lora_A.weight")
                b = tensors[key.replace(".lora_A.", ".lora_B.")]
                self.factors[f"{module}.weight"] = (tensors[key].float(), b.float())
            elif not name.endswith(".lora_B.weight"):
                self.whole[name] = tensors[key].float()
        if tied and "lm_head.weight" in self.whole:  # the same matrix under its second name, as PEFT saves it
            head = self.whole.pop("lm_head.weight")
            embedding = next((value for name, value in self.whole.items() if name.endswith("embed_tokens.weight")), None)
            if embedding is None or not bool((embedding == head).all()):
                raise AssertionError("the model ties its embeddings, the adapter does not")

    @property
    def names(self) -> set[str]:
        return {*self.factors, *self.whole}

    def applied_to(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The tensor of that name in float32, of which ``weight`` is the base's."""
        if name in self.whole:
            return self.whole[name]
        if name in self.factors:
            a, b = self.factors[name]
            return weight + self.scale * (b @ a)
        return weight


def bf16_step(values: torch.Tensor) -> torch.Tensor:
    """The distance between neighbouring bfloat16 numbers at each float32 value: its power of two (the exponent's bits) over 2 ** 7."""
    import torch

    return (values.view(torch.int32) & 0x7F800000).view(torch.float32) * 2.0**-7
