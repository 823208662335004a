"""The queue on PostgreSQL against a model of it, in random order."""

from pathlib import Path

import pytest
from queue_machine import check_queue


@pytest.mark.timeout(3600)
def test_the_queue_on_postgresql_keeps_to_its_model(tmp_path: Path) -> None:
    check_queue("postgres", tmp_path)
