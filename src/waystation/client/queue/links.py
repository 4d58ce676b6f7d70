"""Short links: an address and a text, encrypted with a key that only the link contains.

The server sees two ciphertexts of constant size. Only clients read their content:

    fixed = root key, address        never changes; the key of the link is its hash
    user  = signature, text          may change; signed with the root key

Rule 1: a reader of the link detects changes that the server made to either part.
Rule 2: ids chosen by a client follow from a secret: the sender's from the correlation id of NEW, a
        contact's from the key of its link.
"""

import hashlib
import secrets

import msgspec

from .address import LinkAddress, QueueAddress, ServerAddress
from .answers import Ids, Link
from .boxes import NONCE_BYTES, NotOpenedError, hkdf, hsalsa20, seal_padded, unseal_padded
from .commands import Command, GetLink, LinkData, Mode, NewLink, SecureByLink
from .encoding import BadBytesError, Reader, large, short
from .keys import PrivateKey, PublicKey
from .queue_secrets import OwnLink, RecipientQueue, SenderQueue

ID_BYTES = 24
FIXED_TEXT_BYTES = 2008
USER_TEXT_BYTES = 13_784
USER_TEXT_BYTES_MAX = USER_TEXT_BYTES - 2 - 65  # its length and the signature


class LinkContent(msgspec.Struct, frozen=True):
    """The contents of a link."""

    address: QueueAddress
    text: str


def sender_id_of(corr_id: bytes) -> bytes:
    return hashlib.sha3_384(corr_id).digest()[:ID_BYTES]


def contact_link_ids(link_key: bytes) -> tuple[bytes, bytes]:
    """The id of a contact's link, and the key that encrypts its data."""
    out = hkdf(b"", link_key, b"SimpleXContactLink", ID_BYTES + 32)
    return out[:ID_BYTES], out[ID_BYTES:]


def data_key(link_key: bytes, *, contact: bool) -> bytes:
    if contact:
        return contact_link_ids(link_key)[1]
    return hkdf(b"", link_key, b"SimpleXInvLink", 32)


def fixed_part(address: QueueAddress, root: PrivateKey) -> tuple[bytes, bytes]:
    """The plain text of the part that never changes, and the key of the link."""
    fixed = short(root.public.der) + large(str(address).encode())
    return fixed, hashlib.sha3_256(fixed).digest()


def seal_link(fixed: bytes, text: str, root: PrivateKey, key: bytes) -> LinkData:
    user = text.encode()
    if len(user) > USER_TEXT_BYTES_MAX:
        raise BadBytesError(f"the text of a link holds {USER_TEXT_BYTES_MAX} bytes")
    signed = short(root.sign(user)) + user
    return LinkData(_seal(key, fixed, FIXED_TEXT_BYTES), _seal(key, signed, USER_TEXT_BYTES))


def reseal_user(data: LinkData, text: str, root: PrivateKey, key: bytes) -> LinkData:
    """Another text; the fixed part must stay the same, or the server refuses it."""
    return LinkData(data.fixed, seal_link(b"", text, root, key).user)


class NewLinkPlan(msgspec.Struct, frozen=True):
    """A link that is created together with its queue."""

    corr_id: bytes
    mode: Mode
    request: NewLink
    link_key: bytes
    root: PrivateKey

    @classmethod
    def make(
        cls, server: ServerAddress, inbox_key: PrivateKey, mode: Mode, text: str | None
    ) -> "NewLinkPlan | None":
        if text is None:
            return None
        corr_id = secrets.token_bytes(ID_BYTES)
        address = QueueAddress(server, sender_id_of(corr_id), inbox_key.public, mode)
        link_id, link_key, root, data = _make(address, text)
        if mode == "M":
            link_id = b""  # drawn by the server
        request = NewLink(address.sender_id, data, link_id)
        return cls(corr_id, mode, request, link_key, root)

    def check(self, ids: Ids) -> None:
        """Raises if the server used other ids: the address in the link would be wrong."""
        wrong_id = self.request.link_id and ids.link_id != self.request.link_id
        if ids.sender_id != self.request.sender_id or not ids.link_id or wrong_id:
            raise BadBytesError("the server made a queue with other ids than requested")

    def kept(self, ids: Ids) -> OwnLink:
        assert ids.link_id
        return OwnLink(ids.link_id, self.link_key, self.root, self.request.data)


def renewed(queue: RecipientQueue, text: str) -> OwnLink:
    """For LSET: another text for the link that a queue has, or a first link."""
    link = queue.link
    if link is None:
        return OwnLink(*_make(queue.address, text))
    key = data_key(link.link_key, contact=queue.mode == "C")
    return OwnLink(
        link.link_id, link.link_key, link.root, reseal_user(link.data, text, link.root, key)
    )


def _make(address: QueueAddress, text: str) -> tuple[bytes, bytes, PrivateKey, LinkData]:
    root = PrivateKey.generate()
    fixed, link_key = fixed_part(address, root)
    contact = address.mode == "C"
    link_id = contact_link_ids(link_key)[0] if contact else secrets.token_bytes(ID_BYTES)
    data = seal_link(fixed, text, root, data_key(link_key, contact=contact))
    return link_id, link_key, root, data


def open_link(data: LinkData, link_key: bytes, *, contact: bool) -> LinkContent:
    key = data_key(link_key, contact=contact)
    fixed = _unseal(key, data.fixed)
    if hashlib.sha3_256(fixed).digest() != link_key:
        raise NotOpenedError("the server's data does not match the link")
    reader = Reader(fixed)
    root = PublicKey.from_der(reader.short())
    address = QueueAddress.parse(reader.large().decode("utf-8", "replace"))
    user = Reader(_unseal(key, data.user))
    signature, text = user.short(), user.tail()
    if not root.verifies(signature, text):
        raise NotOpenedError("the text of this link is not signed by its owner")
    return LinkContent(address, text.decode("utf-8", "replace"))


def _seal(key: bytes, text: bytes, size: int) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + seal_padded(hsalsa20(key), nonce, text, size)


def _unseal(key: bytes, sealed: bytes) -> bytes:
    return unseal_padded(hsalsa20(key), sealed[:NONCE_BYTES], sealed[NONCE_BYTES:])


def link_request(
    link: LinkAddress, key: PrivateKey | None
) -> tuple[Command, bytes, PrivateKey | None]:
    """The command that opens a link, the link's id, and the signing key."""
    if link.contact:
        return GetLink(), contact_link_ids(link.link_key)[0], None
    signer = key or PrivateKey.generate()
    return SecureByLink(signer.public), link.link_id, signer


def link_outcome(
    answer: Link, link: LinkAddress, signer: PrivateKey | None
) -> tuple[LinkContent, SenderQueue]:
    content = open_link(answer.data, link.link_key, contact=link.contact)
    if content.address.sender_id != answer.sender_id:
        raise BadBytesError("the server's queue does not match the link")
    return content, SenderQueue(answer.sender_id, signer)
