"""Write operations of the push store in LMDB; each method runs inside the writer's transaction.

Rule 1: an operation changes only its transaction, so that the writer may run it again.
Rule 2: a row and its entry in `expiry` are written and removed together.
Rule 3: an operation that could touch many rows takes a limit and returns whether rows are left.
"""

from collections.abc import Sequence

from waystation.base.clock import Clock
from waystation.base.errors import StoreFullError
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    HandedBack,
    MessageId,
    MessageStatus,
    MilestoneNote,
    Notification,
    Replaced,
    Route,
    SavedUpdate,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.embedded import layout
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.expiry import ExpiryIndex
from waystation.storage.embedded.layout import AgentRow
from waystation.storage.embedded.writer import WriterStats, WriteTransaction

Portion = tuple[int, bool]  # number of rows, and whether rows are left


class PushChanges:
    def __init__(self, env: Environment, clock: Clock, stats: WriterStats) -> None:
        self._clock = clock
        self._stats = stats
        self._transaction = -1
        self._number = 0
        self._agents = env.tables["agents"]
        self._notifications = env.tables["notifications"]
        self._payloads = env.tables["payloads"]
        self._updates = env.tables["updates"]
        self._broadcasts = env.tables["broadcasts"]
        self._statuses = env.tables["statuses"]
        self._expiry = ExpiryIndex(env)

    # User agents

    def add_user_agent(self, user_agent: UserAgent, txn: WriteTransaction) -> bool:
        if self._alive(txn, user_agent.uaid) is not None:
            return False
        self._begin(txn, user_agent)
        return True

    def claim_route(self, user_agent: UserAgent, txn: WriteTransaction) -> bool:
        row = self._alive(txn, user_agent.uaid)
        if row is None:
            if self._stats.full:  # only known user agents may register in a full store
                raise StoreFullError("no room for another user agent")
            self._begin(txn, user_agent)
            return True
        held = row.record()
        if held.node_id is not None and held.connected_at_ms >= user_agent.connected_at_ms:
            return False
        self._put_agent(txn, user_agent, row, channels=row.channels, renew=True)
        return True

    def clear_route(self, uaid: Uaid, seen: Route, txn: WriteTransaction) -> bool:
        row = self._alive(txn, uaid)
        if row is None:
            return False
        record = row.record()
        if record.route != seen:
            return False
        cleared = layout.without_route(record)
        self._put_agent(txn, cleared, row, channels=row.channels, renew=False)
        return True

    def remove_user_agent(self, uaid: Uaid, limit: int, txn: WriteTransaction) -> tuple[bool, bool]:
        """Returns whether it was known, and whether rows are left for `clear_rows`."""
        known = self._alive(txn, uaid) is not None
        self._drop_agent(txn, uaid)
        _, more = self.clear_rows(uaid, limit, txn)
        return known, more

    def clear_rows(self, uaid: Uaid, limit: int, txn: WriteTransaction) -> Portion:
        """Remove rows of a removed user agent; none if it has registered again."""
        if txn.get(uaid, db=self._agents) is not None:
            return 0, False
        return self._drop_rows(txn, uaid, limit)

    # Subscriptions

    def add_channel(
        self, uaid: Uaid, channel_id: ChannelId, channels_max: int, txn: WriteTransaction
    ) -> bool:
        row = self._alive(txn, uaid)
        if row is None:
            return False
        channels = row.channels
        if layout.channel_at(channels, channel_id) >= 0:
            return True
        if len(channels) // 16 >= channels_max:
            return False
        self._put_agent(txn, row.record(), row, channels=channels + channel_id, renew=False)
        return True

    def remove_channel(self, uaid: Uaid, channel_id: ChannelId, txn: WriteTransaction) -> bool:
        row = self._alive(txn, uaid)
        if row is None:
            return False
        channels = row.channels
        at = layout.channel_at(channels, channel_id)
        if at < 0:
            return False
        left = channels[:at] + channels[at + 16 :]
        self._put_agent(txn, row.record(), row, channels=left, renew=False)
        txn.delete(uaid + channel_id, db=self._updates)
        return True

    def clear_channel(
        self,
        uaid: Uaid,
        channel_id: ChannelId,
        after: bytes | None,
        limit: int,
        txn: WriteTransaction,
    ) -> bytes | None:
        """Drop notifications of a removed channel among `limit` rows beyond `after`. Returns the
        position to continue from, or None at the end."""
        row = self._alive(txn, uaid)
        if row is not None and row.subscribed(channel_id):
            return None  # subscribed again: the notifications may be new
        looked = 0
        last = after
        with txn.cursor(self._notifications) as cursor:
            found = cursor.set_range(uaid if after is None else after + b"\0")
            while found and (key := cursor.key()).startswith(uaid):
                if looked == limit:
                    return last
                looked += 1
                last = key
                value = cursor.value()
                if value.endswith(channel_id):
                    txn.delete(value[: layout.PLACE_BYTES], db=self._payloads)
                    found = cursor.delete()
                else:
                    found = cursor.next()
        return None

    # Notifications

    def save(
        self,
        key: bytes,
        channel_id: ChannelId,
        second: int,
        payload: bytes,
        txn: WriteTransaction,
    ) -> Replaced | None:
        place = self._next_place(txn, second)
        held = txn.replace(key, place + channel_id, db=self._notifications)
        before = None
        if held is not None:
            before = txn.pop(held[: layout.PLACE_BYTES], db=self._payloads)
        txn.put(place, payload, db=self._payloads)
        if held is None or before is None:
            return None
        accepted_at_ms, message_id = layout.age_of(before)
        return Replaced(MessageId(message_id), accepted_at_ms, layout.second_of(held) * 1000)

    def save_new(self, uaid: Uaid, notification: Notification, txn: WriteTransaction) -> bool:
        key = layout.notification_key(uaid, notification.sort_key)
        held = self._payload(txn, txn.get(key, db=self._notifications))
        if held is not None and layout.age_of(held)[1] != notification.message_id:
            return False
        payload = layout.encode_payload(key, notification)
        second = notification.expires_at_ms // 1000
        self.save(key, notification.channel_id, second, payload, txn)
        return True

    def save_if_newer(
        self, uaid: Uaid, notifications: Sequence[Notification], txn: WriteTransaction
    ) -> HandedBack:
        row = self._alive(txn, uaid)
        if row is None:
            return HandedBack()
        written = 0
        replaced: list[Replaced | None] = []
        for notification in notifications:
            if not row.subscribed(notification.channel_id):
                continue
            key = layout.notification_key(uaid, notification.sort_key)
            age = (notification.accepted_at_ms, notification.message_id)
            payload = self._payload(txn, txn.get(key, db=self._notifications))
            held = None if payload is None else layout.age_of(payload)
            if held is not None and held >= age:
                replaced.append(notification.replaced_by(MessageId(held[1])))
                continue
            payload = layout.encode_payload(key, notification)
            second = notification.expires_at_ms // 1000
            older = self.save(key, notification.channel_id, second, payload, txn)
            if held is not None and notification.replaced_by(MessageId(held[1])) is not None:
                replaced.append(older)
            written += 1
        return HandedBack(written, tuple(filter(None, replaced)))

    def forget(self, uaid: Uaid, rows: Sequence[tuple[SortKey, str]], txn: WriteTransaction) -> int:
        forgotten = 0
        for sort_key, message_id in rows:
            key = layout.notification_key(uaid, sort_key)
            held = txn.get(key, db=self._notifications)
            payload = self._payload(txn, held)
            if held is None or payload is None or layout.age_of(payload)[1] != message_id:
                continue
            txn.delete(key, db=self._notifications)
            txn.delete(held[: layout.PLACE_BYTES], db=self._payloads)
            forgotten += 1
        return forgotten

    # SimplePush

    def save_update(self, uaid: Uaid, update: Update, txn: WriteTransaction) -> SavedUpdate:
        row, channel_id = self._alive(txn, uaid), update.channel_id
        if row is None or not row.subscribed(channel_id):
            return SavedUpdate(False)
        held = txn.get(uaid + channel_id, db=self._updates)
        saved = update.saved(None if held is None else layout.decode_update(channel_id, held))
        if saved.applied:
            txn.put(uaid + channel_id, layout.encode_update(update), db=self._updates)
        return saved

    def forget_update(
        self, uaid: Uaid, channel_id: ChannelId, version: int, txn: WriteTransaction
    ) -> bool:
        held = txn.get(uaid + channel_id, db=self._updates)
        if held is None or layout.decode_update(channel_id, held).version != version:
            return False
        if self._alive(txn, uaid) is None:
            return False
        return txn.delete(uaid + channel_id, db=self._updates)

    # Broadcasts and statuses

    def publish_broadcast(self, key: bytes, version: bytes, txn: WriteTransaction) -> bool:
        return txn.replace(key, version, db=self._broadcasts) is None

    def note_milestones(self, notes: Sequence[MilestoneNote], txn: WriteTransaction) -> None:
        """Milestones of one message usually arrive together; its row is written once."""
        by_message: dict[MessageId, list[MilestoneNote]] = {}
        for note in notes:
            by_message.setdefault(note.message_id, []).append(note)
        for message_id, its_notes in by_message.items():
            self._note_milestones(txn, layout.status_key(message_id), its_notes)

    def _note_milestones(
        self, txn: WriteTransaction, key: bytes, notes: Sequence[MilestoneNote]
    ) -> None:
        held = txn.get(key, db=self._statuses)
        old = None if held is None else layout.decode_status(held)
        milestones = {} if old is None else dict(old.milestones)
        until_ms = 0 if old is None else old.keep_until_ms
        for note in notes:
            name = note.milestone.value
            milestones[name] = min(milestones.get(name, note.at_ms), note.at_ms)
            until_ms = max(until_ms, note.keep_until_ms)
        sender = notes[0].sender if old is None else old.sender
        if old is not None and until_ms != old.keep_until_ms:
            self._expiry.drop(txn, layout.expiry_key(layout.STATUS, old.keep_until_ms, key))
        status = MessageStatus(sender, milestones, until_ms)
        txn.put(key, layout.encode_status(status), db=self._statuses)
        self._expiry.add(txn, layout.expiry_key(layout.STATUS, until_ms, key))

    # Upkeep

    def sweep(self, now_ms: int, limit: int, txn: WriteTransaction) -> Portion:
        """Process up to `limit` expired entries. Returns how many rows were removed, and whether
        more entries may be due."""
        removed = self._sweep_payloads(txn, now_ms, limit)
        removed += self._sweep_statuses(txn, now_ms, limit - removed)
        if removed >= limit:
            return removed, True
        gone, moved = 0, 0
        for entry in self._expiry.due(txn, layout.AGENT, now_ms, limit - removed):
            key = layout.split_expiry_key(entry)[2]
            value = txn.get(key, db=self._agents)
            row = None if value is None else AgentRow(value)
            if row is not None and row.expires_at_ms > now_ms:
                self._put_agent(
                    txn, row.record(), row, channels=row.channels, renew=False, reindex=True
                )
                moved += 1
                continue
            dropped, more = self._drop_rows(txn, Uaid(key), limit - removed - gone)
            gone += dropped
            if more:
                return removed + gone, True
            if row is None:
                self._expiry.drop(txn, entry)
                moved += 1
            else:
                self._drop_agent(txn, Uaid(key))
                gone += 1
            if removed + gone >= limit:
                return removed + gone, True
        return removed + gone, removed + gone + moved >= limit

    # Inside

    def _alive(self, txn: WriteTransaction, uaid: Uaid) -> AgentRow | None:
        value = txn.get(uaid, db=self._agents)
        if value is None:
            return None
        row = AgentRow(value)
        return row if row.expires_at_ms > self._clock.now_ms() else None

    def _begin(self, txn: WriteTransaction, user_agent: UserAgent) -> None:
        """Create a record; rows of a removed predecessor are not inherited."""
        self._drop_agent(txn, user_agent.uaid)
        more = True
        while more:
            _, more = self._drop_rows(txn, user_agent.uaid, 1000)
        self._put_agent(txn, user_agent, None, channels=b"", renew=True)

    def _put_agent(
        self,
        txn: WriteTransaction,
        record: UserAgent,
        row: AgentRow | None,
        *,
        channels: bytes,
        renew: bool,
        reindex: bool = False,
    ) -> None:
        if row is None or renew:
            expires_at_ms = self._clock.now_ms() + USER_AGENT_LIFETIME_S * 1000
        else:
            expires_at_ms = row.expires_at_ms
        if row is None or reindex:
            indexed_at_ms = expires_at_ms
            if row is not None:
                self._expiry.drop(txn, _agent_entry(record.uaid, row.indexed_at_ms))
            self._expiry.add(txn, _agent_entry(record.uaid, indexed_at_ms))
        else:
            indexed_at_ms = row.indexed_at_ms
        value = layout.encode_agent(
            record, channels=channels, expires_at_ms=expires_at_ms, indexed_at_ms=indexed_at_ms
        )
        txn.put(record.uaid, value, db=self._agents)

    def _drop_agent(self, txn: WriteTransaction, uaid: Uaid) -> None:
        value = txn.pop(uaid, db=self._agents)
        if value is not None:
            self._expiry.drop(txn, _agent_entry(uaid, AgentRow(value).indexed_at_ms))

    def _drop_rows(self, txn: WriteTransaction, uaid: Uaid, limit: int) -> Portion:
        """Remove notifications and updates of one user agent."""
        dropped = 0
        with txn.cursor(self._updates) as cursor:
            found = cursor.set_range(uaid)
            while found and dropped < limit and cursor.key().startswith(uaid):
                found = cursor.delete()
                dropped += 1
        with txn.cursor(self._notifications) as cursor:
            found = cursor.set_range(uaid)
            while found and dropped < limit and cursor.key().startswith(uaid):
                txn.delete(cursor.value()[: layout.PLACE_BYTES], db=self._payloads)
                found = cursor.delete()
                dropped += 1
        return dropped, dropped >= limit

    def _sweep_payloads(self, txn: WriteTransaction, now_ms: int, limit: int) -> int:
        end = layout.place_of(now_ms // 1000 + 1, 0, 0)
        removed = 0
        with txn.cursor(self._payloads) as cursor:
            cursor.first()
            # The cursor's key is empty after the last row and in an empty table.
            while removed < limit and b"" < cursor.key() < end:
                txn.delete(layout.key_of(cursor.value()), db=self._notifications)
                cursor.delete()
                removed += 1
        return removed

    def _sweep_statuses(self, txn: WriteTransaction, now_ms: int, limit: int) -> int:
        due = self._expiry.due(txn, layout.STATUS, now_ms, limit)
        for entry in due:
            self._expiry.drop(txn, entry)
            txn.delete(layout.split_expiry_key(entry)[2], db=self._statuses)
        return len(due)

    def _payload(self, txn: WriteTransaction, row: bytes | None) -> bytes | None:
        """The payload of a row of `notifications`."""
        return None if row is None else txn.get(row[: layout.PLACE_BYTES], db=self._payloads)

    def _next_place(self, txn: WriteTransaction, second: int) -> bytes:
        # Numbers increase within a transaction and may restart in the next one. A repeated
        # operation takes another number.
        transaction = txn.id()
        if transaction != self._transaction:
            self._transaction = transaction
            self._number = 0
        self._number += 1
        return layout.place_of(second, transaction, self._number)


def _agent_entry(uaid: Uaid, at_ms: int) -> bytes:
    return layout.expiry_key(layout.AGENT, at_ms, uaid)
