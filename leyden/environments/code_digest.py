"""A digest of code: its source, and what it was made with, so that equal digests judge alike."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leyden.environments.fingerprint import FingerprintError, canonical, digest

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple(str(Path(path).resolve()) for name, path in sysconfig.get_paths().items() if name in _INSTALLED)
_OURS = str(Path(__file__).resolve().parent.parent)

Seen = dict[int, int]


def digest_of(value: Any) -> str:
    """sha256 of a function, a class, or a value. Of a function: its dedented source, its defaults, what its closure caught, and the globals
    that it names: helpers likewise, down to where a library begins, which counts by name alone; other globals by the statement that
    assigns them, not by what they have become since (one may be a cache). Any edit within the same statement counts, a comment too.

    Raises ``FingerprintError`` for code whose source is not there, and for a caught value that cannot be written down.
    """
    return digest(_describe(value, "it", {}))


def _describe(value: Any, where: str, seen: Seen) -> Any:
    if isinstance(value, enum.Enum):
        return ["enum", type(value).__qualname__, value.name]
    if isinstance(value, str | int | float | bool | None):
        return _json(value, where)
    if id(value) in seen:
        return ["seen", seen[id(value)]]  # itself, or each other
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type):
        return _class(value, where, seen)
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, types.BuiltinFunctionType):
        return ["builtin", value.__module__, value.__qualname__]
    if isinstance(value, types.MethodType):
        return ["method", value.__name__, _describe(value.__self__, where, seen)]
    if isinstance(value, functools.partial):
        return ["partial", [_describe(part, where, seen) for part in (value.func, value.args, value.keywords)]]
    if isinstance(value, re.Pattern):
        return ["pattern", value.pattern, value.flags]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_describe(part, where, seen) for part in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(canonical(_describe(part, where, seen)) for part in value)]
    if isinstance(value, dict | types.MappingProxyType):
        return ["dict", sorted([canonical(_describe(name, where, seen)), _describe(part, where, seen)] for name, part in value.items())]
    return _object(value, where, seen)


def _function(function: types.FunctionType, seen: Seen) -> Any:
    if _is_library(function.__module__):
        return ["library", function.__module__, function.__qualname__]
    seen[id(function)] = len(seen)
    return ["function", _source(function), _made_with(function, seen)]


def _class(kind: type, where: str, seen: Seen) -> Any:
    if _is_library(kind.__module__):
        return ["library", kind.__module__, kind.__qualname__]
    seen[id(kind)] = len(seen)
    parts = {name: getattr(part, "__func__", getattr(part, "fget", part)) for name, part in sorted(vars(kind).items())}
    methods = {name: part for name, part in parts.items() if isinstance(part, types.FunctionType) and not _is_generated(part)}
    bases = [_describe(base, where, seen) for base in kind.__bases__]
    return ["class", _source(kind), bases, {name: _made_with(method, seen) for name, method in methods.items()}]


def _object(value: Any, where: str, seen: Seen) -> Any:
    """Something of the user's own class: the class, and what the instance holds."""
    kind = type(value)
    if _is_library(kind.__module__) or not hasattr(value, "__dict__"):
        raise FingerprintError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be written down")
    seen[id(value)] = len(seen)
    held = {name: _describe(part, f"{name} of {where}", seen) for name, part in sorted(vars(value).items())}
    return ["object", _describe(kind, where, seen), held]


def _made_with(function: types.FunctionType, seen: Seen) -> Any:
    """What a function has beside its source."""
    name = function.__qualname__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    caught = {free: _describe(_held(cell, free), f"{free}, which {name} caught,", seen) for free, cell in cells if free != "__class__"}
    known = _names(function.__code__) & function.__globals__.keys()
    named = {each: _global(function, each, seen) for each in sorted(known) if not each.startswith("__")}
    defaults = [_describe(part, f"a default of {name}", seen) for part in function.__defaults__ or ()]
    more = {each: _describe(part, f"the default of {each}", seen) for each, part in sorted((function.__kwdefaults__ or {}).items())}
    return [caught, named, defaults, more]


def _global(function: types.FunctionType, name: str, seen: Seen) -> Any:
    value = function.__globals__[name]
    if isinstance(value, types.ModuleType | type | types.FunctionType | types.BuiltinFunctionType | str | int | float | None):
        return _describe(value, f"{name}, a global of {function.__qualname__},", seen)
    statement = _assignments(function.__module__).get(name)
    if statement is not None:
        return ["assigned", statement]
    try:
        return _describe(value, name, dict(seen))
    except FingerprintError:  # imported from somewhere: an object by its kind
        return ["kind", type(value).__module__, type(value).__qualname__]


def _names(code: types.CodeType) -> set[str]:
    """Names looked up by the code and by what is defined in it."""
    return set(code.co_names).union(*(_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def _source(code: Callable[..., Any] | type) -> str:
    try:
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError) as error:
        raise FingerprintError(f"the source of {code.__qualname__} is not there: {error}") from None


def _held(cell: types.CellType, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise FingerprintError(f"{name} is not bound yet") from None


def _json(value: Any, where: str) -> Any:
    try:
        canonical(value)
    except FingerprintError as error:
        raise FingerprintError(f"{where}: {error}") from None
    return value


def _is_generated(function: types.FunctionType) -> bool:
    """By a dataclass, or by a library's base class."""
    return function.__code__.co_filename.startswith("<") or _is_library(function.__module__)


@functools.cache
def _assignments(module: str) -> dict[str, str]:
    """The statements at the top of a module that give its names a value, by name."""
    found: dict[str, str] = {}
    try:
        source = inspect.getsource(sys.modules[module])
        statements = ast.parse(source).body
    except (OSError, TypeError, KeyError, SyntaxError):
        return found
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for name in (node.id for node in ast.walk(target) if isinstance(node, ast.Name)):
                    found[name] = found.get(name, "") + ast.unparse(statement)
    return found


@functools.cache
def _is_library(module: str | None) -> bool:
    """Not the user's: built in, or installed. Leyden's own counts by name too, wherever it lies."""
    if module is None or module in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module != "__main__" and module in sys.stdlib_module_names
    return str(Path(file).resolve()).startswith((*_LIBRARIES, _OURS))
