"""Types of the queue service: ids, keys, queues, messages.

Rule 1: an id is its raw bytes; text (base64url) is for files, addresses and operators.
Rule 2: a slot is the first 12 bits of an id, the first two letters of its base64url text.
Rule 3: the secret that a queue shares with its recipient is stored as a `BoxKey`; the
        Diffie-Hellman secret itself is not needed.
"""

import enum
import hashlib
from typing import NewType

import msgspec

RecipientId = NewType("RecipientId", bytes)
SenderId = NewType("SenderId", bytes)
NotifierId = NewType("NotifierId", bytes)
LinkId = NewType("LinkId", bytes)
ServiceId = NewType("ServiceId", bytes)
MessageId = NewType("MessageId", bytes)
SessionId = NewType("SessionId", bytes)  # the client's TLS Finished, 32 bytes
CorrId = NewType("CorrId", bytes)  # 0 to 255 bytes that the client chose
EntityId = NewType("EntityId", bytes)  # any of the ids above, in a transmission
DhKey = NewType("DhKey", bytes)  # a raw X25519 public key
DhPrivateKey = NewType("DhPrivateKey", bytes)
BoxKey = NewType("BoxKey", bytes)  # HSalsa20 of a secret: the key for XSalsa20-Poly1305
Fingerprint = NewType("Fingerprint", bytes)  # SHA-256 of an identity certificate
Slot = NewType("Slot", int)  # 0 to 4095

ID_BYTES = 24
SLOTS = 4096
DAY_S = 86_400
VERSION_MIN = 8
VERSION_MAX = 18
VERSION_LEGACY = 6  # with the switch for clients from before June 2024

NO_CORR_ID = CorrId(b"")
NO_ENTITY = EntityId(b"")

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


class VersionRange(msgspec.Struct, frozen=True, gc=False):
    """The versions of the protocol that one side supports, both ends included."""

    lowest: int
    highest: int

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def common(self, other: "VersionRange") -> "VersionRange | None":
        lowest, highest = max(self.lowest, other.lowest), min(self.highest, other.highest)
        return VersionRange(lowest, highest) if lowest <= highest else None


CURRENT_VERSIONS = VersionRange(VERSION_MIN, VERSION_MAX)
LEGACY_VERSIONS = VersionRange(VERSION_LEGACY, VERSION_MAX)


class KeyKind(enum.Enum):
    """How the owner of a key authorises commands."""

    ED25519 = "ed25519"
    ED448 = "ed448"
    X25519 = "x25519"  # an authenticator instead of a signature: deniable


class AuthKey(msgspec.Struct, frozen=True, gc=False):
    """A public key that commands are checked with."""

    kind: KeyKind
    raw: bytes


class QueueMode(enum.Enum):
    """Whether the sender can secure a queue; queues made below version 9 have no mode."""

    MESSAGING = "M"  # the sender can
    CONTACT = "C"  # not secured: many senders


class SubMode(enum.Enum):
    SUBSCRIBE = "S"
    CREATE = "C"  # without a subscription


class ServiceRole(enum.Enum):
    """The only use of a service."""

    MESSAGING = "M"  # receives and sends
    NOTIFIER = "N"  # receives notifications
    PROXY = "P"  # forwards commands


class Service(msgspec.Struct, frozen=True, gc=False):
    """A busy client with a certificate, and its id here."""

    service_id: ServiceId
    role: ServiceRole


class LinkData(msgspec.Struct, frozen=True, gc=False):
    """The data of a short link; both parts are ciphertext to us."""

    fixed: bytes
    user: bytes


class Link(msgspec.Struct, frozen=True, gc=False):
    link_id: LinkId
    data: LinkData


class Notifier(msgspec.Struct, frozen=True, gc=False):
    notifier_id: NotifierId
    key: AuthKey
    box_key: BoxKey  # for the meta data of notifications
    service_id: ServiceId | None = None  # the service that last subscribed to it


class BlockReason(enum.Enum):
    SPAM = "spam"
    CONTENT = "content"


class Notice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The notice for the owner of a blocked queue, and how long it is valid."""

    ttl: int | None = None  # seconds; None: for ever


class Blocking(msgspec.Struct, frozen=True, gc=False):
    reason: BlockReason
    notice: Notice | None = None


class RefKind(enum.Enum):
    """The kind of id that leads to a queue in another slot."""

    SENDER = "S"
    NOTIFIER = "N"
    LINK = "L"


class Standing(enum.Enum):
    ACTIVE = "active"
    OFF = "off"  # suspended: no messages are accepted
    BLOCKED = "blocked"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one queue, without its messages."""

    recipient_id: RecipientId
    recipient_keys: tuple[AuthKey, ...]
    box_key: BoxKey  # bodies are encrypted to the recipient with it
    sender_id: SenderId
    sender_key: AuthKey | None = None
    mode: QueueMode | None = None
    link: Link | None = None
    notifier: Notifier | None = None
    standing: Standing = Standing.ACTIVE
    blocking: Blocking | None = None
    updated_on_s: int = 0  # the day (UTC), in seconds since 1970
    service_id: ServiceId | None = None  # the service that last subscribed to it

    @property
    def slot(self) -> Slot:
        return slot_of(self.recipient_id)


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message in a queue. Without a body it is the quota marker, which tells the recipient that
    messages were refused."""

    message_id: MessageId
    accepted_at_s: int  # seconds, as on the wire
    notify: bool = False
    body: bytes | None = None

    @property
    def is_marker(self) -> bool:
        return self.body is None


def slot_of(entity_id: bytes) -> Slot:
    return Slot((entity_id[0] << 4) | (entity_id[1] >> 4))


def slot_letters(slot: int) -> str:
    """The name of a slot: the first two letters of its ids in base64url."""
    return _LETTERS[slot >> 6] + _LETTERS[slot & 63]


def sender_id_from(corr_id: bytes) -> SenderId:
    """The sender id that a client must choose when it sends link data with `NEW`."""
    return SenderId(hashlib.sha3_384(corr_id).digest()[:ID_BYTES])


def message_bytes_max(version: int) -> int:
    """The longest body for a sender's version: newer ones have less room because of encryption."""
    if version >= 11:
        return 16048
    return 16064 if version >= 8 else 16088


def day_of(now_s: int) -> int:
    """The beginning of the day (UTC): the last use of a queue is stored by day."""
    return now_s - now_s % DAY_S
