"""Requests that say the same in odd ways, byte by byte as a browser or a client would not send them, to a store that asks for a token."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import pytest
from starlette.routing import Match, Route
from storekit import open_kit, task

from leyden.server.access import NEEDS, need_of
from leyden.server.app import routes
from leyden.server.tokens import Scope, mint


@dataclass(frozen=True)
class Served:
    port: int
    reader: str
    key: str  # of an attempt


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A store with a token and an attempt that runs, in a loop of its own."""
    ready: list[Served] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with open_kit("http-sqlite") as kit:
            await kit.sql.enqueue([task()])
            (lease,) = await kit.sql.claim("w")
            reader, text = mint("reader", (Scope.READ,))
            await kit.sql.add_token(reader)
            assert kit.url is not None
            ready.append(Served(int(kit.url.rpartition(":")[2]), text, lease.key))
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield ready[0]
    stop.set()
    thread.join()


def ask(served: Served, *lines: str, host: str | None = "127.0.0.1", body: str = "", length: int | None = None) -> tuple[int, str]:
    """The status, and all of the answer, to one request: its first line, and more lines than these. ``length``: what is announced."""
    host_line = [] if host is None else [f"Host: {host}"]
    head = "\r\n".join(
        [lines[0], *host_line, "Connection: close", f"Content-Length: {len(body) if length is None else length}", *lines[1:]]
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as sock:
        sock.sendall(f"{head}\r\n\r\n{body}".encode("latin-1"))
        said = b""
        while piece := sock.recv(65536):
            said += piece
    text = said.decode("latin-1")
    assert "Traceback" not in text
    return int(text.split(" ", 2)[1]), text


def odd_paths(path: str) -> list[str]:
    first, last = path[1], path[-1]
    return [
        f"/{path}",
        f"{path}/",
        path.replace("/", "//"),
        path.upper(),
        f"/.{path}",
        f"/health/..{path}",
        f"/health/%2e%2e{path}",
        f"/health%2f..{path}",
        f"/%{ord(first):02x}{path[2:]}",
        f"{path[:-1]}%{ord(last):02x}",
        f"{path}%0a",
        f"{path}%00",
        f"{path}%20",
        f"{path};x",
        f"{path}%3fx",
        f"{path}?token=1",
        path.replace("/", "%2f"),
        path.replace("/", "\\"),
        f"http://127.0.0.1{path}",
    ]


def test_no_spelling_of_a_path_gets_in_without_a_token(served: Served) -> None:
    for (method, path), need in NEEDS.items():
        if need is not None:
            for odd in odd_paths(re.sub(r"{\w+}", "x", path)):
                assert ask(served, f"{method} {odd} HTTP/1.1")[0] in (400, 401), f"{method} {odd}"


def test_whatever_route_a_path_reaches_it_is_asked_what_that_route_needs() -> None:
    reached = 0
    for method, path in NEEDS:
        for odd in odd_paths(re.sub(r"{\w+}", "x", path)):
            sent = unquote(odd.partition("?")[0])  # as the server hands it on
            scope = {"type": "http", "method": method, "path": sent, "root_path": "", "headers": []}
            for route in routes():
                if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                    reached += 1
                    wanted = NEEDS[method, route.path]
                    assert wanted is not None and need_of(method, sent) is not None, f"{method} {odd}"
                    assert need_of(method, sent).scopes <= wanted.scopes, f"{method} {odd}"
                    break
    assert reached > 100


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "CONNECT", "get", "Get", "PROPFIND"])
def test_no_method_gets_in_without_a_token(served: Served, method: str) -> None:
    for path in ("/v1/runs", "/v1/rollouts", "/metrics"):
        assert ask(served, f"{method} {path} HTTP/1.1")[0] in (400, 401)
    lowered = ask(served, f"{method} /v1/runs HTTP/1.1", "X-HTTP-Method-Override: POST", f"Authorization: Bearer {served.reader}")[0]
    assert lowered in ((200,) if method == "HEAD" else (400, 403))


def test_two_authorization_headers_let_nobody_in(served: Served) -> None:
    """What stands in front of a store may look at the other one."""
    good, bad = f"Authorization: Bearer {served.reader}", "authorization: Bearer x"
    for headers in ((good, bad), (bad, good), (good, good)):
        assert ask(served, "GET /v1/runs HTTP/1.1", *headers)[0] == 401
    assert ask(served, "GET /v1/runs HTTP/1.1", good)[0] == 200


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic {0}",
        "{0}",
        "Token {0}",
        "Bearer {0}x",
        "Bearer {0},{0}",
        "Bearer {0} {0}",
        'Bearer "{0}"',
        "Bearer%20{0}",
        "Bearer sk-leyden-{1}",
        "Bearer {2}x",
        "Bearer \xff\xfe",
        "Bearer " + "x" * 60_000,
        "Bearer sk-leyden-00000000-" + "a" * 60_000,
    ],
)
def test_nothing_but_a_whole_token_gets_in(served: Served, shown: str) -> None:
    text = shown.format(served.reader, served.reader.rpartition("-")[2], served.key)
    assert ask(served, "GET /v1/runs HTTP/1.1", f"Authorization: {text}")[0] in (400, 401, 431)


def test_a_body_that_is_announced_as_too_large_is_refused_before_it_comes(served: Served) -> None:
    reader = f"Authorization: Bearer {served.reader}"
    for line, headers in (
        ("/v1/rollouts/query", (reader,)),
        ("/v1/traces", (f"Authorization: Bearer {served.key}", "Content-Type: application/json")),
    ):
        assert ask(served, f"POST {line} HTTP/1.1", *headers, length=1 << 40)[0] == 413


def test_a_token_elsewhere_than_in_its_header_gets_nobody_in(served: Served) -> None:
    text = served.reader
    for line, header in (
        (f"/v1/runs?token={text}&access_token={text}", "X-A: b"),
        ("/v1/runs", f"Cookie: token={text}; LEYDEN_TOKEN={text}"),
    ):
        assert ask(served, f"GET {line} HTTP/1.1", header)[0] == 401
    for header in ("X-Leyden-Attempt-Key", "Proxy-Authorization", "X-Authorization"):
        assert ask(served, "POST /v1/traces HTTP/1.1", f"{header}: Bearer {text}", "Content-Type: application/json", body="{}")[0] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:4747", 200),
        ("localhost", 200),
        ("LocalHost:80", 200),
        ("[::1]", 200),
        ("[::1]:4747", 200),
        ("localhost.", 403),
        ("127.0.0.1.", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:4747", 403),
        ("evil.example", 403),
        ("evil.example:127.0.0.1", 403),
        ("127.0.0.1:4747:80", 403),
        ("127.0.0.1@evil.example", 403),
        ("evil.example#localhost", 403),
        ("evil.example/localhost", 403),
        ("evil.example://localhost", 403),
        ("[::1", 403),
        ("::1", 403),
        ("[::1]evil.example", 403),
        ("[::ffff:127.0.0.1]", 403),
        ("0.0.0.0", 403),  # reaches this machine from a page, as names do that resolve to it
        ("127.1", 403),
        ("2130706433", 403),
        ("", 403),
    ],
)
def test_a_store_on_this_machine_answers_to_its_names_only_however_they_are_spelled(served: Served, host: str, status: int) -> None:
    assert ask(served, "GET /health HTTP/1.1", host=host)[0] == status


def test_two_hosts_are_both_looked_at(served: Served) -> None:
    for first, second in (("127.0.0.1", "evil.example"), ("evil.example", "127.0.0.1")):
        assert ask(served, "GET /health HTTP/1.1", f"Host: {second}", host=first)[0] in (400, 403)
    assert ask(served, "GET http://evil.example/health HTTP/1.1")[0] == 200  # the header counts, and no browser sends such a line


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
@pytest.mark.parametrize(
    "origin", ["null", "", "http://", "http://evil.example", "http://evil.example://127.0.0.1", "127.0.0.1", "file://"]
)
def test_a_page_without_an_origin_of_its_own_is_no_page_of_ours(served: Served, origin: str, host: str | None) -> None:
    version = "HTTP/1.0" if host is None else "HTTP/1.1"  # whose requests need not say which host they are for
    assert ask(served, f"GET /health {version}", f"Origin: {origin}", host=host)[0] == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "", "same-origin, cross-site", "other"])
def test_a_request_for_a_page_that_is_not_ours_is_refused_however_that_is_said(served: Served, site: str) -> None:
    assert ask(served, "GET /health HTTP/1.1", f"Sec-Fetch-Site: {site}")[0] == 403
    assert ask(served, "GET /health HTTP/1.1", "Sec-Fetch-Site: same-origin", f"Sec-Fetch-Site: {site}")[0] == 403
