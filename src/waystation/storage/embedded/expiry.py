"""The index of expiry times in LMDB: entries of the table `expiry`, ordered by time."""

from waystation.storage.embedded import layout
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.writer import WriteTransaction


class ExpiryIndex:
    def __init__(self, env: Environment) -> None:
        self._table = env.tables["expiry"]

    def add(self, txn: WriteTransaction, entry: bytes) -> None:
        txn.put(entry, b"", db=self._table)

    def drop(self, txn: WriteTransaction, entry: bytes) -> None:
        txn.delete(entry, db=self._table)

    def due(self, txn: WriteTransaction, kind: bytes, now_ms: int, limit: int) -> list[bytes]:
        """Up to `limit` expired entries of one kind, earliest first."""
        end = layout.expiry_key(kind, now_ms + 1, b"")
        due: list[bytes] = []
        with txn.cursor(self._table) as cursor:
            found = cursor.set_range(kind)
            while found and len(due) < limit and (entry := cursor.key()) < end:
                due.append(entry)
                found = cursor.next()
        return due
