"""The formats by name."""

from __future__ import annotations

from leyden.environments.exports.chat import CHAT
from leyden.environments.exports.format import Format
from leyden.environments.exports.grouped import GROUPED
from leyden.environments.exports.kto import KTO
from leyden.environments.exports.preference import PREFERENCE
from leyden.environments.exports.sft import SFT
from leyden.environments.exports.sharegpt import SHAREGPT
from leyden.errors import UsageError

FORMATS = {format.name: format for format in (SFT, CHAT, PREFERENCE, KTO, GROUPED, SHAREGPT)}


def format_named(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}", f"one of: {', '.join(FORMATS)}")
    return FORMATS[name]
