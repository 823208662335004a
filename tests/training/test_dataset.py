"""The file between selection and training: whole, named by its digest, and with its labels where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("pyarrow")

from leyden.algorithm.dataset import check_rows, read_rows, row_id, supervised_tokens, write_rows
from leyden.algorithm.rows import IGNORED, Row
from leyden.errors import UsageError

ROW = Row([5, 6, 7, 8, 9, 2], [IGNORED, IGNORED, 7, IGNORED, 9, 2], 1.0, "rollout-1", 1, "task-1", ("gen-1", "gen-2"), "version_0")


def test_rows_come_back_as_they_were_with_the_digest_of_the_file(tmp_path):
    rows = [ROW, replace(ROW, rollout_id="rollout-2", reward=0.5, checkpoint=None)]
    digest = write_rows(tmp_path / "data" / "rows.arrow", rows)
    assert read_rows(tmp_path / "data" / "rows.arrow", digest) == rows
    assert write_rows(tmp_path / "again.arrow", rows) == digest, "the same rows must be the same file"
    assert write_rows(tmp_path / "other.arrow", rows[:1]) != digest
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["rows.arrow"], "a temporary file was left"
    assert supervised_tokens(rows) == 6


def test_row_ids_name_where_a_row_came_from():
    assert row_id(ROW) == row_id(replace(ROW, reward=0.0))
    assert len({row_id(ROW), row_id(replace(ROW, attempt=2)), row_id(replace(ROW, generation_ids=("gen-1",)))}) == 3


def test_a_file_that_changed_or_is_cut_is_refused(tmp_path):
    path = tmp_path / "rows.arrow"
    digest = write_rows(path, [ROW])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match="has changed"):
        read_rows(path, digest)
    with pytest.raises(UsageError, match="not a dataset"):
        read_rows(path)
    with pytest.raises(UsageError, match="no dataset"):
        read_rows(tmp_path / "nowhere.arrow")


def shift_values(labels: list[int]) -> list[int]:
    return [*labels[1:], IGNORED]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (shift_values(ROW.labels), "are the labels shifted"),  # the classic: shifted here, and again by the loss
        ([IGNORED, *ROW.labels[:-1]], "are the labels shifted"),
        ([IGNORED, 6, 7, 8, 9, IGNORED], "does not end in a labelled token"),  # right values under a shifted mask
        ([5, *ROW.labels[1:]], "labels its first token"),
        ([IGNORED] * 6, "has no label"),
        (ROW.labels[:-1], "6 tokens and 5 labels"),
    ],
)
def test_labels_that_do_not_fit_their_tokens_are_refused(tmp_path, labels, message):
    with pytest.raises(UsageError, match=message):
        write_rows(tmp_path / "rows.arrow", [ROW, replace(ROW, labels=labels)])
    assert not list(tmp_path.iterdir())


def test_a_row_over_max_length_is_refused_not_cut():
    check_rows([ROW], max_length=6)
    with pytest.raises(UsageError, match="over max_length 5"):
        check_rows([ROW], max_length=5)


def test_an_empty_dataset_is_refused(tmp_path):
    with pytest.raises(UsageError, match="empty"):
        write_rows(tmp_path / "rows.arrow", [])
