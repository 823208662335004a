"""What an attempt's earlier calls asked, read and sampled: a tree of messages in which conversations share what they have in common.

A conversation of n turns takes memory in proportion to its length, not to n times that: each message lies there once, and a call's ids are
kept as how many it shares with those of the call before, and the rest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from leyden.server.codec import int32_array
from leyden.types import Generation

MAX_BYTES = 16 * 2**20  # of one attempt, about; beyond it the oldest calls are forgotten
KEEP_TURNS = 16  # of them, the latest
_NODE_BYTES = 400  # a message without its text
_IGNORED = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "annotations")
_TELLING = 24  # characters of an answer that nobody gives twice by chance

Message = dict[str, Any]


def plain(message: Mapping[str, Any]) -> Message:
    """What of a message counts when histories are compared: not the nulls, nor the form of a text, nor the thinking, which clients leave
    out and templates drop. Arguments of tool calls count by what their JSON says: PydanticAI, for one, writes them anew without spaces."""
    counted = {name: value for name, value in message.items() if name not in _IGNORED and value not in (None, "", [], {})}
    content = counted.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict) and content[0].get("type") == "text":
        counted["content"] = content[0].get("text")
    if isinstance(calls := counted.get("tool_calls"), list):
        counted["tool_calls"] = [_plain_call(call) for call in calls]
    return counted


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments: Any = function.get("arguments")
    with suppress(ValueError):  # what is no JSON counts byte by byte
        arguments = orjson.loads(arguments)
    return {"id": call.get("id"), "name": function.get("name"), "arguments": arguments}


def digest(message: Message) -> bytes:
    return hashlib.blake2b(orjson.dumps(message, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


@dataclass(eq=False)
class Node:
    """A message in its place: after all those above it."""

    message: Message
    parent: Node | None
    depth: int  # messages up to here, itself included; 0: what is before the first one
    children: dict[bytes, Node] = field(default_factory=dict)
    asked: list[Turn] = field(default_factory=list)  # calls whose requests end here
    answered: list[Turn] = field(default_factory=list)  # calls whose answers are this message

    def path(self) -> list[Message]:
        """The messages, from the first to this one."""
        found, node = [], self
        while node.parent is not None:
            found.append(node.message)
            node = node.parent
        return found[::-1]

    @property
    def root(self) -> Node:
        node = self
        while node.parent is not None:
            node = node.parent
        return node


@dataclass(eq=False)
class Turn:
    """One choice of one call."""

    generation_id: str
    finish_reason: str | None
    asked: Node
    answered: Node
    base: Turn | None  # whose ids the prompt shares
    shared: int  # how many of those
    rest: array[int]  # the prompt's others
    sampled: array[int]

    @property
    def read(self) -> int:
        """How many ids the prompt has."""
        return self.shared + len(self.rest)

    def ids(self) -> array[int]:
        """Read and sampled, in order."""
        pieces: list[array[int]] = []
        turn: Turn | None = self
        end = self.read + len(self.sampled)
        while turn is not None and end > 0:
            if end > turn.shared:
                pieces.append((turn.rest + turn.sampled)[: end - turn.shared])
            end = min(end, turn.shared)
            turn = turn.base
        whole: array[int] = array("i")
        for piece in reversed(pieces):
            whole += piece
        return whole


@dataclass
class Place:
    """Where a request's messages stand in the tree: how far they repeat what is known, and what they go on with."""

    preamble: Message
    messages: list[Message]
    digests: list[bytes]
    path: list[Node]  # the nodes that the request walks along, the root first; empty for a preamble that nobody has used
    goes_on: Turn | None  # its request and its answer are how this request begins
    forked: Turn | None  # it would be this one's next, but for what the agent changed
    read: array[int] | None = None  # the prompt's ids, once they are known

    def ids(self, prompt: Sequence[int]) -> array[int]:
        """``prompt`` as an array, made once."""
        if self.read is None:
            self.read = int32_array(prompt)
        return self.read


class Trail:
    """One attempt's. Its writer is the event loop of the proxy."""

    def __init__(self) -> None:
        self.loaded = False  # what the store knows of the attempt is in it
        self.size = 0  # bytes, about
        self._limit = MAX_BYTES
        self.texts_told = 0  # differences that the engine was asked to spell out
        self._clear()

    def _clear(self) -> None:
        self.turns: dict[str, Turn] = {}  # by generation, in their order
        self.roots: dict[bytes, Node] = {}
        self._answers: dict[bytes, Turn] = {}
        self.size = 0

    def let_go(self) -> None:
        """Its nodes hold each other: cut loose they go at once, and do not wait for the garbage collector."""
        nodes = list(self.roots.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            node.parent = None
            for held in (node.children, node.asked, node.answered):
                held.clear()
        self._clear()

    def place(self, preamble: Message, messages: Sequence[Mapping[str, Any]]) -> Place:
        """Find what a request goes on with. Longest match first; a request that repeats another's but not its answer is forked from it."""
        said = [plain(message) for message in messages]
        digests = [digest(message) for message in said]
        path: list[Node] = []
        node = self.roots.get(digest(preamble))
        for key in [*digests, None]:
            if node is None:
                break
            path.append(node)
            node = node.children.get(key) if key is not None else None
        answered = next((node for node in reversed(path) if node.answered), None)
        goes_on = answered.answered[-1] if answered else None
        # A request that ends where another ended asks the same again; one that goes on from there left its answer out, or changed it.
        beyond = [node for node in path if node.asked and node.depth < len(said) and (answered is None or node.depth > answered.depth)]
        forked = beyond[-1].asked[-1] if beyond else None
        if forked is None and goes_on is None:
            forked = self._would_follow(said, digests)
        return Place(preamble, said, digests, path, None if forked else goes_on, forked)

    def _would_follow(self, messages: Sequence[Message], digests: Sequence[bytes]) -> Turn | None:
        """The last call whose answer the request repeats, although not what was before it."""
        for at in range(len(messages) - 1, -1, -1):
            if messages[at].get("role") == "assistant":
                turn = self._answers.get(_answer_key(messages[at], digests[at], digests[at - 1] if at else b""))
                if turn is not None:
                    return turn
        return None

    def add(self, place: Place, generation: Generation) -> None:
        """Remember a call, once it is committed. One without ids, or without an answer, is nothing that another could go on with."""
        self._add(place, generation)
        if self.size > self._limit:
            self._forget()

    def _add(self, place: Place, generation: Generation) -> None:
        prompt, sampled = generation.prompt_token_ids, generation.response_token_ids
        if not prompt or sampled is None or generation.response is None or generation.id in self.turns:
            return
        node = self._root(place.preamble)
        for message, key in zip(place.messages, place.digests, strict=True):
            node = self._child(node, key, message)
        answer = plain(generation.response)
        key = digest(answer)
        read, base, shared = place.ids(prompt), place.goes_on or place.forked, 0
        base = self.turns.get(base.generation_id) if base else None  # it may have been forgotten since
        if base is not None:
            shared = common(base.ids(), read)
        turn = Turn(
            generation.id, generation.finish_reason, node, self._child(node, key, answer), base if shared else None, shared, read[shared:],
            int32_array(sampled),
        )  # fmt: skip
        turn.asked.asked.append(turn)
        turn.answered.answered.append(turn)
        self.turns[turn.generation_id] = turn
        self._answers[_answer_key(answer, key, place.digests[-1] if place.digests else b"")] = turn
        self.size += 4 * (len(turn.rest) + len(turn.sampled)) + _NODE_BYTES

    def load(self, generations: Sequence[Generation]) -> None:
        """What the store recorded of the attempt, in order."""
        for generation in generations:
            if generation.status == "ok" and generation.id not in self.turns:
                self.add(self.place(preamble_of(generation.request), generation.request.get("messages") or []), generation)
        self.loaded = True

    def _forget(self) -> None:
        """All but the latest calls. They keep what they share with the others; one conversation may be beyond the limit by itself."""
        latest, keep = list(self.turns.values()), KEEP_TURNS
        while keep and (self.size > MAX_BYTES or keep == KEEP_TURNS):
            kept = [(turn, turn.ids()) for turn in latest[-keep:]]
            self._clear()
            for turn, ids in kept:
                self._add_again(turn, ids)
            keep //= 2
        self._limit = max(MAX_BYTES, 2 * self.size)  # else it would be tried in vain at each call

    def _add_again(self, turn: Turn, ids: array[int]) -> None:
        preamble, messages = turn.asked.root.message, turn.asked.path()
        generation = Generation(
            id=turn.generation_id, call_id=turn.generation_id, rollout_id="-", attempt=0, model="-", started_at=0, latency=0.0,
            prompt_token_ids=ids[: turn.read].tolist(), response_token_ids=turn.sampled.tolist(), response=turn.answered.message,
            finish_reason=turn.finish_reason,
        )  # fmt: skip
        self._add(self.place(preamble, messages), generation)

    def _root(self, preamble: Message) -> Node:
        key = digest(preamble)
        if key not in self.roots:
            self.roots[key] = Node(preamble, None, 0)
            self.size += _NODE_BYTES + len(orjson.dumps(preamble))
        return self.roots[key]

    def _child(self, parent: Node, key: bytes, message: Message) -> Node:
        child = parent.children.get(key)
        if child is None:
            child = parent.children[key] = Node(message, parent, parent.depth + 1)
            self.size += _NODE_BYTES + len(orjson.dumps(message))
        return child


def preamble_of(body: Mapping[str, Any]) -> Message:
    """What templates write before the first message, besides the messages themselves."""
    return {name: body[name] for name in ("tools", "functions", "chat_template_kwargs") if body.get(name)}


def common(one: array[int], other: array[int]) -> int:
    """How many ids both begin with."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # equal up to low, not up to high
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _answer_key(answer: Message, key: bytes, before: bytes) -> bytes:
    """Short answers are given again and again: those count only after the same message."""
    telling = answer.get("tool_calls") or len(str(answer.get("content") or "")) >= _TELLING
    return key if telling else before + key
