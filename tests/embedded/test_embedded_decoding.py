"""The embedded engine decodes as Transformers does, whatever shares a batch or a prefix with a request."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from leyden.models.embedded import kv
from leyden.models.embedded.completion import ChatCompletion
from leyden.models.embedded.engine import Samples, Token, _window
from leyden.models.embedded.kv import PrefixCache, Remains, Slots
from leyden.models.embedded.protocol import ChatRequest
from leyden.models.embedded.sampling import Sampled, Sampling, sample

GREEDY = Sampling(temperature=0, max_tokens=12)


async def collect(samples: Samples) -> tuple[list[int], list[float]]:
    tokens, logprobs = [], []
    async for batch in samples:
        for token in batch:
            tokens.append(token.sampled.token)
            logprobs.append(token.sampled.logprob)
    return tokens, logprobs


def run_all(engine, prompts: list[list[int]], sampling: Sampling) -> list[tuple[list[int], list[float]]]:
    async def together():
        return await asyncio.gather(*(collect(engine.sample(prompt, sampling)) for prompt in prompts))

    return asyncio.run(together())


@pytest.fixture
def reference(engine, tiny_dir):
    """Log-probabilities [R] of a response after a prompt, from one plain forward pass of an unpatched model."""
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=engine.model.dtype, attn_implementation="eager").eval()

    def logprobs(prompt: list[int], response: list[int]) -> list[float]:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + response])).logits[0].float().log_softmax(-1)
        return [logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(response)]

    return logprobs


def prompts_with_shared_start(engine, n: int, shared: int = 80) -> list[list[int]]:
    rng = random.Random(7)
    start = [rng.randrange(10, engine.vocab_size) for _ in range(shared)]
    return [start + [rng.randrange(10, engine.vocab_size) for _ in range(rng.randint(1, 30))] for _ in range(n)]


def assert_as_reference(reference, prompts, answers) -> None:
    for prompt, (tokens, logprobs) in zip(prompts, answers, strict=True):
        assert tokens
        assert logprobs == pytest.approx(reference(prompt, tokens), abs=2e-4)


def test_logprobs_are_those_of_a_plain_forward_pass_for_ragged_batches_that_share_a_prefix(engine, reference):
    prompts = prompts_with_shared_start(engine, 9)
    answers = run_all(engine, prompts, Sampling(temperature=1.0, max_tokens=12))
    assert_as_reference(reference, prompts, answers)
    assert engine.scheduler.counters["reused_tokens"] >= 8 * 80


def test_a_conversation_that_goes_on_reuses_its_own_last_turn(engine, reference):
    first = prompts_with_shared_start(engine, 4)
    answers = run_all(engine, first, GREEDY)
    second = [prompt + tokens + [11, 12, 13] for prompt, (tokens, _) in zip(first, answers, strict=True)]
    before = engine.scheduler.counters["reused_tokens"]
    assert_as_reference(reference, second, run_all(engine, second, GREEDY))
    computed = sum(map(len, second)) - (engine.scheduler.counters["reused_tokens"] - before)
    assert computed <= 4 * 5  # the three new tokens, the last sampled one, and no more than one to spare


def test_prompts_longer_than_a_step_are_computed_in_pieces(engine, reference):
    engine.scheduler.max_step_tokens = 16
    prompts = prompts_with_shared_start(engine, 3)
    assert_as_reference(reference, prompts, run_all(engine, prompts, GREEDY))


def test_more_requests_than_slots_all_get_their_answer(engine, reference):
    engine.scheduler.max_running = 3
    prompts = prompts_with_shared_start(engine, 11, shared=5)
    assert_as_reference(reference, prompts, run_all(engine, prompts, GREEDY))


def test_greedy_takes_the_likeliest_token_and_ends_at_the_limit(engine, tiny_dir):
    prompt = list(range(20, 60))
    ((tokens, _),) = run_all(engine, [prompt], GREEDY)
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=engine.model.dtype).eval()
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
    assert tokens == generated


def test_n_samples_of_one_prompt_are_independent_and_compute_it_once(engine):
    async def answers() -> list[list[int]]:
        out: list[list[int]] = [[], [], [], []]
        async for batch in engine.sample(list(range(30, 110)), Sampling(max_tokens=8), n=4):
            for token in batch:
                out[token.choice].append(token.sampled.token)
        return out

    drawn = asyncio.run(answers())
    assert len({tuple(tokens) for tokens in drawn}) == 4
    assert engine.scheduler.counters["reused_tokens"] >= 3 * 79


def test_the_same_seed_draws_the_same_tokens_whatever_else_is_decoded(engine):
    prompts = prompts_with_shared_start(engine, 5)
    seeded = Sampling(max_tokens=10, seed=42)
    ((alone, _),) = run_all(engine, prompts[:1], seeded)
    assert run_all(engine, prompts, seeded)[0][0] == alone
    ((other, _),) = run_all(engine, prompts[:1], Sampling(max_tokens=10, seed=43))
    assert other != alone


def test_a_closed_request_stops_decoding_and_frees_its_slot(engine):
    async def leave_early() -> None:
        samples = engine.sample(list(range(20, 40)), Sampling(max_tokens=400))
        async for _ in samples:
            break
        samples.close()
        await collect(engine.sample(list(range(50, 60)), GREEDY))  # a later request runs after the drop

    asyncio.run(leave_early())
    assert engine.scheduler.counters["sampled_tokens"] < 200


def test_a_failed_pass_ends_its_requests_with_the_error_and_the_engine_goes_on(engine, monkeypatch):
    forward = engine.model.forward

    def out_of_memory(*args, **kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr(engine.model, "forward", out_of_memory)
    with pytest.raises(MemoryError):
        run_all(engine, [[5, 6, 7]], GREEDY)
    monkeypatch.setattr(engine.model, "forward", forward)
    assert run_all(engine, [[5, 6, 7]], GREEDY)[0][0]


def test_a_request_that_finds_no_memory_ends_with_the_error_and_the_engine_goes_on(engine, monkeypatch):
    def out_of_memory(*args):
        raise MemoryError("no room")

    monkeypatch.setattr(engine.scheduler.cache, "find", out_of_memory)  # before the pass, as the request is admitted
    with pytest.raises(MemoryError):
        run_all(engine, [[5, 6, 7]], GREEDY)
    monkeypatch.undo()
    assert run_all(engine, [[5, 6, 7]], GREEDY)[0][0]


def test_a_reader_whose_event_loop_has_closed_fails_nobody_else(engine):
    async def start_and_leave() -> None:
        engine.sample(list(range(20, 40)), Sampling(max_tokens=4000))

    asyncio.run(start_and_leave())
    assert len(run_all(engine, [[5, 6, 7]], GREEDY)[0][0]) == 12


def test_slots_that_cannot_grow_stay_as_they_were(monkeypatch):
    slots = Slots(layers=1, heads=1, head_size=4, dtype=torch.float32, device=torch.device("cpu"))
    slots.keys[:, 1, :, :3] = 7.0

    def out_of_memory(*args, **kwargs):
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(kv.torch, "zeros", out_of_memory)
        slots.ensure(1000, 2)
    assert slots.keys.shape == (1, slots.slots, 1, slots.capacity, 4) == (1, kv.START_SLOTS, 1, kv.START_CAPACITY, 4)
    slots.ensure(1000, 9)
    assert slots.keys.shape == slots.values.shape == (1, 12, 1, 1024, 4)
    assert slots.keys.sum() == 3 * 4 * 7.0 and (slots.keys[:, 1, :, :3] == 7.0).all()


def test_a_long_answer_does_not_make_room_for_as_many_as_might_run(engine):
    run_all(engine, [list(range(20, 40))], Sampling(temperature=1, max_tokens=300))
    assert engine.scheduler.slots.slots == kv.START_SLOTS < engine.scheduler.max_running


def test_a_prefix_that_is_dropped_takes_what_stood_behind_it_along():
    cache, held = PrefixCache(max_prefixes=2), torch.zeros(1, 1, 40, 4)
    prefixes = [cache.share(np.full(40, number), held, held) for number in range(2)]
    for number, prefix in enumerate(prefixes):
        cache.keep(Remains(np.array([number] * 40 + [9]), prefix, held[:, :, :1], held[:, :, :1]))
    cache.share(np.full(40, 2), held, held)
    cache.keep(Remains(np.array([0] * 40 + [8]), prefixes[0], held[:, :, :1], held[:, :, :1]))  # its sequence ran on meanwhile
    assert [remains.prefix for remains in cache._remains.values()] == [prefixes[1]]
    assert cache._remains_bytes == next(iter(cache._remains.values())).nbytes
    assert cache.find(np.array([0] * 40 + [9, 9])).length == 0
    assert cache.find(np.array([1] * 40 + [9, 9])).length == 41


@pytest.mark.parametrize("stream", [False, True])
def test_a_token_drawn_after_the_stop_string_is_no_part_of_the_answer(engine, stream):
    """The scheduler hears of a stop string one step late, so that both tokens may arrive at once."""
    ids = engine.tokenizer("12 + 34 is 46.", add_special_tokens=False).input_ids
    stop = engine.tokenizer.decode(ids[3:5])

    async def run():
        messages = [{"role": "user", "content": "x"}]
        completion = ChatCompletion(engine, ChatRequest(model="m", messages=messages, stop=stop, return_token_ids=True))
        completion.samples.close()
        completion.samples = FakeSamples([[Token(0, Sampled(token, -1.0), None) for token in ids]])
        return [chunk async for chunk in completion.stream()] if stream else await completion.answer()

    answer = asyncio.run(run())
    if stream:
        choices = [chunk["choices"][0] for chunk in answer]
        tokens = [token for choice in choices for token in choice["token_ids"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    else:
        (choice,) = answer["choices"]
        tokens, text = choice["token_ids"], choice["message"]["content"]
    assert (tokens, text) == (ids[:5], engine.tokenizer.decode(ids[:3]))


class FakeSamples:
    def __init__(self, batches):
        self._batches = batches

    def end(self, choice):
        pass

    async def __aiter__(self):
        for batch in self._batches:
            yield batch


def test_a_prompt_that_fills_the_context_or_is_empty_is_refused(engine):
    with pytest.raises(ValueError, match="context"):
        asyncio.run(collect(engine.sample([5] * engine.max_model_len, GREEDY)))
    with pytest.raises(ValueError, match="no tokens"):
        asyncio.run(collect(engine.sample([], GREEDY)))


def test_a_sliding_window_bounds_the_context():
    assert _window(SimpleNamespace(sliding_window=4096)) == 4096
    assert _window(SimpleNamespace(sliding_window=4096, use_sliding_window=False)) is None
    assert _window(SimpleNamespace()) is None


def test_sampling_follows_temperature_and_keeps_to_the_nucleus():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).repeat(4000, 1)

    def shares(sampling: Sampling) -> list[float]:
        drawn = torch.tensor([s.token for s in sample(logits, [sampling] * 4000, [None] * 4000)])
        return [(drawn == token).float().mean().item() for token in range(4)]

    torch.manual_seed(0)
    assert shares(Sampling()) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)
    sharper = torch.tensor([0.5, 0.3, 0.15, 0.05]) ** 2
    assert shares(Sampling(temperature=0.5)) == pytest.approx((sharper / sharper.sum()).tolist(), abs=0.04)
    assert shares(Sampling(top_p=0.75)) == pytest.approx([0.625, 0.375, 0, 0], abs=0.04)
    assert shares(Sampling(top_p=0.01))[0] == 1.0
    assert shares(Sampling(temperature=0)) == [1, 0, 0, 0]


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-9, 0.0])
def test_a_temperature_of_next_to_nothing_is_greedy(temperature):
    """Logits divided by it would be infinite, and the draw the least likely token."""
    (drawn,) = sample(torch.tensor([[3.0, 20.0, -5.0]]), [Sampling(temperature=temperature)], [None])
    assert drawn.token == 1
