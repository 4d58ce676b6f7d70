"""Ids and private keys that recipient, sender and notifier of a queue hold. All of it is secret.

The `box_key` of a recipient or notifier is HSalsa20 of the secret shared with the server; it
decrypts messages of the server.
"""

import msgspec

from .address import LinkAddress, QueueAddress, ServerAddress
from .commands import LinkData, Mode
from .keys import PrivateKey


class Notifier(msgspec.Struct, frozen=True):
    """Subscribes to notifications of a queue. Whoever has it learns when messages arrive."""

    notifier_id: bytes
    key: PrivateKey
    box_key: bytes


class OwnLink(msgspec.Struct, frozen=True):
    """The owner's side of a short link."""

    link_id: bytes
    link_key: bytes
    root: PrivateKey
    data: LinkData


class RecipientQueue(msgspec.Struct, frozen=True, kw_only=True):
    server: ServerAddress
    recipient_id: bytes
    sender_id: bytes
    key: PrivateKey
    box_key: bytes
    inbox_key: PrivateKey  # X25519: opens what senders sealed from the server
    mode: Mode | None
    link: OwnLink | None = None
    notifier: Notifier | None = None

    @property
    def address(self) -> QueueAddress:
        """The address for senders."""
        return QueueAddress(self.server, self.sender_id, self.inbox_key.public, self.mode)

    @property
    def link_address(self) -> LinkAddress | None:
        if self.link is None:
            return None
        link_id = b"" if self.mode == "C" else self.link.link_id
        return LinkAddress(self.server, self.link.link_key, link_id)


class SenderQueue(msgspec.Struct, frozen=True):
    """`key` is None while the queue is not secured: then anybody with the address can send."""

    sender_id: bytes
    key: PrivateKey | None = None
