"""What becomes of an attempt on its way into a dataset."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Each scored attempt ends in exactly one of these: the first that holds, in this order. Unscored ones are counted apart."""

    SKIPPED_FAILED = "skipped_failed"
    SKIPPED_LOW_VALUE = "skipped_low_value"  # it passed, with a score below what was asked
    SKIPPED_LEAKED = "skipped_leaked"  # its task is, or nearly is, in an evaluation pool
    SKIPPED_LIMIT_HIT = "skipped_limit_hit"  # a tool call was refused, so the answer was given without it
    SKIPPED_TOOL_RUNS = "skipped_tool_runs"  # tools ran, and the format has none: learning it would teach to answer without
    SKIPPED_TRUNCATED = "skipped_truncated"  # the answer was cut at the token limit
    SKIPPED_NO_TEXT = "skipped_no_text"  # no user's message, or no answer in text
    SKIPPED_MEDIA = "skipped_media"  # a message holds more than text
    SKIPPED_UNKNOWN_ROLE = "skipped_unknown_role"
    SKIPPED_AMBIGUOUS = "skipped_ambiguous"  # the trace does not say who said what: ``ExportReport.refused`` has the reasons
    SKIPPED_UNPAIRED = "skipped_unpaired"  # there is no other attempt to hold it against
    SKIPPED_SURROGATE = "skipped_surrogate"  # a lone surrogate, which no UTF-8 file can hold
    SKIPPED_DUPLICATE = "skipped_duplicate"  # the same row is written already (only where duplicates are left out)
    SKIPPED_OVERSIZED = "skipped_oversized"  # its row alone is larger than the file may be
    DROPPED_OVER_CAP = "dropped_over_cap"  # its row does not fit into what the profile's caps leave
    DROPPED_OVER_LIMIT = "dropped_over_limit"  # as many rows as were asked for are written
    WRITTEN = "written"
