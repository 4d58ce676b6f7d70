"""Tracked messages in LMDB: each counts in one state; terminal states are final.

A message that has not ended has an expiry entry of kind TRACKED. An ended one is kept for one more
day (TRACKED_ENDED), so that a late milestone is not counted as a new message. Counts of terminal
states outlive the rows.
"""

from waystation.push.model import Milestone
from waystation.storage.embedded import layout
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.expiry import ExpiryIndex
from waystation.storage.embedded.layout import TrackedRow
from waystation.storage.embedded.writer import WriteTransaction

KEEP_MS = 86_400_000


class TrackingChanges:
    def __init__(self, env: Environment) -> None:
        self._tracked = env.tables["tracked"]
        self._counts = env.tables["counts"]
        self._expiry = ExpiryIndex(env)

    def track(
        self, key: bytes, milestone: Milestone, expires_at_ms: int, txn: WriteTransaction
    ) -> None:
        value = txn.get(key, db=self._tracked)
        held = None if value is None else layout.decode_tracked(value)
        if held is not None and held.milestone.terminal:
            return
        self._move(txn, key, held, TrackedRow(milestone, expires_at_ms))

    def expire(self, now_ms: int, limit: int, txn: WriteTransaction) -> bool:
        """Move up to `limit` overdue messages to `expired`; returns whether more may be due."""
        due = self._expiry.due(txn, layout.TRACKED, now_ms, limit)
        for entry in due:
            key = layout.split_expiry_key(entry)[2]
            value = txn.get(key, db=self._tracked)
            assert value is not None, "an entry of expiry is removed with its row"
            held = layout.decode_tracked(value)
            self._move(txn, key, held, TrackedRow(Milestone.EXPIRED, held.expires_at_ms))
        return len(due) >= limit

    def sweep(self, now_ms: int, limit: int, txn: WriteTransaction) -> int:
        """Remove up to `limit` messages whose extra day is over; returns how many."""
        due = self._expiry.due(txn, layout.TRACKED_ENDED, now_ms, limit)
        for entry in due:
            self._expiry.drop(txn, entry)
            txn.delete(layout.split_expiry_key(entry)[2], db=self._tracked)
        return len(due)

    def _move(
        self, txn: WriteTransaction, key: bytes, old: TrackedRow | None, new: TrackedRow
    ) -> None:
        if old is not None:
            self._count(txn, old.milestone, -1)
            self._expiry.drop(txn, entry_of(key, old))
        self._count(txn, new.milestone, 1)
        self._expiry.add(txn, entry_of(key, new))
        txn.put(key, layout.encode_tracked(new), db=self._tracked)

    def _count(self, txn: WriteTransaction, milestone: Milestone, change: int) -> None:
        key = milestone.encode()
        value = txn.get(key, db=self._counts)
        count = change + (0 if value is None else layout.decode_version(value))
        assert count >= 0, "a message is counted before it is moved"
        txn.put(key, layout.encode_version(count), db=self._counts)


def entry_of(key: bytes, row: TrackedRow) -> bytes:
    """The key of the row's entry in `expiry`."""
    if row.milestone.terminal:
        return layout.expiry_key(layout.TRACKED_ENDED, row.expires_at_ms + KEEP_MS, key)
    return layout.expiry_key(layout.TRACKED, row.expires_at_ms, key)
