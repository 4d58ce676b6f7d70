"""What each party of a queue holds: recipient, sender, notifier. All of it is secret.

A recipient's or notifier's `box_key` is HSalsa20 of the secret shared with the server, which is the
form that opens what the server sends.
"""

import msgspec

from .address import LinkAddress, QueueAddress, ServerAddress
from .commands import LinkData, Mode
from .keys import PrivateKey


class Notifier(msgspec.Struct, frozen=True):
    """Learns that messages came, and nothing else. Given away, it lets others know so too."""

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
        """For the one who is to send."""
        return QueueAddress(self.server, self.sender_id, self.inbox_key.public, self.mode)

    @property
    def link_address(self) -> LinkAddress | None:
        if self.link is None:
            return None
        link_id = b"" if self.mode == "C" else self.link.link_id
        return LinkAddress(self.server, self.link.link_key, link_id)


class SenderQueue(msgspec.Struct, frozen=True):
    """`key` is None as long as the queue is not secured: then anybody who has the address sends."""

    sender_id: bytes
    key: PrivateKey | None = None
