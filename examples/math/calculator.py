"""One calculator MCP server per process, shared by all rollouts, that survives what they ask of it.

``mcp-server-calculator`` evaluates in its only thread: ``9**9**9`` keeps it busy for years. So one task owns the connection and
sends one call at a time; a call past its deadline becomes an error for the model that asked, and the server is replaced for the
next one in the queue. A server that dies is replaced too, and the call it owed is sent once more.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from agents.exceptions import UserError
from agents.mcp import MCPServer, MCPServerStdio
from mcp.types import CallToolResult, TextContent

DEADLINE = 5.0  # seconds a call may take
START_DEADLINE = 30.0  # seconds until a new server must answer
MAX_RESULT = 200  # characters: 9**4000 has 3817 digits, and each would cost the model a token
MARKER = "LEYDEN_MARKER"  # lets the run find this process among its leftovers


@dataclass
class _Call:
    tool: str
    arguments: dict[str, Any] | None
    answer: asyncio.Future[CallToolResult]
    sent_again: bool = False

    def settle(self, result: CallToolResult) -> None:
        if not self.answer.done():  # its rollout may have been stopped
            self.answer.set_result(_shortened(result))


class Calculator(MCPServer):
    """The shared server. ``connect`` starts it; it ends with the event loop, or with ``cleanup``."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0
        self._tools: list[Any] = []
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._ready: asyncio.Future[None] | None = None
        self._owner: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return "calculator"

    async def connect(self) -> None:
        """Start the server once; concurrent callers wait for the same start. Raises what kept it from starting."""
        if self._owner is None or self._owner.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._ready), name="calculator")
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def cleanup(self) -> None:
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait([self._owner])

    async def list_tools(self, *_: Any, **__: Any) -> list[Any]:
        await self.connect()
        return self._tools

    async def call_tool(self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None) -> CallToolResult:
        await self.connect()
        call = _Call(tool_name, arguments, asyncio.get_running_loop().create_future())
        self._calls.put_nowait(call)
        return await call.answer

    async def list_prompts(self) -> Any:
        raise NotImplementedError("the calculator has no prompts")

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        raise NotImplementedError("the calculator has no prompts")

    async def _own(self, ready: asyncio.Future[None]) -> None:
        """Serve the queue, one server after the other. Opened and closed in this task alone, as MCP's transport demands."""
        try:
            while True:
                async with _server() as server:
                    self._tools = await asyncio.wait_for(server.list_tools(), START_DEADLINE)
                    self.starts += 1
                    if not ready.done():
                        ready.set_result(None)
                    await self._serve(server)
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            self._refuse_queue(error)

    async def _serve(self, server: MCPServerStdio) -> None:
        """Answer calls until one shows that this server is stuck or dead."""
        while True:
            call = await self._calls.get()
            if call.answer.done():
                continue  # its rollout was stopped while it waited
            try:
                call.settle(await asyncio.wait_for(server.call_tool(call.tool, call.arguments), DEADLINE))
            except UserError as error:  # no server was asked: an argument is missing
                call.settle(_error(str(error)))
            except TimeoutError:
                call.settle(_error(f"no answer within {DEADLINE:g} s"))
                return
            except Exception:  # the connection broke, one way or another
                if call.sent_again:
                    call.settle(_error("the calculator broke"))
                else:
                    call.sent_again = True
                    self._calls.put_nowait(call)
                return
            except asyncio.CancelledError:  # the process ends
                call.answer.cancel()
                raise

    def _refuse_queue(self, error: Exception) -> None:
        while not self._calls.empty():
            answer = self._calls.get_nowait().answer
            if not answer.done():
                answer.set_exception(TimeoutError(f"the calculator does not start: {error}"))


_calculators: WeakKeyDictionary[asyncio.AbstractEventLoop, Calculator] = WeakKeyDictionary()


def calculator() -> Calculator:
    """This process's calculator (strictly: this event loop's)."""
    return _calculators.setdefault(asyncio.get_running_loop(), Calculator())


def _server() -> MCPServerStdio:
    """``python -m mcp_server_calculator``, without a line on stderr for each call (FastMCP has no setting for that)."""
    program = "import logging; logging.disable(logging.INFO); from mcp_server_calculator import main; main()"
    env = {MARKER: os.environ[MARKER]} if MARKER in os.environ else {}
    return MCPServerStdio(
        name="calculator",
        params={"command": sys.executable, "args": ["-c", program], "env": env},
        cache_tools_list=True,
        client_session_timeout_seconds=None,  # the deadline is ours
    )


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=f"error: {text}")], isError=True)


def _shortened(result: CallToolResult) -> CallToolResult:
    for part in result.content:
        if isinstance(part, TextContent) and len(part.text) > MAX_RESULT:
            part.text = part.text[:MAX_RESULT] + "…"
    return result
