"""Key-value memory of the embedded engine: shared prefixes, one slot a running sequence, and what finished ones left behind.

Shapes: L layers, H key-value heads, D head size, P prefix tokens, C slot capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch

MIN_SHARED = 32  # tokens: shorter common prefixes are cheaper to compute again than to keep
START_CAPACITY = 128  # own tokens a slot has room for before the slots grow
START_SLOTS = 6  # doubled, they come to the 48 that run at most


@dataclass(eq=False)
class Prefix:
    """Keys and values of a run of first tokens, shared by every sequence that starts with them. Never changed."""

    tokens: np.ndarray  # [P] int64
    keys: torch.Tensor  # [L, H, P, D]
    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(eq=False)
class Remains:
    """What a finished sequence leaves for the next turn of its conversation: its own keys and values behind a prefix."""

    tokens: np.ndarray  # all tokens, the prefix's included
    prefix: Prefix | None
    keys: torch.Tensor  # [L, H, own, D]
    values: torch.Tensor

    @property
    def own_start(self) -> int:
        return len(self.prefix) if self.prefix else 0

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass
class Reuse:
    """How a new prompt may start: behind ``prefix``, with further tokens of its own whose ``keys`` and ``values`` are to be copied."""

    prefix: Prefix | None = None
    keys: torch.Tensor | None = None  # [L, H, own, D]
    values: torch.Tensor | None = None

    @property
    def length(self) -> int:
        return (len(self.prefix) if self.prefix else 0) + (self.keys.shape[2] if self.keys is not None else 0)


def common_length(left: np.ndarray, right: np.ndarray) -> int:
    """How many first tokens two sequences share."""
    n = min(len(left), len(right))
    different = np.nonzero(left[:n] != right[:n])[0]
    return int(different[0]) if len(different) else n


@dataclass
class Slots:
    """Own keys and values of the running sequences: [L, slots, H, C, D]. Both slots and C grow as the sequences need."""

    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device
    slots: int = 0
    capacity: int = 0
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Give back what many or long sequences made it grow to; no sequence may be running."""
        if (self.slots, self.capacity) != (START_SLOTS, START_CAPACITY):
            self._allocate(START_SLOTS, START_CAPACITY)

    def _allocate(self, slots: int, capacity: int) -> None:
        shape = (self.layers, slots, self.heads, capacity, self.head_size)
        keys, values = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        self.keys, self.values, self.slots, self.capacity = keys, values, slots, capacity  # all of it, or nothing where memory ran out

    def ensure(self, tokens: int, slots: int) -> None:
        """Make room for ``slots`` sequences of ``tokens`` own tokens each."""
        if tokens <= self.capacity and slots <= self.slots:
            return
        old_keys, old_values, old_slots, old = self.keys, self.values, self.slots, self.capacity
        self._allocate(_doubled(old_slots, slots), _doubled(old, tokens))
        self.keys[:, :old_slots, :, :old], self.values[:, :old_slots, :, :old] = old_keys, old_values

    def move(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]


class PrefixCache:
    """Finds the longest start of a prompt that was computed before. Bounded: the least recently used goes first."""

    def __init__(self, max_prefixes: int = 8, max_remains_bytes: int = 256 << 20) -> None:
        self.max_prefixes = max_prefixes
        self.max_remains_bytes = max_remains_bytes
        self._prefixes: OrderedDict[int, Prefix] = OrderedDict()
        self._remains: OrderedDict[int, Remains] = OrderedDict()
        self._remains_bytes = 0

    def find(self, prompt: np.ndarray) -> Reuse:
        """The best reuse for ``prompt`` [P]; always leaves at least one token to compute, since its logits are needed."""
        usable = prompt[:-1]
        best = self._longest_prefix(usable)
        found, shared = None, len(best) if best else 0
        for remains in self._remains.values():
            length = common_length(remains.tokens, usable)
            if length > shared:
                found, shared = remains, length
        if found is None:
            return Reuse(best)
        self._remains.move_to_end(id(found))
        start = found.own_start
        if shared > start > 0:
            own = shared - start
            return Reuse(found.prefix, found.keys[:, :, :own], found.values[:, :, :own])
        if shared < (len(best) if best else 0) + MIN_SHARED:
            return Reuse(best)
        return Reuse(self._add_prefix(found, shared))

    def share(self, tokens: np.ndarray, keys: torch.Tensor, values: torch.Tensor) -> Prefix:
        """Keep the start of a sequence that is still running as a prefix for the ones that wait for it."""
        prefix = Prefix(tokens.copy(), keys.clone(), values.clone())
        self._keep(prefix)
        return prefix

    def keep(self, remains: Remains) -> None:
        if remains.prefix is not None and id(remains.prefix) not in self._prefixes:
            return  # it was dropped while the sequence ran, and would be held in memory for this one alone
        self._remains[id(remains)] = remains
        self._remains_bytes += remains.nbytes
        while self._remains_bytes > self.max_remains_bytes:
            self._forget(next(iter(self._remains.values())))

    def _longest_prefix(self, usable: np.ndarray) -> Prefix | None:
        best = None
        for prefix in self._prefixes.values():
            longer = best is None or len(prefix) > len(best)
            if longer and len(prefix) <= len(usable) and common_length(prefix.tokens, usable) == len(prefix):
                best = prefix
        if best is not None:
            self._prefixes.move_to_end(id(best))
        return best

    def _add_prefix(self, source: Remains, length: int) -> Prefix:
        keys, values = source.keys, source.values
        if source.prefix is not None:
            keys = torch.cat([source.prefix.keys, keys], dim=2)
            values = torch.cat([source.prefix.values, values], dim=2)
        prefix = Prefix(source.tokens[:length].copy(), keys[:, :, :length].clone(), values[:, :, :length].clone())
        self._keep(prefix)
        return prefix

    def _keep(self, prefix: Prefix) -> None:
        self._prefixes[id(prefix)] = prefix
        while len(self._prefixes) > self.max_prefixes:
            _, gone = self._prefixes.popitem(last=False)
            for remains in [remains for remains in self._remains.values() if remains.prefix is gone]:
                self._forget(remains)

    def _forget(self, remains: Remains) -> None:
        del self._remains[id(remains)]
        self._remains_bytes -= remains.nbytes


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
