"""SimplePush: tracks unacknowledged versions of one user agent's channels.

Rule 1: while anything is unacked, new versions are refused and the endpoint node
        stores them; but a version that is not newer than an unacked one of its
        channel is accepted and not sent.
Rule 2: an ack of version v settles every version up to v of its channel. The stored
        row is deleted only if it is still the row that was read; a newer one is sent
        with the next read.
Rule 3: after hello, and whenever nothing is unacked and something may be stored, all
        stored versions are sent in one message, except those of a channel that ended
        during the read.
"""

from collections.abc import Sequence

from waystation.base.ids import parse_uuid
from waystation.push.connect import effects as do
from waystation.push.connect.effects import Direct, Effect
from waystation.push.model import ChannelId, Notification, Update
from waystation.push.wire.client_messages import DELIVERED, AckUpdate


class UpdateWindow:
    """Versions of one SimplePush user agent on one connection."""

    __slots__ = (
        "_also_stored",
        "_check_needed",
        "_direct",
        "_forgetting",
        "_left",
        "_reading",
        "_stored",
        "direct_acked",
        "stored_acked",
        "stored_sent",
    )

    def __init__(self) -> None:
        self._direct: dict[ChannelId, Update] = {}
        self._stored: dict[ChannelId, Update] = {}
        self._check_needed = False
        self._reading = False
        self._left: set[ChannelId] = set()  # channels that ended during a read
        self._forgetting = 0
        self._also_stored: set[ChannelId] = set()  # channels whose direct version is also stored
        self.direct_acked = self.stored_acked = self.stored_sent = 0

    @property
    def unacked(self) -> int:
        return len(self._direct) + len(self._stored)

    @property
    def unacked_directs(self) -> Sequence[Update]:
        return list(self._direct.values())

    def direct(self, update: Notification | Update) -> Direct:
        if isinstance(update, Notification):
            return Direct.REFUSED  # posted to an endpoint of the other protocol
        for unacked in (self._direct, self._stored):
            sent = unacked.get(update.channel_id)
            if sent is not None and sent.version >= update.version:
                return Direct.OUTSTANDING
        if self.unacked:
            self.refuse()
            return Direct.REFUSED
        self._direct[update.channel_id] = update
        return Direct.SENT

    def refuse(self) -> None:
        self._check_needed = True

    def mark_also_stored(self, update: Notification | Update) -> None:
        """The endpoint node stopped waiting and stored an update that was sent directly."""
        if self._direct.get(update.channel_id) == update:
            self._also_stored.add(update.channel_id)

    def acked(self, updates: Sequence[AckUpdate]) -> list[Effect]:
        effects: list[Effect] = []
        for update in updates:
            raw = parse_uuid(update.channelID) if update.channelID is not None else None
            if raw is not None and isinstance(update.version, int):
                effects += self._acked(ChannelId(raw), update.version)
        return effects

    def _acked(self, channel_id: ChannelId, version: int) -> list[Effect]:
        effects: list[Effect] = []
        direct = self._direct.get(channel_id)
        if direct is not None and direct.version <= version:
            del self._direct[channel_id]
            self.direct_acked += 1
            if channel_id in self._also_stored:
                self._also_stored.discard(channel_id)
                self._forgetting += 1
                effects += [do.Settle(direct, 0), do.ForgetUpdate(direct)]
            else:
                effects.append(do.Settle(direct, DELIVERED))
        stored = self._stored.get(channel_id)
        if stored is not None and stored.version <= version:
            del self._stored[channel_id]
            self.stored_acked += 1
            self._forgetting += 1
            effects.append(do.ForgetUpdate(stored))
        return effects

    def forgotten(self, rows: int) -> None:
        self._forgetting -= rows

    def drop_channel(self, channel_id: ChannelId) -> list[Effect]:
        if self._reading:
            self._left.add(channel_id)
        self._stored.pop(channel_id, None)
        direct = self._direct.pop(channel_id, None)
        return [] if direct is None else [do.Settle(direct, do.DROPPED)]

    def check(self) -> bool:
        """Whether storage is read now; if not, it is read when nothing is unacked."""
        self._check_needed = True
        return not self._reading and not self.unacked

    def look(self, limit: int) -> list[Effect]:
        if self._reading or self._forgetting or self.unacked or not self._check_needed:
            return []
        self._check_needed = False
        self._reading = True
        return [do.FetchUpdates(limit)]

    def read(self, rows: Sequence[Update]) -> list[Effect]:
        assert self._reading
        self._reading = False
        left, self._left = self._left, set()
        fresh: list[Update] = []
        for row in rows:
            if row.channel_id in left:
                continue
            sent = self._direct.get(row.channel_id)
            if sent is None or sent.version < row.version:
                fresh.append(row)
            # Else the ack of the version that was sent directly covers this row as well.
            self._stored[row.channel_id] = row
        self.stored_sent += len(fresh)
        return [do.DeliverUpdates(fresh)] if fresh else []
