"""What ``leyden sql`` lets through to PostgreSQL: one query, over the views, with functions that only compute.

That nothing is written is the read-only transaction's doing, and that it is a query the cursor's. This is against the rest of what a query
can do there: read the tables themselves, and call what acts (``pg_terminate_backend``, ``pg_advisory_lock``, ``set_config``). SQLite has an
authorizer for that; PostgreSQL has none, so the words are looked at: a function must be on the list, and no table may be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from leyden.errors import UsageError
from leyden.server import schema

VIEWS_HINT = "the views and their columns are in docs/sql-views.md; begin with: SELECT * FROM v_rollouts LIMIT 5"

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<text>[eE]'(?:[^'\\]|''|\\.)*'|[bBxXnN]?'(?:[^']|'')*')
    |(?P<unicode>[uU]&['"])
    |(?P<dollar>\$(?P<tag>[A-Za-z_\x80-\uffff]*)\$.*?\$(?P=tag)\$)
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[A-Za-z_\x80-\uffff][\w$\x80-\uffff]*)
    |(?P<number>\d[\w.]*)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BEFORE_PARENTHESIS = """
    all and any array as between by case cube distinct else end except exists filter from group grouping having ilike in intersect is
    join lateral like limit materialized not offset on or order over partition rollup row select sets similar some then union using
    values when where window with within
"""
_FUNCTIONS = """
    array_agg avg bit_and bit_or bool_and bool_or corr count covar_pop covar_samp cume_dist dense_rank every first_value json_agg
    json_object_agg jsonb_agg jsonb_object_agg lag last_value lead max min mode nth_value ntile percent_rank percentile_cont
    percentile_disc rank regr_slope row_number stddev stddev_pop stddev_samp string_agg sum var_pop var_samp variance

    abs ceil ceiling div exp floor greatest least ln log mod power random round sign sqrt trunc width_bucket

    ascii btrim char_length character_length chr concat concat_ws decode encode format initcap left length lower lpad ltrim md5
    octet_length overlay position regexp_count regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array
    regexp_split_to_table regexp_substr repeat replace reverse right rpad rtrim sha256 split_part starts_with strpos substr substring
    to_char to_hex to_number translate trim upper

    cast char character coalesce decimal nullif num_nonnulls num_nulls numeric varchar

    array_length array_position array_to_string cardinality generate_series json_array_elements json_array_elements_text
    json_array_length json_build_array json_build_object json_each json_each_text json_extract_path json_extract_path_text
    json_object_keys json_typeof jsonb_array_elements jsonb_array_elements_text jsonb_array_length jsonb_build_object jsonb_each
    jsonb_each_text jsonb_extract_path_text jsonb_object_keys jsonb_path_exists jsonb_path_query jsonb_pretty jsonb_typeof row_to_json
    to_json to_jsonb unnest

    age date_bin date_part date_trunc extract make_interval now timestamp timestamptz to_date to_timestamp
"""
_CALLABLE = frozenset([*_BEFORE_PARENTHESIS.split(), *_FUNCTIONS.split()])
_TABLES = frozenset(schema.metadata.tables)
_BEFORE_TABLE = frozenset({"from", "join", ",", "(", "only", "table", "."})


class _Token(NamedTuple):
    kind: str  # word, text, other
    value: str  # a word as the database reads it
    start: int = 0


def check_query(statement: str) -> str:
    """``statement`` without its last semicolon. Raises ``UsageError`` that says what is not let through."""
    tokens = list(_tokens(statement))
    if tokens and tokens[-1].value == ";":
        statement = statement[: tokens.pop().start]
    if not tokens or tokens[0].value not in ("select", "with", "values", "("):
        raise UsageError("only a query is run here: SELECT …, WITH … or VALUES …", VIEWS_HINT)
    for before, token, after in zip([_Token("other", ""), *tokens], tokens, [*tokens[1:], _Token("other", "")], strict=False):
        if token.value == ";":
            raise UsageError("only one statement is run", "leave out what follows the semicolon")
        if token.kind != "word":
            continue
        if token.value.startswith("pg_") or token.value == "information_schema":
            raise UsageError(f"{token.value} is not one of the views", VIEWS_HINT)
        if token.value in _TABLES and before.value in _BEFORE_TABLE:
            raise UsageError(f"{token.value} is a table of the store's own, not one of the views", VIEWS_HINT)
        if after.value == "(" and token.value not in _CALLABLE and before.value not in ("as", "with", "recursive"):
            raise UsageError(f"the function {token.value} is not let through", "only functions that compute are; use psql for more")
    return statement


def _tokens(statement: str) -> Iterator[_Token]:
    at = 0
    while at < len(statement):
        match = _TOKEN.match(statement, at)
        assert match is not None  # the last alternative takes anything
        start, at = at, match.end()
        kind, value = str(match.lastgroup), match.group()
        if kind == "comment":
            at = _end_of_comment(statement, at)
        elif kind == "unicode":
            raise UsageError("U&'…' is not let through", "write the characters themselves")
        elif kind == "word":
            yield _Token("word", value.lower(), start)
        elif kind == "quoted":
            yield _Token("word", value[1:-1].replace('""', '"'), start)
        elif kind in ("text", "tag", "dollar"):
            yield _Token("text", "", start)
        elif kind != "space":
            yield _Token("other", value, start)


def _end_of_comment(statement: str, at: int) -> int:
    """They nest."""
    depth = 1
    while depth:
        mark = re.compile(r"/\*|\*/").search(statement, at)
        if mark is None:
            raise UsageError("a comment has no end", "end it with */")
        depth += 1 if mark.group() == "/*" else -1
        at = mark.end()
    return at
