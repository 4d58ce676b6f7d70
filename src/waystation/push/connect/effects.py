"""Effects: what a session asks its driver to do. Small frozen values, performed in order.

For an effect with "Result: `name`" the driver calls the session's method of that name afterwards,
or `failed` if the store did not answer.
"""

import enum
from collections.abc import Sequence

import msgspec

from waystation.push.model import ChannelId, Notification, Uaid, Update, UserAgent


class Direct(enum.Enum):
    """The window's decision on a direct notification."""

    SENT = "sent"  # write it to the socket, and to the journal unless its TTL is 0
    OUTSTANDING = "outstanding"  # sent before (directly or from storage) and unacked: not repeated
    REFUSED = "refused"  # not now; storage will be read


class Send(msgspec.Struct, frozen=True, gc=False):
    """A text message."""

    payload: bytes


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    """A text message as a WebSocket frame, shared by all user agents that get the same one."""

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


class AddToRegistry(msgspec.Struct, frozen=True, gc=False):
    """Register this connection under the uaid; an older one is set aside until `Greeted`."""

    uaid: Uaid


class Greeted(msgspec.Struct, frozen=True, gc=False):
    """The hello is accepted: close the older connection of this uaid on this worker."""

    new: bool


class LookUp(msgspec.Struct, frozen=True, gc=False):
    """Result: `looked_up`."""

    uaid: Uaid


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Result: `claimed`."""

    user_agent: UserAgent


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """Read the record, to check that its route is still this connection. Result: `confirmed`."""


class Reclaim(msgspec.Struct, frozen=True, gc=False):
    """Result: `reclaimed`."""

    user_agent: UserAgent


class Displace(msgspec.Struct, frozen=True, gc=False):
    """Tell the node of the user agent's older connection to close that one."""

    node_id: str
    connected_at_ms: int


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    """Result: `subscribed`. A new user agent is stored first."""

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
    """Delete acked rows, each with its ack code. Result: `forgotten`."""

    acked: Sequence[tuple[Notification, int]]


class ForgetUpdate(msgspec.Struct, frozen=True, gc=False):
    """Result: `forgotten`."""

    update: Update


class AdvanceCursor(msgspec.Struct, frozen=True, gc=False):
    """Move Autopush's read cursor: all stored notifications are acked. No result."""

    up_to_ms: int


class SwitchMonth(msgspec.Struct, frozen=True, gc=False):
    """Move the user agent to the table of this month. Result: `switched`, see `month_switch`."""

    connected_at_ms: int


class SwitchLater(msgspec.Struct, frozen=True, gc=False):
    """Retry the month switch after this time. Result: `switch_due`."""

    after_s: float


class ReceiveHeld(msgspec.Struct, frozen=True, gc=False):
    """Feed the held messages to the session, before the queued ones."""

    texts: Sequence[bytes]


DROPPED = -1  # outside the range of ack codes


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Settle a notification in the journal. The code is its ack code, 0 if the notification is also
    stored and stays unacked there, or `DROPPED` if its subscription ended (stored ones too)."""

    notification: Notification | Update
    code: int


class Nacked(msgspec.Struct, frozen=True, gc=False):
    version: str
    code: int


class DropUserAgent(msgspec.Struct, frozen=True, gc=False):
    """Result: `dropped`."""

    reason: str


class SaveUnacked(msgspec.Struct, frozen=True, gc=False):
    """The session ended: save unacked notifications and tell the user agent's current node."""

    notifications: Sequence[Notification] | Sequence[Update]


Effect = (
    Send
    | SendFrame
    | SendPing
    | DeliverStored
    | DeliverUpdates
    | Close
    | AddToRegistry
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
    | ReceiveHeld
    | Settle
    | Nacked
    | DropUserAgent
    | SaveUnacked
)
