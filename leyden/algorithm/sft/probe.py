"""What a Python interpreter has for training, as one line of JSON. Run as a file, by any interpreter: it needs the standard library only.

``{"python": [3, 12, 1], "versions": {package: version}, "cuda": bool | null, "broken": {package: why it cannot be imported}}``
"""

import json
import sys
from contextlib import suppress
from importlib import import_module, metadata

PACKAGES = (
    "torch", "transformers", "trl", "peft", "datasets", "accelerate", "safetensors", "pyarrow", "numpy", "pydantic", "psutil",
    "unsloth", "unsloth_zoo", "torchvision", "bitsandbytes",
)  # fmt: skip


def installed() -> dict[str, str]:
    """Package → version."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def describe() -> dict[str, object]:
    """``cuda`` is null without Unsloth: only then it matters, and importing torch takes seconds."""
    versions, broken = installed(), {}
    cuda = None
    if "unsloth" in versions and "torch" in versions:
        import torch

        cuda = torch.cuda.is_available()
        if "torchvision" in versions:  # built for another torch it cannot be imported, nor can what imports it: transformers, Unsloth
            try:
                import_module("torchvision")
            except Exception as error:  # whatever a mismatched binary raises is the answer
                broken["torchvision"] = str(error).splitlines()[0]
    return {"python": list(sys.version_info[:3]), "versions": versions, "cuda": cuda, "broken": broken}


if __name__ == "__main__":
    sys.path.pop(0)  # this file's directory: its modules must not hide others
    print(json.dumps(describe()))
