"""TRL's trainers read what is exported for them, and take a step on it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from attempts_for_tests import attempt, result, text_run, tool_run

from leyden.environments.exports.chat import to_chat_jsonl
from leyden.environments.exports.kto import to_kto_jsonl
from leyden.environments.exports.preference import to_preference_jsonl
from leyden.environments.exports.sft import to_sft_jsonl


class LossOnCPU:
    """TRL 1.15 has its losses in a Triton kernel, which runs on CUDA only: this is what it computes."""

    @staticmethod
    def apply(hidden, weight, bias, targets, temperature, chunk_size, softcap, scale, outputs):
        logits = (hidden @ weight.T).float() * scale / temperature
        logs = logits.log_softmax(-1)
        chosen = logs.gather(-1, targets[:, None]).squeeze(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        return chosen, entropy.detach(), (2 * logs).logsumexp(-1).detach(), logits.mean(-1).detach(), targets == logits.argmax(-1)


@pytest.fixture(scope="module", autouse=True)
def trl():
    trl = pytest.importorskip("trl")
    import trl.trainer.utils as utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_ChunkedLogProbFunction", LossOnCPU)
        yield trl


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tinymodel import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def tried():
    """Two tasks with a pass and a failure each: one with tools, one without."""
    return result(
        [attempt(0, True, tool_run()), attempt(1, False, tool_run(answer="It is 409. ### 409"))],
        [attempt(0, True, text_run("What is 1 + 1?", "### 2")), attempt(1, False, text_run("What is 1 + 1?", "### 3"))],
    )


def train(trainer, config, model, path, tmp_path, **options):
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    args = config(
        output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, **options,
    )  # fmt: skip
    network, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    one = trainer(model=network, args=args, train_dataset=rows, processing_class=tokenizer)
    assert one.train().training_loss > 0
    return one, tokenizer


def test_sft_trainer_takes_the_strict_core(tried, model, tmp_path):
    from trl import SFTConfig, SFTTrainer

    to_sft_jsonl(tried, tmp_path / "t.jsonl")
    one, tokenizer = train(SFTTrainer, SFTConfig, model, tmp_path / "t.jsonl", tmp_path)
    assert "### 2<|im_end|>" in tokenizer.decode(one.train_dataset[0]["input_ids"])


def test_sft_trainer_takes_tools_and_renders_them(tried, model, tmp_path):
    from trl import SFTConfig, SFTTrainer

    to_chat_jsonl(tried, tmp_path / "t.jsonl")
    one, tokenizer = train(SFTTrainer, SFTConfig, model, tmp_path / "t.jsonl", tmp_path)
    with_tools, without = (tokenizer.decode(row["input_ids"]) for row in one.train_dataset)
    assert '"name": "calculate"' in with_tools.split("</tools>")[0] and '{"expression": "12 * 34"}' in with_tools
    assert "<tools>" not in without


def test_dpo_trainer_takes_the_pairs(tried, model, tmp_path):
    from trl import DPOConfig, DPOTrainer

    to_preference_jsonl(tried, tmp_path / "t.jsonl")
    train(DPOTrainer, DPOConfig, model, tmp_path / "t.jsonl", tmp_path)


def test_kto_trainer_takes_the_labels(tried, model, tmp_path):
    from trl import KTOConfig, KTOTrainer

    to_kto_jsonl(tried, tmp_path / "t.jsonl")
    train(KTOTrainer, KTOConfig, model, tmp_path / "t.jsonl", tmp_path)
