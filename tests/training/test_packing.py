"""Computing a shared prompt once must change the time it takes and nothing else."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from leyden.algorithm.rows import IGNORED  # noqa: E402
from leyden.algorithm.sft import packing  # noqa: E402
from leyden.algorithm.sft.config import PROJECTIONS  # noqa: E402

VOCABULARY = 200


def make_rows(count: int = 4, prefix: int = 60, seed: int = 0, two_turns: bool = True) -> list[dict[str, list[int]]]:
    """Rows of unequal length: a shared prompt, a question, an answer, and in some a tool's result and a second answer."""
    rng = random.Random(seed)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(n)]

    shared, rows = tokens(prefix), []
    for number in range(count):
        ids = shared + tokens(5 + number)
        labels = [IGNORED] * len(ids)
        for _ in range(1 + (two_turns and number % 2)):
            answer, result = tokens(6 + number), tokens(4)
            ids, labels = ids + answer + result, labels + answer + [IGNORED] * len(result)
        rows.append({"input_ids": ids[: -len(result)], "labels": labels[: -len(result)]})
    return rows


def make_model(model_type: str = "llama"):
    """Random, float32, with a LoRA adapter whose both matrices are random, so that every gradient is nonzero."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, sliding_window=None, attn_implementation="sdpa",
    )  # fmt: skip
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_config(config).float(),
        peft.LoraConfig(r=4, target_modules=list(PROJECTIONS), init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    return model.train()


def loss_and_gradients(model, batch: dict) -> tuple[float, dict]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(model, rows) -> float:
    """Between the shared and the padded batch, over the loss and all adapter gradients."""
    loss, gradients = loss_and_gradients(model, packing.Collator(0, share_prefix=True)(rows))
    padded_loss, padded = loss_and_gradients(model, packing.Collator(0, share_prefix=False)(rows))
    assert len(gradients) == len(padded) == 2 * 2 * len(PROJECTIONS)
    return max(abs(loss - padded_loss), *(float((gradients[name] - padded[name]).abs().max()) for name in padded))


@pytest.mark.parametrize("model_type", sorted(packing.FULL_ATTENTION))
def test_a_shared_prefix_gives_the_loss_and_gradients_of_the_padded_batch(model_type):
    model, rows = make_model(model_type), make_rows()
    assert packing.can_share_prefix(model.config)
    assert packing.Collator(0)(rows)["attention_mask"].dim() == 4, "nothing was shared"
    assert largest_difference(model, rows) < 1e-5


def test_a_mask_that_lets_rows_see_their_neighbours_is_noticed(monkeypatch):
    def only_causal(segment_of):
        return torch.ones(len(segment_of), len(segment_of), dtype=torch.bool).tril()

    monkeypatch.setattr(packing, "prefix_mask", only_causal)
    assert largest_difference(make_model(), make_rows()) > 1e-3


def test_positions_that_do_not_restart_are_noticed(monkeypatch):
    pack = packing.pack

    def straight_positions(rows, prefix):
        batch = pack(rows, prefix)
        return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}

    monkeypatch.setattr(packing, "pack", straight_positions)
    assert largest_difference(make_model(), make_rows()) > 1e-3


def test_the_prefix_ends_a_token_before_the_first_label_so_that_no_suffix_is_predicted_by_its_neighbour():
    same = make_rows(count=1)[0]
    rows = [same, {"input_ids": [*same["input_ids"]], "labels": [*same["labels"]]}]  # equal to the end
    first_label = next(i for i, label in enumerate(same["labels"]) if label != IGNORED)
    prefix = packing.shared_prefix(rows)
    assert prefix == first_label - 1
    batch = packing.pack(rows, prefix)
    starts = [prefix, prefix + len(same["input_ids"]) - prefix]
    assert all(batch["labels"][0, start] == IGNORED for start in starts)
    assert largest_difference(make_model(), rows) < 1e-5


def test_every_label_survives_packing():
    rows = make_rows()
    shifted = packing.Collator(0)(rows)["labels"][:, 1:]
    assert int((shifted != IGNORED).sum()) == sum(label != IGNORED for row in rows for label in row["labels"])


def test_rows_without_a_common_prefix_are_padded():
    short = make_rows(prefix=packing.MIN_PREFIX - 3)
    batch = packing.Collator(7)(short)
    assert batch["attention_mask"].shape == batch["input_ids"].shape == (4, max(len(row["input_ids"]) for row in short))
    assert batch["input_ids"][0, -1] == 7 and batch["attention_mask"][0, -1] == 0 and batch["labels"][0, -1] == IGNORED
    assert packing.shared_prefix(make_rows(count=1)) == 0
    assert packing.shared_prefix([*make_rows(seed=1), *make_rows(seed=2)]) == 0


def test_a_model_whose_layers_do_not_take_the_mask_is_not_packed():
    def config(model_type, **values):
        return transformers.AutoConfig.for_model(model_type, **values)

    assert not packing.can_share_prefix(config("mistral", sliding_window=128))
    assert not packing.can_share_prefix(config("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=1))
    assert not packing.can_share_prefix(config("mamba"))
    assert packing.can_share_prefix(config("qwen3"))
