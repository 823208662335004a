"""The OpenAPI 3.1 document, made of the routes themselves: what ``route`` registered is what is described."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.routing import BaseRoute, Route

from leyden.server.wire import Described

_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_PROTOBUF = "application/x-protobuf"

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "hint": {"type": ["string", "null"]}},
        }
    },
}
_HEALTH = {
    "type": "object",
    "required": ["status", "name", "version", "nonce"],
    "properties": {name: {"type": "string"} for name in ("status", "name", "version", "nonce")},
}
_READY = {"type": "object", "required": ["status"], "properties": {"status": {"const": "ready"}}}
_STATUS = {  # google.rpc.Status, in JSON
    "type": "object",
    "required": ["message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "details": {"type": "array"}},
}
_EXPORTED = {
    "type": "object",
    "properties": {
        "partialSuccess": {
            "type": "object",
            "properties": {"rejectedSpans": {"type": ["string", "integer"]}, "errorMessage": {"type": "string"}},
        }
    },
}
_BYTES = {"type": "string", "format": "binary"}


def make_document(routes: Iterable[BaseRoute], version: str) -> dict[str, Any]:
    described = list(_described(routes))
    adapters = list(_adapters(described))
    schemas, shared = TypeAdapter.json_schemas([(key, mode, adapter) for key, mode, adapter in adapters], ref_template=_REF)
    paths: dict[str, Any] = {"/health": {"get": _operation("health", "Whether it is there, and which it is", _content(_HEALTH))}}
    paths["/ready"] = {"get": _operation("ready", "Whether it can do its work just now; 503 says why not", _content(_READY))}
    paths["/metrics"] = {"get": _operation("metrics", "Prometheus' text format", {"text/plain": {"schema": {"type": "string"}}})}
    paths["/v1/traces"] = {"post": _export()}
    for path, method, route in described:
        operation = _operation(route.name, route.summary, _content(schemas[_key(route, "answer"), "serialization"]))
        operation["parameters"] = [*_path_parameters(path), *_query_parameters(route.query)]
        if route.body is not None:
            operation["requestBody"] = {"required": True, "content": _content(schemas[_key(route, "body"), "validation"])}
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Leyden store", "version": version, "description": "See docs/http-api.md and docs/store.md."},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": {**shared.get("$defs", {}), "Error": _ERROR}},
    }


def _described(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str, Described]]:
    for route in routes:
        if isinstance(route, Route) and isinstance(found := getattr(route.endpoint, "described", None), Described):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield route.path, method, found


def _adapters(described: list[tuple[str, str, Described]]) -> Iterator[tuple[str, Any, TypeAdapter[Any]]]:
    for _, _, route in described:
        yield _key(route, "answer"), "serialization", TypeAdapter(route.answer)
        if route.body is not None:
            yield _key(route, "body"), "validation", TypeAdapter(route.body)


def _key(route: Described, what: str) -> str:
    return f"{route.name}:{what}"


def _operation(name: str, summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary.partition("\n")[0],
        "responses": {
            "200": {"description": "Committed, where it changes anything.", "content": answer},
            "default": {"description": "What went wrong, and what to do.", "content": _content({"$ref": _REF.format(model="Error")})},
        },
    }


def _export() -> dict[str, Any]:
    operation = _operation("export_traces", "OTLP/HTTP traces; errors are google.rpc.Status", {})
    answers = {"200": _EXPORTED, "default": _STATUS}
    for status, schema in answers.items():
        operation["responses"][status]["content"] = {**_content(schema), _PROTOBUF: {"schema": _BYTES}}
    operation["requestBody"] = {"required": True, "content": {**_content({"type": "object"}), _PROTOBUF: {"schema": _BYTES}}}
    return operation


def _content(schema: Any) -> dict[str, Any]:
    return {_JSON: {"schema": schema}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if name == "attempt" else "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(model: type[BaseModel] | None) -> list[dict[str, Any]]:
    if model is None:
        return []
    properties = model.model_json_schema(ref_template=_REF)
    shared = properties.get("$defs", {})
    return [
        {"name": name, "in": "query", "required": name in properties.get("required", []), "schema": _inlined(schema, shared)}
        for name, schema in properties["properties"].items()
    ]


def _inlined(schema: Any, shared: dict[str, Any]) -> Any:
    """Without references: a query's few enumerations are in no body."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(shared[schema["$ref"].rpartition("/")[2]], shared)
        return {key: _inlined(value, shared) for key, value in schema.items()}
    return [_inlined(item, shared) for item in schema] if isinstance(schema, list) else schema
