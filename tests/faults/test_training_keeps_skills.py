"""What an iteration learnt is still there after the next one, which trains the same adapter on: measured on held-out prompts of both."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "training")]

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from backend_suite import CONFIG, EOS, make_job, run_training  # noqa: E402

from leyden.algorithm.rows import IGNORED, Row  # noqa: E402
from leyden.models.registry import Registry, Version  # noqa: E402

# A skill: whatever the question is, what follows its mark is answered like this.
SKILLS = {"sums": (5, [10, 11, 12, 13, EOS]), "capitals": (6, [20, 21, 22, 23, EOS])}


def make_rows(skill: str, count: int, seed: int) -> list[Row]:
    mark, answer = SKILLS[skill]
    rng, rows = random.Random(seed), []
    for number in range(count):
        prompt = [rng.randrange(30, 250) for _ in range(12)] + [mark]
        ids, labels = prompt + answer, [IGNORED] * len(prompt) + answer
        rows.append(Row(ids, labels, 1.0, f"{skill}-{seed}-{number}", 1, skill, ("gen",), "version_0"))
    return rows


def right(version: Version, skill: str) -> float:
    """Share of held-out prompts whose greedy answer is right word for word: each token is the likeliest after those before it."""
    from transformers import AutoModelForCausalLM

    held_out = make_rows(skill, 40, seed=1_000)
    model = AutoModelForCausalLM.from_pretrained(version.path, dtype=torch.float32).eval()
    ids, length = torch.tensor([row.input_ids for row in held_out]), len(SKILLS[skill][1])
    with torch.inference_mode():
        likeliest = model(ids).logits.argmax(dim=-1)[:, -length - 1 : -1]
    return float((likeliest == ids[:, -length:]).all(dim=1).float().mean())


def able_to_be_sure(model: Path) -> Path:
    """Random embeddings are so short that no output can be likely; adapters leave them as they are."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= 10
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


def trained(registry: Registry, parent: Version, rows: list[Row], log_path: Path, adapter_dir: Path | None, epochs: float = 3.0) -> Version:
    config = CONFIG.model_copy(update={"r": 8, "lr": 5e-3, "epochs": epochs})
    draft = registry.new_draft(parent)
    job = make_job(
        registry.base_of(parent).path, draft.path, rows, parent_dir=parent.path, parent_adapter_dir=adapter_dir, config=config
    )  # fmt: skip
    run_training(job, log_path)
    job.dataset_path.unlink()
    return draft.commit(dataset_sha256=job.dataset_sha256)


def test_the_second_iteration_keeps_what_the_first_one_learnt(tmp_path):
    from tinymodel import make_tiny_model

    registry = Registry(tmp_path / "models")
    base = registry.import_version(able_to_be_sure(make_tiny_model(tmp_path / "tiny")))
    assert right(base, "sums") == right(base, "capitals") == 0.0

    first = trained(registry, base, make_rows("sums", 64, seed=1), tmp_path / "first.log", None, epochs=4.0)
    assert right(first, "sums") > 0.9 and right(first, "capitals") == 0.0

    # As the loop collects with version_1 on mixed tasks: much of what is new, and a little of what it can do already.
    rows = make_rows("capitals", 32, seed=2) + make_rows("sums", 8, seed=3)
    second = trained(registry, first, rows, tmp_path / "second.log", first.adapter_dir)
    assert right(second, "capitals") > 0.8, "the second iteration learnt nothing"
    assert right(second, "sums") > 0.8, "the second iteration forgot the first"

    afresh = trained(registry, base, rows, tmp_path / "afresh.log", None)
    assert right(afresh, "capitals") > 0.8 and right(afresh, "sums") < 0.2, "the rows alone teach both: nothing was kept that counts"
