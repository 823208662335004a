"""Connections: real sockets, and servers that say what real ones say on bad days."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from leyden.http.connection import MAX_AHEAD, BrokenOff
from leyden.http.connections import KEEP_ALIVE, Connections, NotConnected

Run = Callable[[Awaitable[None]], None]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


@asynccontextmanager
async def engine(talk: Talk, keep_alive: float = KEEP_ALIVE) -> Any:
    """A server that speaks ``talk`` on each connection. Gives its URL, and the connections it has accepted."""
    accepted = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    pool = Connections(keep_alive)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", pool, accepted
    finally:
        pool.close()
        server.close()


async def request_of(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = [int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:")]
    return head, await reader.readexactly(length[0]) if length else b""


def saying(answer: bytes, times: int = 1) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            await request_of(reader)
            writer.write(answer)
            await writer.drain()
        await reader.read()

    return talk


async def ask(url: str, pool: Connections, body: bytes = b"{}") -> tuple[int, bytes]:
    response = await pool.request("POST", f"{url}/v1/x", {"authorization": "Bearer k"}, body)
    await response.begin()
    return response.status, await response.read()


def test_a_request_arrives_as_it_was_sent(run: Run) -> None:
    async def main() -> None:
        seen = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await request_of(reader))
            writer.write(OK)

        body = b"x" * (3 << 20)
        async with engine(talk) as (url, pool, _):
            assert await ask(f"{url}/deep er?x", pool, body) == (200, b"hi")
        [(head, got)] = seen
        assert head.startswith("POST /deep%20er?x/v1/x HTTP/1.1\r\n") and got == body
        lines = head.lower().split("\r\n")
        assert f"host: {url.removeprefix('http://')}" in lines and "authorization: bearer k" in lines

    run(main())


def test_a_connection_is_used_again_once_its_answer_has_ended(run: Run) -> None:
    async def main() -> None:
        async with engine(saying(OK, times=3)) as (url, pool, accepted):
            for _ in range(3):
                assert await ask(url, pool) == (200, b"hi")
            assert len(accepted) == 1

    run(main())


@pytest.mark.parametrize("how", ["idle for too long", "closed by the server", "told to close", "a second answer to one request"])
def test_a_connection_is_not_used_again_when(run: Run, how: str) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            if how == "told to close":
                writer.write(OK.replace(b"200 OK\r\n", b"200 OK\r\nconnection: close\r\n"))
            elif how == "a second answer to one request":
                writer.write(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nothers")
            else:
                writer.write(OK)
            if how == "closed by the server":
                await writer.drain()
                writer.close()
            await reader.read()

        async with engine(talk, -1.0 if how == "idle for too long" else KEEP_ALIVE) as (url, pool, accepted):
            response = await pool.request("POST", url, {}, b"{}")
            assert await response.read() == b"hi"
            if how == "closed by the server":
                async with asyncio.timeout(30):
                    while not response._connection.closed:
                        await asyncio.sleep(0)
            assert await ask(url, pool) == (200, b"hi")
            assert len(accepted) == 2

    run(main())


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"hi"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n3\r\n yo\r\n0\r\n\r\n", b"hi yo"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["after an interim answer", "in chunks", "without a body"],
)
def test_an_answer_is_read_to_its_end(run: Run, sent: bytes, body: bytes) -> None:
    async def main() -> None:
        async with engine(saying(sent, times=2)) as (url, pool, accepted):
            for _ in range(2):
                response = await pool.request("GET", url, {})
                await response.begin()
                assert await response.read() == body and "link" not in response.headers
            assert len(accepted) == 1

    run(main())


def test_an_answer_without_a_length_lasts_until_the_connection_ends(run: Run) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

        async with engine(talk) as (url, pool, _):
            assert await ask(url, pool) == (200, b"all of it")

    run(main())


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "before its answer was whole"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n", "before its answer was whole"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", "before its answer was whole"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nhi", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (MAX_AHEAD // 4), "headers without end"),
    ],
    ids=["nothing", "half a body", "half the chunks", "only an interim answer", "another protocol", "two lengths", "endless headers"],
)
def test_an_answer_that_is_not_whole_is_broken_off(run: Run, sent: bytes, why: str) -> None:
    async def main() -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            writer.write(sent)
            await writer.drain()

        async with engine(talk) as (url, pool, _):
            with pytest.raises(BrokenOff, match=why):
                await ask(url, pool)

    run(main())


def test_an_engine_waits_while_nobody_reads_its_answer_and_the_next_call_is_not_held_up(run: Run) -> None:
    async def main() -> None:
        size = 64 << 20
        sent = 0

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            while sent < size:
                writer.write(b"x" * (1 << 20))
                await writer.drain()
                sent += 1 << 20
            await request_of(reader)
            writer.write(OK)
            await reader.read()

        async with engine(talk) as (url, pool, accepted):
            response = await pool.request("POST", url, {}, b"{}")
            first = await response.read_some()
            async with asyncio.timeout(30):
                while not response._connection._paused:
                    await asyncio.sleep(0)
            assert sent < size and not response.ended
            assert len(first) + len(await response.read()) == size
            assert await ask(url, pool) == (200, b"hi")
            assert len(accepted) == 1

    run(main())


def test_a_reader_that_is_cancelled_closes_the_connection(run: Run) -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            await reader.read()
            left.set()

        async with engine(talk) as (url, pool, _):
            response = await pool.request("POST", url, {}, b"{}")
            assert await response.read_some() == b"half"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await response.read_some()
            async with asyncio.timeout(10):
                await left.wait()

    run(main())


def test_a_port_where_nobody_listens_is_not_connected(run: Run) -> None:
    async def main() -> None:
        async with engine(saying(OK)) as (url, pool, _):
            pass
        with pytest.raises(NotConnected):
            await ask(url, pool)

    run(main())


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://127.0.0.1", {}),
        ("http://", {}),
        ("http://127.0.0.1:99999", {}),
        (None, {"authorization": "Bearer a\r\nx: y"}),
        (None, {"x": "→"}),
    ],
)
def test_what_cannot_be_sent_is_not(run: Run, url: str | None, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with engine(saying(OK)) as (here, pool, accepted):
            with pytest.raises(ValueError):
                await pool.request("POST", url or here, headers, b"{}")
            assert await ask(here, pool) == (200, b"hi")
            assert len(accepted) == 1  # no connection was made for what cannot be sent

    run(main())
