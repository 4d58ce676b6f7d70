"""Checks every row of an embedded presence store, and reads its rows for a backup.

The rows of a party depend on each other, so a backup reads each party in one read transaction.
"""

from collections.abc import Iterator
from typing import Final

import lmdb

from waystation.storage.embedded.backup_file import Entry
from waystation.storage.embedded.check import Look, Report, check_rows
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.presence_rows import TABLES, PartyTables, decode_row

PARTY_BYTES: Final = 8


def presence_rows_of(env: Environment) -> Iterator[Entry]:
    with env.lmdb.begin() as txn:
        parties = PartyTables(env).party_ids(txn)
    for party_id in parties:
        prefix = party_id.to_bytes(PARTY_BYTES, "big")
        with env.lmdb.begin() as txn:
            if txn.get(prefix, db=env.tables["parties"]) is None:
                continue  # forgotten meanwhile
            for table in TABLES:
                with txn.cursor(env.tables[table]) as cursor:
                    found = cursor.set_range(prefix)
                    while found and cursor.key().startswith(prefix):
                        yield table, cursor.key(), cursor.value()
                        found = cursor.next()


def check_presence_store(env: Environment) -> Report:
    """Checks that every row decodes and has a party, and that cursors have a session."""
    report = Report()

    def of(table: str) -> Look:
        def look(txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
            decode_row(table, key, value)
            if txn.get(key[:PARTY_BYTES], db=env.tables["parties"]) is None:
                report.problem(table, key, "has no party")
            elif table == "cursors" and txn.get(key, db=env.tables["sessions"]) is None:
                report.orphaned += 1  # cursors are written late, perhaps after the session has left

        return look

    return check_rows(env, TABLES, of, report)
