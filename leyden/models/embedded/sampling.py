"""Sampling: temperature, top-p and seeds, one row a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

GREEDY = 1e-5  # temperatures below it are 0, as in vLLM: logits divided by them may be infinite, and then the least likely token is drawn


@dataclass(frozen=True)
class Sampling:
    """The parameters in effect. The defaults are the OpenAI API's; nothing from the model's generation config applies."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None  # None: up to the context length
    seed: int | None = None
    stop: tuple[str, ...] = field(default=())
    top_logprobs: int = 0


@dataclass(frozen=True)
class Sampled:
    """One token with its log-probability (natural log, before temperature and top-p, as vLLM's ``raw_logprobs``)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def sample(
    logits: torch.Tensor,
    rows: list[Sampling],
    generators: list[torch.Generator | None],
    allowed: Mapping[int, torch.Tensor] | None = None,
) -> list[Sampled]:
    """Draw one token a row. logits [B, V]; greedy rows take the first of equal maxima. ``generators`` are the CPU's. ``allowed``: for
    rows that must follow a form, which tokens may come, bool [V]; the log-probabilities are those of the model without it."""
    logits = logits.float()
    logprobs = torch.log_softmax(logits, dim=-1)
    for row, tokens_allowed in (allowed or {}).items():
        logits[row].masked_fill_(~tokens_allowed.to(logits.device), float("-inf"))
    tokens = logits.argmax(-1)
    drawn = [i for i, row in enumerate(rows) if row.temperature >= GREEDY]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        temperature = torch.tensor([rows[i].temperature for i in drawn], device=logits.device)
        probabilities = torch.softmax(logits[index] / temperature[:, None], dim=-1)
        if any(rows[i].top_p < 1.0 for i in drawn):
            top_p = torch.tensor([rows[i].top_p for i in drawn], device=logits.device)
            probabilities = _keep_nucleus(probabilities, top_p)
        # One uniform number a row against the cumulative sum; double precision, so that 50,000 small terms lose nothing (MPS has
        # none: there on the CPU). The numbers come from the CPU everywhere, so that a seed means the same on every device.
        if logits.device.type == "mps":
            probabilities = probabilities.cpu()
        cumulative = probabilities.double().cumsum(-1)
        uniform = torch.rand(len(drawn), dtype=torch.double)
        for position, i in enumerate(drawn):
            if generators[i] is not None:
                uniform[position] = torch.rand((), dtype=torch.double, generator=generators[i])
        thresholds = uniform.to(cumulative.device)[:, None] * cumulative[:, -1:]
        # "right": the first token whose cumulative sum exceeds the draw, never one of probability zero.
        found = torch.searchsorted(cumulative, thresholds, right=True)[:, 0].clamp_max(logits.shape[1] - 1)
        tokens[index] = found.to(tokens.device)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    wanted = max((row.top_logprobs for row in rows), default=0)
    best = logprobs.topk(wanted, dim=-1) if wanted else None
    out = []
    for i, token in enumerate(tokens.tolist()):
        top: tuple[tuple[int, float], ...] = ()
        if best is not None and rows[i].top_logprobs:
            k = rows[i].top_logprobs
            top = tuple(zip(best.indices[i, :k].tolist(), best.values[i, :k].tolist(), strict=True))
        out.append(Sampled(token, chosen[i], top))
    return out


def _keep_nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero all but the smallest set whose mass reaches ``top_p`` (Holtzman et al., 2020, arXiv:1904.09751)."""
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p[:, None].clamp_min(1e-9), 0.0)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered)
