"""An agent of the OpenAI Agents SDK, or a function that makes one, as the agent of an environment."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from leyden.environments.code_digest import digest_of
from leyden.environments.subject import AttemptContext, Components, cancelled_by_others
from leyden.environments.subjects import isolation
from leyden.environments.subjects.endpoint import check_messages
from leyden.environments.subjects.isolation import Isolation
from leyden.environments.task import Task
from leyden.environments.threads import in_thread, is_async
from leyden.errors import UsageError
from leyden.runners.failures import describe
from leyden.types import LLM

if TYPE_CHECKING:
    from agents import Agent

    from leyden.environments.subjects.describing import Described

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAKING = 120.0  # seconds for an agent and its servers to be there, before any attempt
CLEANUP = 10.0  # seconds for a server to end


class AgentsSDK:
    """``agent`` is an ``agents.Agent``, of which every attempt gets a copy of its own (``isolation`` says what that takes), or a function
    without arguments, async or not (that one is called in a thread), that makes a new one for every attempt. MCP servers need the function:
    they are connected before the attempt, if the function did not, and cleaned up after it.

    ``context`` is given to tools and hooks as the SDK does: an object, copied for each attempt, or a function that makes one.
    ``max_turns`` None: the SDK's default. A run is what ``Runner.run`` makes of a new user's first question: no session, no tracing.
    """

    def __init__(self, agent: Agent[Any] | Callable[[], Any], *, context: Any = None, max_turns: int | None = None) -> None:
        self.agent = agent
        self.context = context
        self.max_turns = max_turns
        self.name = str(getattr(agent, "name", None) or getattr(agent, "__qualname__", None) or type(agent).__name__)
        self._live = isolation.NeverTwice() if self._is_factory else isolation.refuse
        self._contexts = isolation.NeverTwice()
        self._described: Described | None = None
        if self._is_factory and not callable(agent):
            raise UsageError(f"a {type(agent).__name__} is no agent of the SDK", "give an agents.Agent, or a function that makes one")
        if max_turns is not None and (isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1):
            raise UsageError(f"max_turns is a number from 1, or None, not {max_turns!r}", "for instance max_turns=4")

    @property
    def _is_factory(self) -> bool:
        return not hasattr(self.agent, "instructions")

    @property
    def needs_llm(self) -> bool:
        """It names a model, or means the SDK's default, that there is no key for."""
        from leyden.environments.subjects.describing import resolved

        known: Sequence[Any] = self._described.agents if self._described else () if self._is_factory else (self.agent,)
        names = [agent.model for agent in known if agent.model is None or isinstance(agent.model, str)]
        return any(resolved(name) is None for name in names)

    @property
    def output_type(self) -> Any:
        """Of the agent and of those it hands off to, which may answer in its place; None: texts."""
        from leyden.environments.subjects.describing import answer_type

        return answer_type(self._description().answering)

    def accept(self, task: Task) -> None:
        check_messages(task)

    async def check(self) -> None:
        """Calls a factory twice, so that what it gives twice is known before any attempt, and lists the tools of its MCP servers for the
        fingerprint. A server that never answers is given up after ``MAKING`` seconds."""
        hint = "make the agent by hand once, and see"
        try:
            async with asyncio.timeout(MAKING) as limit:
                self._fresh_context()
                self._described = await self._describe()
                if self._is_factory:
                    self._fresh_context()
                    async with self._isolated(connect=False):
                        pass
        except TimeoutError:
            if not limit.expired():
                raise
            raise UsageError(f"{self.name} was not made within {MAKING:g} s", hint) from None
        except asyncio.CancelledError as error:
            if cancelled_by_others():
                raise
            raise UsageError(f"{self.name} cancelled itself before any attempt", hint) from error

    async def attempt(self, task: Task, context: AttemptContext) -> None:
        from leyden.environments.subjects.running import run_recorded

        question = task.fresh_input()
        async with self._isolated() as isolated:
            question = question if isinstance(question, str) else list(question)
            await run_recorded(isolated, question, self._fresh_context(), self.max_turns, context)

    def question(self) -> Components:
        from leyden.environments.subjects.describing import question_components

        given = {} if self.context is None else {"context": lambda: digest_of(self.context)}
        return {**question_components(self._description), "max_turns": lambda: self.max_turns, **given}

    def policy(self, llm: LLM | None) -> Components:
        from leyden.environments.subjects.describing import policy_components

        return policy_components(self._description, llm)

    # -- making ----------------------------------------------------------------------------------------------------

    async def _make(self) -> Agent[Any]:
        if not self._is_factory:
            return self.agent  # type: ignore[return-value]
        make: Callable[[], Any] = self.agent  # type: ignore[assignment]
        made = await (make() if is_async(make) else in_thread(make, "leyden-factory"))
        if inspect.isawaitable(made):
            made = await made
        if not _is_agent(made):
            raise UsageError(f"the factory {self.name} made a {type(made).__name__}, not an agents.Agent", "return the Agent it makes")
        self._live(made, "the agent")
        return made

    @asynccontextmanager
    async def _isolated(self, connect: bool = True) -> AsyncIterator[Isolation]:
        """The attempt's own agents; their MCP servers are connected meanwhile, and cleaned up however it ends."""
        isolated = Isolation(self._live)
        made = await self._make()
        async with _cleaned_up(isolated.servers):
            isolated.agent(made)
            for server in isolated.servers:
                if connect and getattr(server, "session", None) is None:
                    await server.connect()
            yield isolated

    def _fresh_context(self) -> Any:
        if self.context is None:
            return None
        if not inspect.isfunction(self.context):
            return Isolation(isolation.refuse).copied(self.context, "the context")
        made = self.context()
        self._contexts(made, "the context")
        return made

    # -- describing ------------------------------------------------------------------------------------------------

    async def _describe(self) -> Described:
        from leyden.environments.subjects.describing import Described

        async with self._isolated() as isolated:
            offered = [[tool.model_dump(mode="json") for tool in await server.list_tools()] for server in isolated.servers]
            return Described(tuple(isolated.agents), tuple(isolated.used), offered)

    def _description(self) -> Described:
        """Of a factory once for all, as ``check`` left it, or in a loop of its own. Raises what the making raises."""
        if not self._is_factory:  # somebody may have changed it since
            from leyden.environments.subjects.describing import Described

            isolated = Isolation(self._live)
            isolated.agent(self.agent)  # type: ignore[arg-type]
            return Described(tuple(isolated.agents), tuple(isolated.used), [])
        if self._described is None:
            self._described = _wait(self._describe)
        return self._described


@asynccontextmanager
async def _cleaned_up(servers: list[Any]) -> AsyncIterator[None]:
    """Each that is among them in the end, even if another's cleanup is cancelled: by the task that connected them, as they demand."""
    try:
        yield
    finally:
        async with AsyncExitStack() as stack:
            for server in servers:
                stack.push_async_callback(_clean_up, server)


async def _clean_up(server: Any) -> None:
    """What fails or hangs here takes nothing from an attempt that is over."""
    try:
        async with asyncio.timeout(CLEANUP):
            await server.cleanup()
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and cancelled_by_others():
            raise
        logger.warning("MCP server %r could not be cleaned up: %s", getattr(server, "name", "?"), describe(error))


def _is_agent(made: Any) -> bool:
    sdk = sys.modules.get("agents")
    return sdk is not None and isinstance(made, sdk.Agent)


def _wait(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """From code that is not async, whether or not a loop runs above it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(make())).result()
