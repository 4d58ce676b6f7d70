"""What a session asks its driver to do: small frozen values, performed in order.

Those that name a result are answered by calling the session's method of that name, or its
`failed` when the store did not answer.
"""

import enum
from collections.abc import Sequence

import msgspec

from waystation.push.model import ChannelId, Notification, Uaid, Update, UserAgent


class Direct(enum.Enum):
    """What becomes of a direct notification."""

    SENT = "sent"  # write it to the socket, and to the journal unless its TTL is 0
    OUTSTANDING = "outstanding"  # it came twice, or through storage first: one ack is owed
    REFUSED = "refused"  # it cannot be taken now, and storage will be looked at


class Send(msgspec.Struct, frozen=True, gc=False):
    """A text message."""

    payload: bytes


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """A text message as its frame: one object, whoever is told the same."""

    frame: bytes


class SendPing(msgspec.Struct, frozen=True, gc=False):
    """A WebSocket Ping."""


class DeliverStored(msgspec.Struct, frozen=True, gc=False):
    notifications: Sequence[Notification]


class DeliverUpdates(msgspec.Struct, frozen=True, gc=False):
    """Stored versions, in one message."""

    updates: Sequence[Update]


class Close(msgspec.Struct, frozen=True, gc=False):
    code: int
    reason: str


class Enter(msgspec.Struct, frozen=True, gc=False):
    """Be found under this uaid; whoever was there is kept aside until `Greeted`."""

    uaid: Uaid


class Greeted(msgspec.Struct, frozen=True, gc=False):
    """The uaid is this connection's: an older one of this worker is closed."""

    new: bool


class LookUp(msgspec.Struct, frozen=True, gc=False):
    """Result: `looked_up`."""

    uaid: Uaid


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Result: `claimed`."""

    user_agent: UserAgent


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """Is the route still ours? Result: `confirmed`."""


class Reclaim(msgspec.Struct, frozen=True, gc=False):
    """Result: `reclaimed`."""

    user_agent: UserAgent


class Displace(msgspec.Struct, frozen=True, gc=False):
    """The user agent was connected elsewhere: that node may let go."""

    node_id: str
    connected_at_ms: int


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Result: `subscribed`. A user agent that was never stored is stored first."""

    channel_id: ChannelId
    newcomer: UserAgent | None


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    """Result: `unsubscribed`."""

    channel_id: ChannelId
    code: int


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Result: `fetched`."""

    limit: int


class FetchUpdates(msgspec.Struct, frozen=True, gc=False):
    """Result: `fetched_updates`."""

    limit: int


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Acked rows of the store, each with its ack code. Result: `forgotten`."""

    acked: Sequence[tuple[Notification, int]]


class ForgetUpdate(msgspec.Struct, frozen=True, gc=False):
    """Result: `forgotten`."""

    update: Update


class AdvanceCursor(msgspec.Struct, frozen=True, gc=False):
    """Storage has been read through, and all of it is acked. No result; nobody waits for it."""

    up_to_ms: int


class SwitchMonth(msgspec.Struct, frozen=True, gc=False):
    """Move the user agent to the table of this month. Result: `switched`."""

    connected_at_ms: int


class SwitchLater(msgspec.Struct, frozen=True, gc=False):
    """Result, after this while: `switch_due`."""

    after_s: float


class TakeUp(msgspec.Struct, frozen=True, gc=False):
    """Messages that were held: they are received again, before those that wait."""

    texts: Sequence[bytes]


DROPPED = -1  # no user agent's code


class Settle(msgspec.Struct, frozen=True, gc=False):
    """A direct notification is owed no more: acked with this code, or (0) found in storage, where
    it is owed from now on, or, as a stored one too, `DROPPED` with its channel."""

    notification: Notification | Update
    code: int


class Nacked(msgspec.Struct, frozen=True, gc=False):
    version: str
    code: int


class DropUserAgent(msgspec.Struct, frozen=True, gc=False):
    """Result: `dropped`."""

    reason: str


class SaveUnacked(msgspec.Struct, frozen=True, gc=False):
    """The connection is over: store what was not acked and tell whoever has the user agent now."""

    notifications: Sequence[Notification] | Sequence[Update]


Effect = (
    Send
    | SendFrame
    | SendPing
    | DeliverStored
    | DeliverUpdates
    | Close
    | Enter
    | Greeted
    | LookUp
    | Claim
    | Confirm
    | Reclaim
    | Displace
    | Subscribe
    | Unsubscribe
    | Fetch
    | FetchUpdates
    | Forget
    | ForgetUpdate
    | AdvanceCursor
    | SwitchMonth
    | SwitchLater
    | TakeUp
    | Settle
    | Nacked
    | DropUserAgent
    | SaveUnacked
)
