"""Data types of push: user agents, notifications, updates, routes and milestones."""

import enum
from typing import Any, Final, NewType

import msgspec

from waystation.telemetry.contract import TTL_MAX_S

Uaid = NewType("Uaid", bytes)  # 16 raw bytes of the UUID; text only on a wire
ChannelId = NewType("ChannelId", bytes)  # 16 raw bytes of the UUID
MessageId = NewType("MessageId", str)  # opaque Fernet text, the wire's `version`
SortKey = NewType("SortKey", str)  # "01:<channel>:<topic>" or "02:<ms>:<channel>[:<n>]"

RECORD_VERSION = 1  # older user agent records are reset after delivery
USER_AGENT_LIFETIME_S = 60 * 86_400

WEBPUSH = "webpush"
SIMPLEPUSH = "simplepush"


class Urgency(enum.StrEnum):
    """RFC 8030 §5.3. Stored with the notification, not sent to the user agent."""

    VERY_LOW = "very-low"
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class Notification(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What an app server posted for one subscription."""

    channel_id: ChannelId
    message_id: MessageId
    sort_key: SortKey
    accepted_at_ms: int
    ttl_s: int
    topic: str | None = None
    data: str | None = None  # base64url without padding
    headers: dict[str, str] | None = None  # encoding, encryption, crypto_key; cleaned
    urgency: Urgency = Urgency.NORMAL
    sender: bytes | None = None  # SHA-256 of the VAPID public key
    reliability_id: str | None = None
    reliable_state: str | None = None

    @property
    def timestamp_s(self) -> int:
        """Time of acceptance in seconds, the resolution of Autopush's wire and rows."""
        return self.accepted_at_ms // 1000

    @property
    def expires_at_ms(self) -> int:
        return (self.accepted_at_ms // 1000 + self.ttl_s) * 1000

    def expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_at_ms

    def replaces(self, held: "Notification | None") -> "Replaced | None":
        """The message that saving this one over `held` replaces: another one of its topic."""
        if held is None or self.topic is None or held.message_id == self.message_id:
            return None
        return Replaced.of(held)

    def replaced_by(self, held_id: MessageId) -> "Replaced | None":
        """The reverse: this message is replaced because the stored one stays."""
        if self.topic is None or held_id == self.message_id:
            return None
        return Replaced.of(self)


class Replaced(msgspec.Struct, frozen=True, gc=False):
    """A notification that was replaced in storage by a newer one of its topic."""

    message_id: MessageId
    accepted_at_ms: int
    expires_at_ms: int

    @classmethod
    def of(cls, notification: "Notification | Update") -> "Replaced":
        return cls(notification.message_id, notification.accepted_at_ms, notification.expires_at_ms)

    @property
    def timestamp_s(self) -> int:
        return self.accepted_at_ms // 1000

    def expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_at_ms


class HandedBack(msgspec.Struct, frozen=True, gc=False):
    """Result of handing notifications back to storage."""

    written: int = 0
    replaced: tuple[Replaced, ...] = ()  # of two of one topic, the older one


VERSION_MAX: Final = 2**63 - 1  # of a SimplePush update


class Update(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """SimplePush: the newest version number of one subscription, optionally with data."""

    channel_id: ChannelId
    version: int
    data: str | None = None
    accepted_at_ms: int = 0  # 0 is unknown: older nodes do not send it

    @property
    def message_id(self) -> MessageId:
        """Identifies the update in events, together with its time."""
        return MessageId(f"{self.channel_id.hex()}:{self.version}")

    @property
    def timestamp_s(self) -> int:
        return self.accepted_at_ms // 1000

    @property
    def expires_at_ms(self) -> int:
        """For events; updates never expire, so this is the greatest TTL."""
        return self.accepted_at_ms + TTL_MAX_S * 1000

    def saved(self, held: "Update | None") -> "SavedUpdate":
        """Result of saving this update where `held` is stored."""
        if held is None:
            return SavedUpdate(True)
        applied = held.version < self.version
        ended = held if applied else self
        same = (held.version, held.timestamp_s) == (self.version, self.timestamp_s)
        unknown = same or not ended.accepted_at_ms
        return SavedUpdate(applied, None if unknown else Replaced.of(ended))


class SavedUpdate(msgspec.Struct, frozen=True, gc=False):
    """Result of saving an update."""

    applied: bool
    replaced: Replaced | None = None
    """Of the channel's two updates, the one that is not stored, if its time is known."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """Where a user agent is connected, as read. `clear_route` compares with it."""

    node_id: str
    connected_at_ms: int
    row_version: bytes | None = None


class UserAgent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of one user agent (Autopush calls it the router record)."""

    uaid: Uaid
    connected_at_ms: int
    router_type: str = WEBPUSH
    router_data: dict[str, Any] | None = None
    node_id: str | None = None
    record_version: int | None = RECORD_VERSION
    current_timestamp_ms: int | None = None
    row_version: bytes | None = None
    behind: bool = False  # on the table of an earlier month (rotating stores only)

    @property
    def route(self) -> Route | None:
        if self.node_id is None:
            return None
        return Route(self.node_id, self.connected_at_ms, self.row_version)


class Recipient(msgspec.Struct, frozen=True, gc=False):
    """Record and subscription of a POST, read in one round trip."""

    user_agent: UserAgent
    subscribed: bool


class Milestone(enum.StrEnum):
    """A stage in a notification's life; also the states of reliability tracking."""

    RECEIVED = "received"
    INT_TRANSMITTED = "int_transmitted"
    INT_ACCEPTED = "int_accepted"
    TRANSMITTED = "transmitted"
    ACCEPTED = "accepted"
    STORED = "stored"
    RETRIEVED = "retrieved"
    DELIVERED = "delivered"
    DECRYPTION_ERROR = "decryption_error"
    NOT_DELIVERED = "not_delivered"
    BRIDGE_TRANSMITTED = "bridge_transmitted"
    EXPIRED = "expired"
    ERRORED = "errored"
    WITHDRAWN = "withdrawn"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        Milestone.DELIVERED,
        Milestone.DECRYPTION_ERROR,
        Milestone.NOT_DELIVERED,
        Milestone.BRIDGE_TRANSMITTED,
        Milestone.EXPIRED,
        Milestone.ERRORED,
        Milestone.WITHDRAWN,
    }
)


class MilestoneNote(msgspec.Struct, frozen=True, gc=False):
    """One milestone of one message, to be written to the store."""

    message_id: MessageId
    sender: bytes
    milestone: Milestone
    at_ms: int
    keep_until_ms: int


class MessageStatus(msgspec.Struct, frozen=True):
    """Status of one message, for its sender."""

    sender: bytes
    milestones: dict[str, int]  # milestone -> time in ms
    keep_until_ms: int
