"""Reads of the push store from LMDB, in the caller's thread, each in a transaction of its own.

A read takes a microsecond or two and never waits, so it needs neither a thread nor the writer. Its
transaction ends before the call returns, so it never prevents the reuse of freed pages.
"""

from waystation.base.clock import Clock
from waystation.push.model import (
    ChannelId,
    MessageId,
    MessageStatus,
    Notification,
    Recipient,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.embedded import layout
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.layout import AgentRow, read_recipient


class PushReads:
    def __init__(self, env: Environment, clock: Clock) -> None:
        self._begin = env.lmdb.begin
        self._clock = clock
        self._agents = env.tables["agents"]
        self._notifications = env.tables["notifications"]
        self._payloads = env.tables["payloads"]
        self._updates = env.tables["updates"]
        self._broadcasts = env.tables["broadcasts"]
        self._statuses = env.tables["statuses"]
        self._counts = env.tables["counts"]

    def agent(self, uaid: Uaid) -> AgentRow | None:
        txn = self._begin(self._agents)
        value = txn.get(uaid)
        txn.abort()
        return None if value is None else self._alive(value)

    def user_agent(self, uaid: Uaid) -> UserAgent | None:
        row = self.agent(uaid)
        return None if row is None else row.record()

    def recipient(self, uaid: Uaid, channel_id: ChannelId, now_ms: int) -> Recipient | None:
        txn = self._begin(self._agents)
        value = txn.get(uaid)
        txn.abort()
        return None if value is None else read_recipient(value, channel_id, now_ms)

    def channels(self, uaid: Uaid) -> frozenset[ChannelId]:
        row = self.agent(uaid)
        return frozenset(() if row is None else layout.split_channels(row.channels))

    def notifications(
        self, uaid: Uaid, now_ms: int, after: SortKey | None, limit: int
    ) -> list[Notification]:
        alive: list[Notification] = []
        with self._begin(self._notifications) as txn:
            value = txn.get(uaid, db=self._agents)
            agent = None if value is None else self._alive(value)
            if agent is None:
                return alive
            looked = 0
            with txn.cursor() as cursor:
                found = cursor.set_range(uaid + (b"" if after is None else after.encode() + b"\0"))
                while found and cursor.key().startswith(uaid):
                    row = cursor.value()
                    place, channel_id = row[: layout.PLACE_BYTES], row[layout.PLACE_BYTES :]
                    expired = now_ms >= layout.second_of(place) * 1000
                    if not expired and agent.subscribed(ChannelId(channel_id)):
                        payload = txn.get(place, db=self._payloads)
                        assert payload is not None, "a row and its payload are written together"
                        alive.append(layout.decode_payload(payload))
                    looked += 1
                    if looked == limit:
                        if alive:
                            break
                        looked = 0
                    found = cursor.next()
        return alive

    def updates(self, uaid: Uaid, limit: int) -> list[Update]:
        updates: list[Update] = []
        with self._begin(self._updates) as txn:
            value = txn.get(uaid, db=self._agents)
            row = None if value is None else self._alive(value)
            if row is None:
                return updates
            with txn.cursor() as cursor:
                found = cursor.set_range(uaid)
                while found and len(updates) < limit and (key := cursor.key()).startswith(uaid):
                    channel_id = ChannelId(key[layout.UAID_BYTES :])
                    if row.subscribed(channel_id):
                        updates.append(layout.decode_update(channel_id, cursor.value()))
                    found = cursor.next()
        return updates

    def broadcasts(self) -> dict[str, str]:
        with self._begin(self._broadcasts) as txn, txn.cursor() as cursor:
            return {key.decode(): value.decode() for key, value in cursor}

    def status(self, message_id: MessageId, now_ms: int) -> MessageStatus | None:
        with self._begin(self._statuses) as txn:
            value = txn.get(layout.status_key(message_id))
        status = None if value is None else layout.decode_status(value)
        return None if status is None or status.keep_until_ms <= now_ms else status

    def counts(self) -> dict[str, int]:
        with self._begin(self._counts) as txn, txn.cursor() as cursor:
            counts = {key.decode(): layout.decode_version(value) for key, value in cursor}
        return {state: count for state, count in counts.items() if count}

    def probe(self) -> None:
        """One read through all levels of the largest table."""
        with self._begin(self._notifications) as txn:
            txn.get(bytes(layout.UAID_BYTES))

    def _alive(self, value: bytes) -> AgentRow | None:
        row = AgentRow(value)
        return row if row.expires_at_ms > self._clock.now_ms() else None
