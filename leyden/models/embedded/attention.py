"""Attention over one step's ragged batch, plugged into any Transformers decoder through its attention interface.

A step is a flat row of N tokens: first one token of each decoding sequence, then runs of prompt tokens. Each token attends to its
sequence's shared prefix, computed once for all sequences that share it, and to its own tokens; the two partial softmaxes are joined
by their maxima and sums, as FlashAttention does across blocks (Dao et al., 2022, arXiv:2205.14135, section 3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from leyden.models.embedded.kv import Prefix, Slots

NAME = "leyden_ragged"


@dataclass
class PromptRun:
    """Rows ``start:stop`` of the step are prompt tokens of the sequence in ``slot``, at own positions ``own:own + stop - start``."""

    slot: int
    start: int
    stop: int
    own: int


@dataclass
class Step:
    """What attention must know about one forward pass. Decoding sequences are rows 0..n-1; theirs are ``decode_slots`` [n]."""

    slots: Slots
    decode_slots: torch.Tensor  # [n]
    decode_own: torch.Tensor  # [n] own position of the new token
    longest_own: int  # 1 + max(decode_own)
    prompts: list[PromptRun]
    prefixes: list[tuple[Prefix, torch.Tensor]]  # each shared prefix with the rows [T] that attend to it

    def __post_init__(self) -> None:
        positions = torch.arange(self.longest_own, device=self.decode_own.device)
        self.decode_hidden = (positions[None, :] > self.decode_own[:, None])[:, None, None, :]  # [n, 1, 1, S]


Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _partial(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, hidden: torch.Tensor | None) -> Partial:
    """Unnormalised softmax(q·k)·v with its row maximum and row sum. query [..., T, D], keys and values [..., S, D]."""
    scores = torch.matmul(query, keys.transpose(-1, -2)).float() * scaling
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    return torch.matmul(weights.to(values.dtype), values), top, weights.sum(-1, keepdim=True)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    step: Step,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, A, N, D], key and value [1, H, N, D] → [1, N, A, D], A = H * G attention heads in G groups."""
    slots, layer = step.slots, module.layer_idx
    keys, values = slots.keys[layer], slots.values[layer]  # [slots, H, C, D]
    key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [N, H, D]
    heads, size = key.shape[1], key.shape[2]
    rows = query.shape[2]
    query = query[0].transpose(0, 1).reshape(rows, heads, -1, size)  # [N, H, G, D]
    groups = query.shape[2]

    n = len(step.decode_slots)
    parts: list[Partial] = []
    if n:
        keys[step.decode_slots, :, step.decode_own] = key[:n]
        values[step.decode_slots, :, step.decode_own] = value[:n]
        # The scheduler keeps decoding sequences in slots 0..n-1, so this is a view and not a copy.
        own_keys, own_values = keys[:n, :, : step.longest_own], values[:n, :, : step.longest_own]
        parts.append(_partial(query[:n], own_keys, own_values, scaling, step.decode_hidden))
    for run in step.prompts:
        length, end = run.stop - run.start, run.own + run.stop - run.start
        keys[run.slot, :, run.own : end] = key[run.start : run.stop].transpose(0, 1)
        values[run.slot, :, run.own : end] = value[run.start : run.stop].transpose(0, 1)
        block = query[run.start : run.stop].permute(1, 2, 0, 3).reshape(heads, groups * length, size)
        hidden = torch.ones(length, end, dtype=torch.bool, device=query.device).triu_(run.own + 1).repeat(groups, 1)
        part = _partial(block, keys[run.slot, :, :end], values[run.slot, :, :end], scaling, hidden)
        parts.append(tuple(t.view(heads, groups, length, -1).permute(2, 0, 1, 3) for t in part))  # type: ignore[arg-type]
    out, top, total = (torch.cat(tensors) for tensors in zip(*parts, strict=True))

    for prefix, members in step.prefixes:
        count = len(members)
        block = query[members].permute(1, 2, 0, 3).reshape(heads, groups * count, size)
        part = _partial(block, prefix.keys[layer], prefix.values[layer], scaling, None)
        shared, shared_top, shared_total = (t.view(heads, groups, count, -1).permute(2, 0, 1, 3) for t in part)
        joint = torch.maximum(top[members], shared_top)
        keep, add = (top[members] - joint).exp(), (shared_top - joint).exp()
        out[members] = out[members] * keep.to(out.dtype) + shared * add.to(out.dtype)
        total[members] = total[members] * keep + shared_total * add
    return (out / total.to(out.dtype)).reshape(1, rows, heads * groups, size), None


AttentionInterface.register(NAME, attend)
