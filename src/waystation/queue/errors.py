"""The errors of the queue service: the faults that `ERR` carries.

A fault is a value rather than an exception, because a relay's fault reaches the client inside
another one, and both sides compare them. `RefusedError` carries a fault out of a decoder or a step;
`wire/error_forms.py` encodes each fault.

Choose a fault by the reaction of clients. A temporary error is `PROXY BROKER TIMEOUT` for senders
and a closed connection for recipients. After `INTERNAL`, `AUTH` and `STORE` clients drop the
message or give the subscription up.
"""

import enum

import msgspec

from waystation.base.errors import RejectedError, UnavailableError
from waystation.queue.model import Blocking


class Code(enum.Enum):
    """Faults without parameters, by their text on the wire."""

    BLOCK = "BLOCK"  # not a block, a batch or a transmission
    SESSION = "SESSION"  # another session's id (version 6 only)
    CMD_UNKNOWN = "CMD UNKNOWN"
    CMD_SYNTAX = "CMD SYNTAX"
    CMD_PROHIBITED = "CMD PROHIBITED"
    CMD_NO_AUTH = "CMD NO_AUTH"
    CMD_HAS_AUTH = "CMD HAS_AUTH"
    CMD_NO_ENTITY = "CMD NO_ENTITY"
    PROXY_BASIC_AUTH = "PROXY BASIC_AUTH"
    PROXY_NO_SESSION = "PROXY NO_SESSION"
    AUTH = "AUTH"  # no such queue, wrong key, wrong kind of key, suspended: indistinguishable
    SERVICE = "SERVICE"
    CRYPTO = "CRYPTO"
    QUOTA = "QUOTA"
    NO_MSG = "NO_MSG"
    LARGE_MSG = "LARGE_MSG"
    EXPIRED = "EXPIRED"
    INTERNAL = "INTERNAL"


class Blocked(msgspec.Struct, frozen=True):
    """The operator blocked the queue."""

    blocking: Blocking


class StoreFault(msgspec.Struct, frozen=True, gc=False):
    """A fault of other servers; ours never sends it, because clients drop the message."""

    text: str


class Broker(enum.Enum):
    """An error between proxy and relay; `RESPONSE` and `UNEXPECTED` have a detail."""

    RESPONSE = "RESPONSE"
    UNEXPECTED = "UNEXPECTED"
    NETWORK = "NETWORK"
    TIMEOUT = "TIMEOUT"
    HOST = "HOST"
    NO_SERVICE = "NO_SERVICE"
    TRANSPORT_BLOCK = "TRANSPORT BLOCK"
    TRANSPORT_VERSION = "TRANSPORT VERSION"
    TRANSPORT_LARGE_MSG = "TRANSPORT LARGE_MSG"
    TRANSPORT_SESSION = "TRANSPORT SESSION"
    TRANSPORT_NO_AUTH = "TRANSPORT NO_AUTH"
    HANDSHAKE_PARSE = "TRANSPORT HANDSHAKE PARSE"
    HANDSHAKE_IDENTITY = "TRANSPORT HANDSHAKE IDENTITY"
    HANDSHAKE_BAD_AUTH = "TRANSPORT HANDSHAKE BAD_AUTH"
    HANDSHAKE_BAD_SERVICE = "TRANSPORT HANDSHAKE BAD_SERVICE"


class BrokerFault(msgspec.Struct, frozen=True, gc=False):
    """The proxy could not reach the relay, or did not understand it."""

    kind: Broker
    detail: bytes = b""


class RelayFault(msgspec.Struct, frozen=True):
    """A fault that the relay sent to the proxy."""

    fault: "Fault"


Fault = Code | Blocked | StoreFault | BrokerFault | RelayFault

TRY_LATER = BrokerFault(Broker.TIMEOUT)  # the only fault after which senders soon try again


class RefusedError(RejectedError):
    """A command that is answered with `ERR` and this fault.

    Correct the command: the same one fails again.
    """

    label = "refused"

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class BadHelloError(RejectedError):
    """An invalid first block, or a hello for another server; the connection is closed.

    Compare the fingerprint in the address with the server's, and the versions of both.
    """

    label = "bad_hello"

    def __init__(self, kind: Broker) -> None:
        super().__init__(kind.value)
        self.kind = kind


class WeakKeyError(RejectedError):
    """A public key of small order: every agreement with it gives the same secret.

    Make a new key pair.
    """

    label = "weak_key"


class QueueStoreUnavailableError(UnavailableError):
    """The store did not answer, or has too many waiting operations; nothing was accepted.

    Try again: senders get `PROXY BROKER TIMEOUT`, recipients are disconnected.
    """

    label = "queue_store_unavailable"
