import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of our children: a tiny model gains nothing by more, and loses much on a busy machine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("trl")
    from tinymodel import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "version_0")
