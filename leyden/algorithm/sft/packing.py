"""One forward pass over a shared prompt.

All rows of a run begin with the same system prompt, tools and examples: most of each row. The rows of a micro-batch are laid out as
one sequence, ``[prefix | suffix of row 1 | suffix of row 2 | …]``, where positions restart after the prefix for every suffix and a
suffix attends to the prefix and to itself only. Each token then sees exactly what it saw in its own row, so loss and gradients are
those of the padded batch (a test holds them equal), while the prefix is computed once instead of once a row.
The idea is known as prefix sharing or tree training (e.g. arxiv.org/abs/2506.05433, Prefix Grouper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from leyden.algorithm.rows import IGNORED

if TYPE_CHECKING:
    import torch

MIN_PREFIX = 32  # tokens; below it the mask costs more than the prefix saves

# Model types whose every layer is plain causal attention that takes a 4D mask. In others (state-space layers, sliding windows,
# linear attention) a suffix would still see its neighbours.
FULL_ATTENTION = {"llama", "mistral", "qwen2", "qwen3"}


@dataclass(frozen=True)
class Collator:
    """Rows (``input_ids`` and ``labels``, each [T_i]) → one batch of tensors for the model.

    Shared: ``input_ids``, ``labels``, ``position_ids`` [1, L] and a boolean ``attention_mask`` [1, 1, L, L], True where query
    (second last axis) may see key. Otherwise right-padded: ``input_ids``, ``labels``, ``attention_mask`` [B, max T].
    """

    pad_id: int
    share_prefix: bool = True

    def __call__(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, torch.Tensor]:
        length = shared_prefix(rows) if self.share_prefix else 0
        return pack(rows, length) if length >= MIN_PREFIX else pad(rows, self.pad_id)


def can_share_prefix(config: Any) -> bool:
    """Whether a model with this ``transformers`` config treats a 4D mask as the only thing that joins two tokens."""
    layers = getattr(config, "layer_types", None) or []
    sliding = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return config.model_type in FULL_ATTENTION and not sliding and all(layer == "full_attention" for layer in layers)


def shared_prefix(rows: Sequence[Mapping[str, list[int]]]) -> int:
    """Tokens that all rows begin with and that can be computed once; 0 for a single row.

    It ends at least one token before any row's first label: a suffix's first token is predicted by the last one of its
    neighbour once they are laid side by side, so it must carry no label.
    """
    if len(rows) < 2:
        return 0
    columns = zip(*(row["input_ids"] for row in rows), strict=False)
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return max(0, min(common, *(_first_label(row["labels"]) - 1 for row in rows)))


def packed_length(rows: Sequence[Mapping[str, list[int]]]) -> int:
    """Tokens of the sequence that ``Collator`` would make of these rows, or of the padded batch where nothing can be shared."""
    length = shared_prefix(rows)
    if length < MIN_PREFIX:
        return len(rows) * max(len(row["input_ids"]) for row in rows)
    return length + sum(len(row["input_ids"]) - length for row in rows)


def pack(rows: Sequence[Mapping[str, list[int]]], prefix: int) -> dict[str, torch.Tensor]:
    import torch

    ids, positions, segments = list(rows[0]["input_ids"][:prefix]), list(range(prefix)), [0] * prefix
    labels = [IGNORED] * prefix
    for segment, row in enumerate(rows, start=1):
        ids += row["input_ids"][prefix:]
        labels += row["labels"][prefix:]
        positions += range(prefix, len(row["input_ids"]))
        segments += [segment] * (len(row["input_ids"]) - prefix)
    segment_of = torch.tensor(segments)
    return {
        "input_ids": torch.tensor([ids]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.tensor([positions]),
        "attention_mask": prefix_mask(segment_of)[None, None],
    }


def prefix_mask(segment_of: torch.Tensor) -> torch.Tensor:
    """[L, L] boolean from the segment of each token (0: the prefix): earlier, and of the prefix or of the same segment."""
    import torch

    query, key = segment_of[:, None], segment_of[None, :]
    return torch.ones(len(segment_of), len(segment_of), dtype=torch.bool).tril() & ((key == 0) | (key == query))


def pad(rows: Sequence[Mapping[str, list[int]]], pad_id: int) -> dict[str, torch.Tensor]:
    import torch

    length = max(len(row["input_ids"]) for row in rows)

    def fill(values: list[int], filler: int) -> list[int]:
        return values + [filler] * (length - len(values))

    return {
        "input_ids": torch.tensor([fill(row["input_ids"], pad_id) for row in rows]),
        "labels": torch.tensor([fill(row["labels"], IGNORED) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
    }


def _first_label(labels: Sequence[int]) -> int:
    return next((position for position, label in enumerate(labels) if label != IGNORED), len(labels))
