"""What ``leyden sql`` lets through: one query, over the views, with functions that only compute.

That nothing is written is the read-only transaction's doing, and that it is a query the cursor's. This is against the rest of what a query
can do there: read the tables themselves, and call what acts (``pg_terminate_backend``, ``pg_advisory_lock``, ``set_config``). SQLite has an
authorizer for most of that; PostgreSQL has none, so the words are looked at: a function must be on the list, and no table may be named.
What PostgreSQL may read otherwise than is thought here (``$tag$``, U&'…', ``1from``, two texts in a row, a carriage return) is refused.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import NamedTuple

from leyden.errors import UsageError
from leyden.server import schema, views

VIEWS_HINT = "the views and their columns are in docs/sql-views.md; begin with: SELECT * FROM v_rollouts LIMIT 5"

_IN_WORD = r"A-Za-z0-9_$\x80-\U0010ffff"
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\n]+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<text>[eE]'(?:[^'\\]|''|\\.)*'|[bBxXnN]?'(?:[^']|'')*')
    |(?P<unicode>[uU]&['"])
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[A-Za-z_\x80-\U0010ffff][{_IN_WORD}]*)
    |(?P<number>(?:0[xX][0-9A-Fa-f]+|[0-9]+(?:[eE][+-]?[0-9]+)?)(?![{_IN_WORD}'"]))
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SQLITE_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\n]+|--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
    |(?P<word>[A-Za-z_\x80-\U0010ffff][{_IN_WORD}]*)
    |(?P<number>[0-9][{_IN_WORD}]*)
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# The databases end comments, names and numbers at other places than these with them, and no query needs them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff]")
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
_VIEWS = frozenset(view.name for view in views.VIEWS)
_BEFORE_TABLE = frozenset({"from", "join", ",", "(", "only", "table", "."})
_BEFORE_QUERY = frozenset({"(", "materialized", "not"})
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_NO_QUERY = "only a query is run here: SELECT …, WITH … or VALUES …"


class _Token(NamedTuple):
    kind: str  # word, text, number, other
    value: str  # a word as the database reads it
    start: int = 0


def check_query(statement: str) -> str:
    """``statement`` without its last semicolon. Raises ``UsageError`` that says what is not let through."""
    _check_characters(statement)
    tokens = list(_tokens(statement))
    if tokens and tokens[-1].value == ";":
        statement = statement[: tokens.pop().start]
    if not tokens or tokens[0].value not in ("select", "with", "values", "("):
        raise UsageError(_NO_QUERY, VIEWS_HINT)
    for before, token, after in _neighbours(tokens):
        if token.value == ";":
            raise UsageError("only one statement is run", "leave out what follows the semicolon")
        if before.kind == token.kind == "text":  # the second is read as the first is, with E's escapes
            raise UsageError("a text that follows a text is not let through", "write them as one")
        if token.kind != "word":
            continue
        if token.value.startswith("pg_") or token.value == "information_schema":
            raise UsageError(f"{token.value} is not one of the views", VIEWS_HINT)
        if token.value in _TABLES and before.value in _BEFORE_TABLE:
            raise _of_the_store(token.value)
        if after.value == "(" and token.value not in _CALLABLE and before.value not in ("as", "with", "recursive"):
            raise UsageError(f"the function {token.value} is not let through", "only functions that compute are; use psql for more")
    return statement


def check_file_query(statement: str) -> None:
    """What SQLite's authorizer cannot tell: a table that is only counted from its view, and a WITH that is named like a view."""
    _check_characters(statement)
    tokens = list(_sqlite_tokens(statement))
    if not tokens or tokens[0].value not in ("select", "with", "values"):
        raise UsageError(_NO_QUERY, VIEWS_HINT)
    for (before, token, after), following in zip(_neighbours(tokens), [*tokens[2:], _END, _END], strict=True):
        # A text is a name too there, where a name is wanted.
        if token.value in _TABLES and before.value in (_BEFORE_TABLE if token.kind == "word" else ("from", "join", ".")):
            raise _of_the_store(token.value)
        if token.value in _VIEWS and (after.value == "(" or (after.value == "as" and following.value in _BEFORE_QUERY)):
            raise UsageError(f"{token.value} is the name of a view", "give what follows WITH a name of its own")


_END = _Token("other", "")


def _neighbours(tokens: list[_Token]) -> Iterator[tuple[_Token, _Token, _Token]]:
    return zip([_END, *tokens[:-1]], tokens, [*tokens[1:], _END], strict=True)


def _of_the_store(table: str) -> UsageError:
    return UsageError(f"{table} is a table of the store's own, not one of the views", VIEWS_HINT)


def _check_characters(statement: str) -> None:
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the query is not UTF-8", "see which encoding your terminal has") from error
    found = _CONTROL.search(statement)
    if found is not None:
        raise UsageError(f"the character {found.group()!r} is not let through", "end lines with a newline alone")


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
            yield _Token("word", value.translate(_ASCII_LOWER), start)
        elif kind == "quoted":
            yield _Token("word", value[1:-1].replace('""', '"'), start)
        elif kind == "text":
            yield _Token("text", "", start)
        elif value == "$":
            raise UsageError("a $ is not let through", "write texts as 'text'")
        elif kind == "other" and value.isdecimal():
            raise UsageError("a number and a word are one there", "put a space between them")
        elif kind != "space":
            yield _Token(kind, value, start)


def _sqlite_tokens(statement: str) -> Iterator[_Token]:
    for match in _SQLITE_TOKEN.finditer(statement):
        kind, value = str(match.lastgroup), match.group()
        if kind in ("text", "quoted"):
            value = value[1:-1].replace(value[0] * 2, value[0])
        if kind != "space":
            yield _Token("word" if kind == "quoted" else kind, value.translate(_ASCII_LOWER), match.start())


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
