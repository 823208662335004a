"""Values out of span attributes, however their sender had to flatten them."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any


def nested(attributes: Mapping[str, Any], prefix: str) -> Any:
    """What stands under ``prefix`` as it was before it was flattened: ``a.0.b = 1`` → ``[{"b": 1}]``. None where nothing does.

    Of a name that has a value and parts as well, the parts are kept. Missing places of a list are left out.
    """
    if isinstance(attributes.get(prefix), list | dict):
        return attributes[prefix]
    tree: dict[str, Any] = {}
    for name in sorted(attributes):
        if not name.startswith(f"{prefix}."):
            continue
        *path, last = name.removeprefix(f"{prefix}.").split(".")
        node = tree
        for part in path:
            child = node.get(part)
            node[part] = node = child if isinstance(child, dict) else {}
        node.setdefault(last, attributes[name])
    return _lists(tree) if tree else None


def parsed(value: Any) -> Any:
    """A structure that was sent as text: JSON, or a Python literal as litellm writes it. What is no such text stays as it is."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def dicts(value: Any) -> list[dict[str, Any]]:
    """The dicts in a list; none in anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_number(value: Any) -> float | None:
    """None for what is none: a truth value, NaN, an infinity, an integer that no float holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None


def first(attributes: Mapping[str, Any], *names: str) -> Any:
    """The value of the first name that has one."""
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(name.isdecimal() for name in node):
        return [_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _lists(value) for name, value in node.items()}
