"""Tracks unacknowledged notifications of one user agent, and decides when to read storage.

Rule 1: while `unacked_max` direct notifications are unacked, new ones are refused
        and the endpoint node stores them. A window of one is the strict rule of
        the first design: anything unacked refuses, except while storage is read.
Rule 2: after a refusal, or while a check of storage is pending, all later direct ones are refused
        until storage was read: stored ones must not wait behind a stream of direct ones.
Rule 3: a refusal, or a request to check storage while busy, sets `check_needed`;
        storage is read as soon as nothing is unacked.
Rule 4: a pass over storage sends a batch, waits until nothing is unacked and every
        acked row is deleted, and reads again from the start, until a read is empty.
Rule 5: a notification that is outstanding already is not sent again; rows are recognised by
        message id, because a topic's newer message has the same sort key.
Rule 6: a notification with TTL 0 is sent and never saved; the latest `unacked_max` of them are
        kept, without payload, so that their acks can be reported.
Rule 7: a direct notification whose endpoint node stopped waiting is also stored: its ack deletes
        the row as well.
Rule 8: when a subscription ends, its notifications are settled, and rows of it from a read in
        progress are not sent.
"""

import enum
from collections.abc import Sequence

import msgspec

from waystation.push.connect import effects as do
from waystation.push.connect.effects import Direct, Effect
from waystation.push.model import ChannelId, MessageId, Notification, Update
from waystation.push.wire.client_messages import DELIVERED, AckUpdate


class Pass(enum.Enum):
    """State of the pass over storage."""

    NONE = "none"
    DUE = "due"  # starts, or continues, as soon as the window allows
    READING = "reading"
    WAITING = "waiting"  # for the acks of a batch


# Module constants: reading an enum member costs 75 ns on CPython 3.11, and every message asks.
NONE, DUE, READING, WAITING = Pass
SENT, OUTSTANDING, REFUSED = Direct


class DeliveryWindow:
    """Direct and stored notifications of one user agent on one connection."""

    __slots__ = (
        "_also_stored",
        "_check_needed",
        "_direct",
        "_fleeting",
        "_forgetting",
        "_left",
        "_pass",
        "_refused",
        "_stored",
        "_unacked_max",
        "direct_acked",
        "sent_in_pass",
        "stored_acked",
        "stored_sent",
    )

    def __init__(self, *, unacked_max: int) -> None:
        assert unacked_max >= 1
        self._unacked_max = unacked_max
        # Created when first needed: most user agents are idle.
        self._direct: dict[MessageId, Notification] | None = None
        self._stored: dict[MessageId, Notification] | None = None
        self._fleeting: dict[MessageId, Notification] | None = None  # TTL 0
        self._also_stored: set[MessageId] | None = None  # of the direct ones
        self._forgetting = 0  # acked rows whose deletion has not been confirmed
        self._refused = False
        self._check_needed = False
        self._pass = NONE
        self._left: set[ChannelId] | None = None  # channels that ended while we read
        self.sent_in_pass = 0
        self.direct_acked = self.stored_acked = self.stored_sent = 0

    @property
    def unacked(self) -> int:
        return len(self._direct or ()) + len(self._stored or ())

    @property
    def unacked_directs(self) -> Sequence[Notification]:
        """The notifications to save when the connection ends."""
        return list(self._direct.values()) if self._direct else []

    # Direct notifications

    def direct(self, notification: Notification | Update) -> Direct:
        if not isinstance(notification, Notification):
            return REFUSED  # posted to an endpoint of the other protocol
        message_id, direct, stored = notification.message_id, self._direct, self._stored
        if (direct and message_id in direct) or (stored and message_id in stored):
            return OUTSTANDING
        strict = stored and self._unacked_max == 1
        if self._refused or strict or (direct and len(direct) >= self._unacked_max):
            self.refuse()
            return REFUSED
        if notification.ttl_s > 0:
            if direct is None:
                direct = self._direct = {}
            direct[message_id] = notification
        else:
            self._let_go(notification)
        return SENT

    def _let_go(self, notification: Notification) -> None:
        fleeting = self._fleeting
        if fleeting is None:
            fleeting = self._fleeting = {}
        elif len(fleeting) >= self._unacked_max:
            del fleeting[next(iter(fleeting))]
        # Without payload: it is never sent again.
        fleeting[notification.message_id] = msgspec.structs.replace(notification, data=None)

    def refuse(self) -> None:
        """Record a refusal; the driver calls it for a full send buffer or journal."""
        self._refused = True
        self._check_needed = True

    def mark_also_stored(self, notification: Notification | Update) -> None:
        """A direct notification that its endpoint node stored as well (rule 7)."""
        if isinstance(notification, Notification) and self._direct:
            message_id = notification.message_id
            if message_id in self._direct:
                self._also_stored = (self._also_stored or set()) | {message_id}

    # Acks

    def acked(self, updates: Sequence[AckUpdate]) -> list[Effect]:
        """Repeated acks, and acks of unknown messages, change nothing."""
        effects: list[Effect] = []
        rows: list[tuple[Notification, int]] = []
        direct, stored, fleeting = self._direct, self._stored, self._fleeting
        also_stored = self._also_stored
        for update in updates:
            version, code = update.version, update.code
            message_id = MessageId(version if isinstance(version, str) else str(version))
            if not code:  # none, or one that means nothing
                code = DELIVERED
            if direct and (acked := direct.pop(message_id, None)) is not None:
                self.direct_acked += 1
                if also_stored and message_id in also_stored:
                    also_stored.discard(message_id)
                    rows.append((acked, code))
                else:
                    effects.append(do.Settle(acked, code))
            elif stored and (acked := stored.pop(message_id, None)) is not None:
                self.stored_acked += 1
                rows.append((acked, code))
            elif fleeting and (acked := fleeting.pop(message_id, None)) is not None:
                self.direct_acked += 1
                effects.append(do.Settle(acked, code))
        if rows:
            self._forgetting += len(rows)
            effects.append(do.Forget(rows))
        return effects

    def forgotten(self, rows: int) -> None:
        """The store has deleted acked rows, or failed to."""
        self._forgetting -= rows
        assert self._forgetting >= 0

    def drop_channel(self, channel_id: ChannelId) -> list[Effect]:
        """Settle all notifications of an ended subscription (rule 8)."""
        effects: list[Effect] = []
        if self._pass is READING:
            self._left = (self._left or set()) | {channel_id}
        for unacked in (self._direct or {}, self._stored or {}):
            for notification in list(unacked.values()):
                if notification.channel_id == channel_id:
                    del unacked[notification.message_id]
                    effects.append(do.Settle(notification, do.DROPPED))
        return effects

    # Storage

    def check(self) -> bool:
        """Storage may have new rows. Whether it is read now; otherwise it is read as soon as
        nothing is unacked."""
        if self._pass is NONE and not self.unacked:
            self._pass = DUE
            return True
        self._check_needed = True
        return False

    def look(self, limit: int) -> list[Effect]:
        """Read storage now if the rules allow it."""
        if self._pass is READING or self._forgetting or self._stored:
            return []
        if self._pass is NONE and not self._check_needed:
            return []
        if self._direct:
            self._refused = True  # rule 2: lets the direct ones drain
            return []
        # A read that starts now sees everything stored before the check was requested.
        self._check_needed = False
        self._refused = False
        self._pass = READING
        return [do.Fetch(limit)]

    def read(self, rows: Sequence[Notification]) -> list[Effect]:
        """The effects of rows read from storage. No rows: the pass is over."""
        assert self._pass is READING
        left, self._left = self._left or (), None
        if not rows:
            self._pass = NONE
            self.sent_in_pass = 0
            return []
        if self._stored is None:
            self._stored = {}
        effects: list[Effect] = []
        fresh: list[Notification] = []
        for row in rows:
            if row.channel_id in left:
                continue
            # A notification sent directly during the read may be stored as well, if its endpoint
            # node got no answer. It is not sent twice: the row replaces the direct entry, its ack
            # deletes the row, and without an ack nothing must be saved.
            direct = self._direct.pop(row.message_id, None) if self._direct else None
            if direct is None:
                fresh.append(row)
            else:
                effects.append(do.Settle(direct, 0))
                if self._also_stored:
                    self._also_stored.discard(row.message_id)
            self._stored[row.message_id] = row
        self.sent_in_pass += len(fresh)
        self.stored_sent += len(fresh)
        self._pass = WAITING
        if fresh:
            effects.append(do.DeliverStored(fresh))
        return effects

    @property
    def pass_over(self) -> bool:
        return self._pass is NONE
