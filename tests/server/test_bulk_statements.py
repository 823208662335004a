"""Many rows by one statement of the driver's own: the same rows as SQLAlchemy would write, and nothing silently left out."""

from __future__ import annotations

import pytest
from sqlalchemy import bindparam, insert, select, update
from storekit import Kit, run

from leyden.server.bulk import Bulk
from leyden.server.schema import workers
from leyden.server.transaction import Transaction

LOCAL = ("sqlite", "postgres")
NEW = Bulk(insert(workers))
RENAME = Bulk(update(workers).where(workers.c.id == bindparam("b_id")).values(name=bindparam("b_name")))


def row(name: str) -> dict[str, object]:
    return {"id": f"w-{len(name)}", "name": name, "pid": None, "capacity": 1, "started_at": 1, "last_seen_at": 2**60}


def names(tx: Transaction) -> list[str]:
    return list(tx.conn.execute(select(workers.c.name).order_by(workers.c.id)).scalars())


@pytest.mark.parametrize("kind", LOCAL)
def test_texts_that_no_database_takes_are_cleaned_in_every_row(kind: str) -> None:
    def work(tx: Transaction) -> list[str]:
        assert NEW.run(tx, [row("a"), row("é\ud800"), row("x\0y")]) == 3
        return names(tx)

    async def check(kit: Kit) -> None:
        assert await kit.sql._executor.write(work) == ["a", "é\ufffd", "x\ufffdy"]

    run(check, kind)


@pytest.mark.parametrize("kind", LOCAL)
def test_it_counts_the_rows_that_it_changed_and_no_rows_are_no_statement(kind: str) -> None:
    def work(tx: Transaction) -> tuple[int, int, list[str]]:
        NEW.run(tx, [row("a"), row("bb")])
        changed = RENAME.run(tx, [{"b_id": "w-1", "b_name": "100 %(x)s ?"}, {"b_id": "nobody", "b_name": "n"}])
        return changed, RENAME.run(tx, []), names(tx)

    async def check(kit: Kit) -> None:
        assert await kit.sql._executor.write(work) == (1, 0, ["100 %(x)s ?", "bb"])

    run(check, kind)


def test_a_parameter_that_no_row_gives_is_an_error_and_not_a_default() -> None:
    async def check(kit: Kit) -> None:
        with pytest.raises(AssertionError, match="b_name"):
            await kit.sql._executor.write(lambda tx: RENAME.run(tx, [{"b_id": "w"}]))

    run(check)
