"""A digest of code: its source, and what it was made with, so that equal digests judge alike."""

from __future__ import annotations

import ast
import copy
import dis
import enum
import functools
import inspect
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from itertools import islice
from pathlib import Path
from typing import Any

from leyden.environments.fingerprint import FingerprintError, canonical, digest

_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple(str(Path(path).resolve()) for name, path in sysconfig.get_paths().items() if name in _INSTALLED)
_OURS = str(Path(__file__).resolve().parent.parent)


class Seen(dict[int, int]):
    """What has been described, by id, with its number. ``home`` is the package of what is digested: wherever it is installed, it is no
    library."""

    home: str | None = None


def digest_of(value: Any) -> str:
    """sha256 of a function, a class, or a value. Of a function: its dedented source, its defaults, what its closure caught, and the globals
    that it names: helpers likewise, also those of a module (``helpers.check``), down to where a library begins, which counts by name alone;
    other globals by the statement that assigns them and what that names, not by what they have become since (one may be a cache). A module
    imported inside the function counts by its text. Any edit within the same statement counts, a comment too.

    Raises ``FingerprintError`` for code whose source is not there, and for a caught value that cannot be written down.
    """
    seen = Seen()
    owner = value
    while isinstance(owner, types.MethodType | functools.partial):
        owner = owner.__self__ if isinstance(owner, types.MethodType) else owner.func
    seen.home = _package(getattr(owner, "__module__", None) or type(owner).__module__)
    return digest(_describe(value, "it", seen))


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
    if callable(value) and hasattr(value, "__wrapped__") and _is_library(type(value).__module__, seen.home):  # a cache, an agent
        return ["wrapped", type(value).__qualname__, _describe(value.__wrapped__, where, seen)]
    return _object(value, where, seen)


def _function(function: types.FunctionType, seen: Seen) -> Any:
    if _is_library(function.__module__, seen.home):
        return ["library", function.__module__, function.__qualname__]
    seen[id(function)] = len(seen)
    inner = getattr(function, "__wrapped__", None)
    if inner is not None and _is_generated(function, seen):
        return ["wrapped", Path(function.__code__.co_filename).name, _describe(inner, function.__qualname__, seen)]
    return ["function", _source(function.__code__), _made_with(function, seen)]


def _class(kind: type, where: str, seen: Seen) -> Any:
    if _is_library(kind.__module__, seen.home):
        return ["library", kind.__module__, kind.__qualname__]
    seen[id(kind)] = len(seen)
    bases = [_describe(base, where, seen) for base in kind.__bases__]
    parts: dict[str, Any] = {}  # of the class as it is: ``inspect`` finds it by its name alone, and there may be two of one name
    for name, part in sorted(vars(kind).items()):
        if isinstance(part, str | int | float | None) and not name.startswith("__"):
            parts[name] = _json(part, f"{name} of {kind.__qualname__}")
        elif (method := _method(part, seen)) is not None:
            parts[name] = [_source(method.__code__), _made_with(method, seen)]
    return ["class", _source(kind), bases, parts]


def _method(part: Any, seen: Seen) -> types.FunctionType | None:
    """The user's code in an attribute of a class, under whatever a library wrapped around it."""
    for inner in ("__func__", "fget", "func"):
        part = getattr(part, inner, part)
    while hasattr(part, "__wrapped__") and not (isinstance(part, types.FunctionType) and not _is_generated(part, seen)):
        part = part.__wrapped__
    return part if isinstance(part, types.FunctionType) and not _is_generated(part, seen) else None


def _object(value: Any, where: str, seen: Seen) -> Any:
    """Something of the user's own class: the class, and what the instance holds."""
    kind = type(value)
    if _is_library(kind.__module__, seen.home) or not hasattr(value, "__dict__"):
        raise FingerprintError(f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be written down")
    seen[id(value)] = len(seen)
    held = {name: _describe(part, f"{name} of {where}", seen) for name, part in sorted(vars(value).items())}
    return ["object", _describe(kind, where, seen), held]


def _made_with(function: types.FunctionType, seen: Seen) -> Any:
    """What a function has beside its source."""
    name = function.__qualname__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    caught = {free: _describe(_held(cell, free), f"{free}, which {name} caught,", seen) for free, cell in cells if free != "__class__"}
    space, names = function.__globals__, _names(function.__code__)
    named = {each: _global(space, each, names, seen) for each in sorted(names & space.keys()) if not each.startswith("__")}
    defaults = [_describe(part, f"a default of {name}", seen) for part in function.__defaults__ or ()]
    more = {each: _describe(part, f"the default of {each}", seen) for each, part in sorted((function.__kwdefaults__ or {}).items())}
    imported = dict(_imported(function.__code__, space.get("__package__"), seen))
    return [caught, named, defaults, more, imported]


def _global(space: Mapping[str, Any], name: str, names: set[str], seen: Seen, within: frozenset[Any] = frozenset()) -> Any:
    """``space`` is a module's; ``names`` are all that the code names, attributes of modules among them; ``within``: on the way here."""
    value, module = space[name], str(space.get("__name__"))
    if isinstance(value, types.ModuleType):
        return _module(value, names, seen, within)
    statement = _assignments(module).get(name)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | str | int | float | None):
        try:
            return _describe(value, f"{name}, a global of {module},", seen)
        except FingerprintError:
            if not isinstance(value, type) or statement is None:  # else made by a call, as a named tuple is
                raise
    if (module, name) in within:
        return ["assigned above", name]
    if statement is not None:
        others = sorted({node.id for node in ast.walk(ast.parse(statement)) if isinstance(node, ast.Name)} & space.keys() - {name})
        return ["assigned", statement, {each: _global(space, each, names, seen, within | {(module, name)}) for each in others}]
    try:
        return _describe(value, name, copy.copy(seen))
    except FingerprintError:  # imported from somewhere: an object by its kind
        return ["kind", type(value).__module__, type(value).__qualname__]


def _module(module: types.ModuleType, names: set[str], seen: Seen, within: frozenset[Any]) -> Any:
    """One of the user's by what the code names of it."""
    if _is_library(module.__name__, seen.home) or module.__name__ in within:
        return ["module", module.__name__]
    space = vars(module)
    used = sorted(name for name in names & space.keys() if not name.startswith("__"))
    return ["module", module.__name__, {name: _global(space, name, names, seen, within | {module.__name__}) for name in used}]


def _names(code: types.CodeType) -> set[str]:
    """Names looked up by the code and by what is defined in it."""
    return {name for part in _codes(code) for name in part.co_names}


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """It, and the code of what is defined in it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)


def _imported(code: types.CodeType, package: str | None, seen: Seen) -> Iterator[tuple[str, str]]:
    """The text of the user's modules that are imported inside the code, whether or not it has run yet."""
    for part in _codes(code):
        before = list(dis.get_instructions(part))
        for place, instruction in enumerate(before):
            if instruction.opname != "IMPORT_NAME":
                continue
            try:
                name = resolve_name("." * (before[place - 2].argval or 0) + instruction.argval, package)
                if name.partition(".")[0] != seen.home and _is_installed(find_spec(name.partition(".")[0])):
                    continue  # before its packages are imported, only to be found
                spec = find_spec(name)
            except (ImportError, ValueError):  # not there, or one that was never a file
                continue
            if spec is not None and (spec.origin or "").endswith(".py"):
                yield name, Path(str(spec.origin)).read_text(errors="replace")


def _is_installed(spec: ModuleSpec | None) -> bool:
    places = [] if spec is None else [spec.origin or "built-in", *(spec.submodule_search_locations or ())]
    return any(place in ("built-in", "frozen") or str(Path(place).resolve()).startswith((*_LIBRARIES, _OURS)) for place in places)


def _source(code: types.CodeType | type) -> str | list[Any]:
    """Of this very code: ``inspect`` would look through a decorator at what it wraps, which is described by itself."""
    try:
        if isinstance(code, types.CodeType) and code.co_name == "<lambda>":
            return _source_of_lambda(code)
        return textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError) as error:
        name = code.co_qualname if isinstance(code, types.CodeType) else code.__qualname__
        raise FingerprintError(f"the source of {name} is not there: {error}") from None


def _source_of_lambda(code: types.CodeType) -> list[Any]:
    """Its lines to the end, where ``inspect`` stops with the first, and where in them it ends: there may be several on one."""
    ends = [
        (line, column) for part in _codes(code) for _, line, _, column in part.co_positions() if line is not None and column is not None
    ]
    if not ends:
        raise FingerprintError("python was told to forget where a lambda stands (no_debug_ranges)")
    last, column = max(ends)
    lines = list(islice(inspect.findsource(code)[0], code.co_firstlineno - 1, last))
    text = textwrap.dedent("".join(lines))
    return [text, column - (len(lines[-1]) - len(text.splitlines(keepends=True)[-1])) if text.count("lambda") > 1 else None]


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


def _is_generated(function: types.FunctionType, seen: Seen) -> bool:
    """By a dataclass, a decorator or a base class of a library, whatever module it says it is of."""
    file = function.__code__.co_filename
    own = file == getattr(sys.modules.get(function.__module__), "__file__", None)
    return file.startswith("<") or (file.startswith(_LIBRARIES) and not own) or _is_library(function.__module__, seen.home)


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
                    found[name] = found.get(name, "") + ast.unparse(statement) + "\n"
    return found


def _package(module: str | None) -> str | None:
    return module.partition(".")[0] if module else None


@functools.cache
def _is_library(module: str | None, home: str | None) -> bool:
    """Not the user's: built in, or installed and not of the home package. Leyden's own counts by name too, wherever it lies."""
    if module is None or module in sys.builtin_module_names:
        return True
    if _package(module) == home and home not in ("leyden", *sys.stdlib_module_names):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module != "__main__" and module in sys.stdlib_module_names
    return str(Path(file).resolve()).startswith((*_LIBRARIES, _OURS))
