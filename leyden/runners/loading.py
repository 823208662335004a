"""Find an agent by ``module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from leyden.errors import EXTRAS, LeydenError, MissingExtra, UsageError
from leyden.runners.agent import Agent
from leyden.runners.agent import rollout as make_agent
from leyden.runners.failures import describe


def load_agent(spec: str) -> Agent:
    """Import the agent. A plain function counts as if it were decorated; an environment makes one of its own (``as_agent``).

    Raises ``UsageError`` if the module or the name does not exist, or if the import raises (its cause is what was raised).
    """
    found = load_object(spec)
    if isinstance(found, Agent):
        return found
    if not inspect.isclass(found) and isinstance(made := getattr(found, "as_agent", lambda: None)(), Agent):
        return made  # an environment
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        raise UsageError(f"{spec} is no agent but a {type(found).__name__}", "decorate a function or a class with @leyden.rollout")
    return make_agent(found)


def load_object(spec: str) -> Any:
    """Whatever is called so at the top of a module. Raises ``UsageError`` as ``load_agent`` does."""
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{spec!r} does not name an agent", "write module:agent or path/to/file.py:agent")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if found is None:
        agents = [other for other, value in vars(module).items() if isinstance(value, Agent)]
        close = get_close_matches(name, [*agents, *vars(module)], 1)
        raise UsageError(f"{place} has no {name!r}", f"did you mean {place}:{(close or agents or ['agent'])[0]}?")
    return found


def make_object(spec: str) -> Any:
    """What the class called so makes without arguments. Raises ``UsageError`` as ``load_agent`` does, and for a class that does not."""
    kind = load_object(spec)
    if not inspect.isclass(kind):
        raise UsageError(f"{spec} is no class but a {type(kind).__name__}", "name the class itself")
    try:
        return kind()
    except LeydenError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{spec}() failed: {describe(error)}", "a hook or tracer is made without arguments, in each runner") from error


def _load_file(path: Path) -> ModuleType:
    """Import a file under its own name, with its directory importable, as if Python had been started with it."""
    path = path.resolve()
    if not path.is_file():
        raise UsageError(f"{path}: no such file", "write path/to/file.py:agent")
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path):
        raise UsageError(f"{path.name} has the name of a module that is loaded already", f"rename it, e.g. my_{path.name}")
    _importable(path.parent)
    return known or _import(name, str(path))


def _load_module(name: str) -> ModuleType:
    _importable(Path.cwd())
    if parent := name.rpartition(".")[0]:
        _load_module(parent)  # find_spec would import it, and let out whatever it raises
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the parent is no package
        found = None
    if found is None:
        raise UsageError(f"there is no module {name!r}", "run from the directory that holds it, or write path/to/file.py:agent")
    return _import(name, name)


def _import(name: str, shown: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except LeydenError:
        raise
    except (Exception, SystemExit) as error:
        module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if module in EXTRAS:
            raise MissingExtra(module, EXTRAS[module]) from error
        raise UsageError(f"importing {shown} failed: {describe(error)}", "leyden runners … --debug shows where") from error


def _importable(directory: Path) -> None:
    if os.fspath(directory) not in sys.path:
        sys.path.insert(0, os.fspath(directory))
