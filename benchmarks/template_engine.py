"""An engine that says what it is told to: real chat templates and a real tokenizer, and answers cut into tokens as a sampler cuts them.

It speaks vLLM's dialect (chat completions with token ids; render, generate, derender; detokenize), so that the proxy in front of it is the
one that runs in front of vLLM. Tool calls are written and parsed in the form of each template's family.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TEMPLATES = Path(__file__).parent / "chat_templates"
Body = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """``write`` a call as the model does; ``call`` finds one in its answer, with the groups ``name`` and ``arguments``."""

    name: str
    end: str  # what the model stops at
    special: tuple[str, ...]  # tokens besides
    write: str = ""  # with {name} and {arguments}
    call: str = ""
    thinks: bool = False

    @property
    def template(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text()

    @property
    def with_tools(self) -> bool:
        return bool(self.call)


HERMES = '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
HERMES_CALL = r'\s*<tool_call>\n\{"name": "(?P<name>\w+)", "arguments": (?P<arguments>\{.*?\})\}\n</tool_call>'
CHATML = ("<|im_start|>",)
FAMILIES = (
    Family("chatml", "<|im_end|>", CHATML),
    Family("hermes", "<|im_end|>", CHATML, HERMES, HERMES_CALL),
    Family(
        "llama3",
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        '{{"name": "{name}", "parameters": {arguments}}}',
        r'^\{"name": "(?P<name>\w+)", "parameters": (?P<arguments>\{.*\})\}$',
    ),
    Family(
        "mistral",
        "</s>",
        ("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        '[TOOL_CALLS][{{"name": "{name}", "arguments": {arguments}}}]',
        r'\[TOOL_CALLS\]\[\{"name": "(?P<name>\w+)", "arguments": (?P<arguments>\{.*\})\}\]$',
    ),
    Family(
        "gemma",
        "<end_of_turn>",
        ("<bos>", "<start_of_turn>"),
        "```tool_code\n{name}({arguments})\n```",
        r"\n?```tool_code\n(?P<name>\w+)\((?P<arguments>\{.*\})\)\n```$",
    ),
    Family("qwen3", "<|im_end|>", CHATML, HERMES, HERMES_CALL, thinks=True),
)


class ScriptedEngine:
    """Answers the request with ``seed`` n with ``script(n)``. ``odd``: how often a token is sampled in two pieces, of those that can be.

    ``tokenizer``: a byte-level one, which it changes: the family's special tokens are added to it.
    """

    def __init__(self, family: Family, tokenizer: Any, script: Callable[[int], str], odd: float = 0.0, context: int = 32_768) -> None:
        self.family, self.tokenizer, self.script, self.odd, self.context = family, tokenizer, script, odd, context
        tokenizer.add_special_tokens({"additional_special_tokens": [family.end, *family.special]})
        self.end = tokenizer.convert_tokens_to_ids(family.end)
        self.gave: list[tuple[list[int], list[int]]] = []  # the ids read and sampled, of every call
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/chat/completions/render", self._render, methods=["POST"]),
                Route("/v1/chat/completions/derender", self._derender, methods=["POST"]),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
            ]
        )

    # -- what it is ------------------------------------------------------------------------------------------------

    def render(self, body: Body) -> list[int]:
        """Prompt ids [P]. Arguments of calls become objects, as vLLM makes them."""
        messages = [_with_objects(message) for message in body["messages"]]
        told = self.tokenizer.apply_chat_template(
            messages,
            tools=body.get("tools"),
            chat_template=self.family.template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )
        return list(told["input_ids"])

    def sample(self, prompt: list[int], params: Body) -> tuple[list[int], str]:
        """Response ids [R] and the finish reason."""
        seed, most = params.get("seed") or 0, params.get("max_tokens") or self.context
        ids = self.cut(self.tokenizer.encode(self.script(seed), add_special_tokens=False), random.Random(seed))
        whole = len(ids) + 1 <= most
        ids = [*ids, self.end] if whole else ids[:most]
        self.gave.append((prompt, ids))
        return ids, "stop" if whole else "length"

    def cut(self, ids: Sequence[int], dice: random.Random) -> list[int]:
        """The same text in other tokens: a sampler is free to take two short ones where the tokenizer would take a long one."""
        known, cut = self.tokenizer.get_vocab(), []
        for token in ids:
            text = self.tokenizer.convert_ids_to_tokens(token)
            places = [at for at in range(1, len(text)) if text[:at] in known and text[at:] in known]
            if places and token not in self.tokenizer.all_special_ids and dice.random() < self.odd:
                at = dice.choice(places)
                cut += [known[text[:at]], known[text[at:]]]
            else:
                cut.append(token)
        return cut

    def parse(self, text: str) -> Body:
        message: Body = {"role": "assistant"}
        if self.family.thinks and (thought := re.match(r"<think>\n(.*?)\n</think>\n\n", text, re.S)):
            message["reasoning_content"], text = thought[1], text[thought.end() :]
        found = re.search(self.family.call, text, re.S) if self.family.call else None
        if found is None:
            return {**message, "content": text}
        function = {"name": found["name"], "arguments": found["arguments"]}
        call = {"id": uuid.uuid4().hex[:9], "type": "function", "function": function}
        return {**message, "content": text[: found.start()] or None, "tool_calls": [call]}

    def _text(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids[:-1] if ids[-1:] == [self.end] else ids)
        return text

    # -- how it is asked -------------------------------------------------------------------------------------------

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "vocab_size": len(self.tokenizer)}]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        try:
            prompt = self.render(body)
        except Exception as error:
            return _refuse(error)
        ids, reason = self.sample(prompt, body)
        message = self.parse(self._text(ids))
        if reason == "stop" and message.get("tool_calls"):
            reason = "tool_calls"
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason, "token_ids": ids, "logprobs": _logprobs(ids)}
            return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage, "prompt_token_ids": prompt})

        async def chunks() -> AsyncIterator[bytes]:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield _event({**head, "choices": [first], "prompt_token_ids": prompt})
            delta = {name: value for name, value in message.items() if value and name not in ("role", "tool_calls")}
            if message.get("tool_calls"):
                delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]
            yield _event(
                {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "token_ids": ids, "logprobs": _logprobs(ids)}]}
            )
            yield _event({**head, "choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def _render(self, request: Request) -> Response:
        body = await request.json()
        try:
            ids = self.render(body)
        except Exception as error:
            return _refuse(error)
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        params = {"seed": body.get("seed"), "max_tokens": most or self.context - len(ids), "logprobs": 0}
        thinks = {"chat_template_kwargs": {}} if self.family.thinks else None
        rendered = {"request_id": f"chatcmpl-{uuid.uuid4().hex}", "token_ids": ids, "sampling_params": params, "features": None}
        return JSONResponse({**rendered, "model": body["model"], "reasoning_parser_kwargs": thinks})

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        prompt = body["token_ids"]
        ids, reason = self.sample(prompt, body["sampling_params"])
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        choice = {"index": 0, "token_ids": ids, "finish_reason": reason, "stop_reason": None, "logprobs": _logprobs(ids)}
        answer = {"request_id": body["request_id"], "choices": [{**choice, "text": self._text(ids)}], "usage": usage}
        if not body.get("stream"):
            return JSONResponse(answer)

        async def chunks() -> AsyncIterator[bytes]:
            yield _event({**answer, "usage": None})
            yield _event({**answer, "choices": []})
            yield b"data: [DONE]\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def _derender(self, request: Request) -> Response:
        body = await request.json()
        choices = [
            {"index": choice["index"], "message": self.parse(self._text(choice["token_ids"])), "finish_reason": choice["finish_reason"]}
            for choice in body["generate_response"]["choices"]
        ]
        return JSONResponse({"object": "chat.completion", "choices": choices})

    async def _detokenize(self, request: Request) -> Response:
        return JSONResponse({"prompt": self.tokenizer.decode((await request.json())["tokens"])})


def _with_objects(message: Body) -> Body:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}} for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _logprobs(ids: Sequence[int]) -> Body:
    return {"content": [{"token": str(token), "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in ids]}


def _refuse(error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error), "type": "BadRequestError", "code": 400}}, 400)


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
