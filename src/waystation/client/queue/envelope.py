"""Encrypts messages between sender and recipient, so that the server cannot read them.

SMP does not define the content of messages. This is the envelope of other clients of the protocol:
a version, the sender's X25519 key, a nonce and a padded box whose key follows from the sender's key
and the one in the queue's address.

It hides the text and its length from the server. There is no forward secrecy: the recipient's key
decrypts all messages that were ever sent to it.
"""

import secrets

from .boxes import NONCE_BYTES, box_key, seal_padded, unseal_padded
from .encoding import BadBytesError, Reader, maybe, short, u16
from .keys import PrivateKey, PublicKey, dh_key

ENVELOPE_VERSION = 4
ENVELOPE_VERSION_MIN = 1
PADDED_BYTES = 15_904
TEXT_BYTES_MAX = PADDED_BYTES - 3  # its length, and a flag byte: no sender key inside
_NO_KEY = b"_"


class EnvelopeError(BadBytesError):
    """The message is not encrypted for this queue; it may be plain."""

    label = "queue_envelope"


def seal_message(text: bytes, recipient: PublicKey, sender: PrivateKey) -> bytes:
    if len(text) > TEXT_BYTES_MAX:
        raise EnvelopeError(f"a sealed message holds {TEXT_BYTES_MAX} bytes, not {len(text)}")
    nonce = secrets.token_bytes(NONCE_BYTES)
    header = u16(ENVELOPE_VERSION) + maybe(short(sender.public.der))
    derived = box_key(recipient.raw, sender.seed)
    return header + nonce + seal_padded(derived, nonce, _NO_KEY + text, PADDED_BYTES)


def open_message(body: bytes, recipient: PrivateKey) -> bytes:
    try:
        reader = Reader(body)
        version = reader.u16()
        if not ENVELOPE_VERSION_MIN <= version <= ENVELOPE_VERSION or not reader.maybe():
            raise EnvelopeError("an envelope that needs an earlier one")
        sender = dh_key(reader.short())
        nonce = reader.take(NONCE_BYTES)
        text = unseal_padded(box_key(sender, recipient.seed), nonce, reader.tail())
    except EnvelopeError:
        raise
    except BadBytesError as exc:
        raise EnvelopeError("not encrypted for this queue") from exc
    if not text.startswith(_NO_KEY):
        raise EnvelopeError("unknown kind of envelope")
    return text[1:]
