"""How another process finds what this one holds: the import path of an agent, a hook or a tracer."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

from leyden.runners.agent import Agent
from leyden.runners.tracer import Tracer


def name_of(thing: Any) -> str | None:
    """``module:name`` or ``path/to/file.py:name``; None for what only this process has.

    A text is such a name already. Otherwise it is whatever stands at the top of a module: a function, a class, an agent; and a tracer
    without settings goes by its class.
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, Tracer) and not vars(thing):
        thing = type(thing)
    if not isinstance(thing, Agent) and not inspect.isfunction(thing) and not inspect.isclass(thing):
        return None
    module = sys.modules.get(thing.__module__)
    name = next((name for name, value in vars(module).items() if value is thing), None) if module else None
    if module is None or name is None or (module.__name__ == "__main__" and not hasattr(thing, "__qualname__")):
        return None  # what stands at the top of the script itself may hang on its command line
    spec = getattr(module, "__spec__", None)
    if spec is not None and "." in spec.name:  # in a package: only its own name lets it import its siblings
        return f"{spec.name}:{name}"
    path = getattr(module, "__file__", None)
    return f"{os.path.abspath(path)}:{name}" if path else None


def in_runner_process() -> bool:
    """Whether this process was started to run agents: a script that it imports must not start a training of its own."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "leyden.runners.process"
