"""``leyden token``: who may do what with a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leyden.cli.printing import AsJson, ask_store, check_prefix, moment, only_one, print_json, print_table, say
from leyden.cli.sql import DATABASE
from leyden.errors import UsageError
from leyden.server.tokens import Scope

if TYPE_CHECKING:
    from leyden.server.tokens import Token

SCOPES = ", ".join(Scope)
HINT = "see which there are: leyden token list"

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Make, list and revoke the tokens that a store asks for.")

Database = Annotated[
    str,
    typer.Option(
        envvar="LEYDEN_DATABASE",
        help="The store's database: postgresql://…, or a SQLite file that no store has open. One that is not there is made.",
        metavar="FILE|URL",
    ),
]
Store = Annotated[
    str | None,
    typer.Option("--store", help="Ask a store that runs instead; LEYDEN_TOKEN then holds a token with the scope admin.", metavar="URL"),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is: letters, digits, _ and -.")],
    scope: Annotated[list[Scope] | None, typer.Option(help="What it may do. Repeat it for more.")] = None,
    database: Database = DATABASE,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once. From its first token on a store asks for one at every request."""
    from pydantic import ValidationError

    from leyden.server.operations import tokens as operations
    from leyden.server.tokens import mint
    from leyden.server.tokenstore import in_database

    if not scope:
        raise UsageError("say what the token may do", f"--scope with one of: {SCOPES}")
    try:
        new, text = mint(name, tuple(scope))
    except ValidationError as error:
        raise UsageError(f"{name!r} is no name for a token", "letters, digits, _ and -, at most 64") from error
    token = in_database(database, operations.add, new) if store is None else ask_store(store, lambda client: client.add_token(new))
    if as_json:
        return print_json(token=token.model_dump(mode="json"), secret=text)
    print(text)
    say(f"token {token.id} ({token.name}) may {', '.join(token.scopes)}; it is not shown again: export LEYDEN_TOKEN=… where it is used")


@app.command("list")
def list_(database: Database = DATABASE, store: Store = None, as_json: AsJson = False) -> None:
    """List the tokens, revoked ones too."""
    tokens = _listed(database, store)
    if as_json:
        return print_json(tokens=[token.model_dump(mode="json") for token in tokens])
    rows = [(token.id, token.name, " ".join(token.scopes), moment(token.created_at), moment(token.revoked_at)) for token in tokens]
    print_table(("id", "name", "may", "made", "revoked"), rows)
    if not tokens:
        say("there is no token: the store is open to all on its machine, and to nobody else")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, or how that begins; it is also a part of the token itself.")],
    database: Database = DATABASE,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Make a token worthless, for good: within seconds, where the store runs."""
    from leyden.server.operations import tokens as operations
    from leyden.server.tokenstore import in_database

    check_prefix(token, HINT)
    token_id = only_one("token", token, [known.id for known in _listed(database, store) if known.id.startswith(token)], HINT)
    revoked = (
        in_database(database, operations.revoke, token_id)
        if store is None
        else ask_store(store, lambda client: client.revoke_token(token_id))
    )
    if as_json:
        return print_json(token=revoked.model_dump(mode="json"))
    say(f"token {revoked.id} ({revoked.name}) is revoked")


def _listed(database: str, store: str | None) -> list[Token]:
    from leyden.server.tokenstore import tokens_of

    return tokens_of(database) if store is None else ask_store(store, lambda client: client.list_tokens())
