"""The encoding of each fault after `ERR`, by version, and the decoding of other servers' faults."""

from typing import Final

import msgspec

from waystation.queue.errors import (
    Blocked,
    Broker,
    BrokerFault,
    Code,
    Fault,
    RelayFault,
    StoreFault,
)
from waystation.queue.model import Blocking, BlockReason, Notice
from waystation.queue.wire import fields
from waystation.queue.wire.fields import FieldError, Reader

_CODES: Final = {code.value.encode(): code for code in Code}
_FORMS: Final = {code: code.value.encode() for code in Code}
_BROKERS: Final = {broker.value.encode(): broker for broker in Broker}
_DETAILED: Final = (Broker.RESPONSE, Broker.UNEXPECTED)
_NESTING_MAX: Final = 4  # a proxy nests a fault once; more is an attack

_notices = msgspec.json.Decoder(Notice)


def encode_fault(fault: Fault, version: int) -> bytes:
    match fault:
        case Code():
            return _FORMS[fault]
        case Blocked(blocking):
            # Clients before version 12 do not know BLOCKED, those before 18 not the notice.
            return encode_blocking(blocking, version) if version >= 12 else b"AUTH"
        case StoreFault(text):
            return b"STORE " + text.encode()
        case RelayFault(inner):
            return b"PROXY PROTOCOL " + encode_fault(inner, version)
        case BrokerFault(kind, detail):
            return b"PROXY BROKER " + encode_broker(kind, detail)


def encode_broker(kind: Broker, detail: bytes = b"") -> bytes:
    name = kind.value.encode()
    return name + b" " + fields.short(detail) if kind in _DETAILED else name


def encode_blocking(blocking: Blocking, version: int) -> bytes:
    form = b"BLOCKED reason=" + blocking.reason.value.encode()
    if version < 18 or blocking.notice is None:
        return form
    return form + b",notice=" + msgspec.json.encode(blocking.notice)


def decode_fault(data: bytes, nesting: int = 0) -> Fault:
    """Raises `FieldError` for an unknown fault."""
    code = _CODES.get(data)
    if code is not None:
        return code
    word, _, rest = data.partition(b" ")
    match word:
        case b"BLOCKED":
            return Blocked(decode_blocking(rest))
        case b"STORE":
            try:
                return StoreFault(rest.decode())
            except UnicodeDecodeError as error:
                raise FieldError("not UTF-8") from error
        case b"PROXY":
            return _decode_proxy(rest, nesting)
        case _:
            raise FieldError("unknown fault")


def _decode_proxy(data: bytes, nesting: int) -> Fault:
    word, _, rest = data.partition(b" ")
    if word == b"PROTOCOL" and nesting < _NESTING_MAX:
        return RelayFault(decode_fault(rest, nesting + 1))
    if word != b"BROKER":
        raise FieldError("unknown fault of a proxy")
    broker = _BROKERS.get(rest)
    if broker is not None and broker not in _DETAILED:
        return BrokerFault(broker)
    word, _, rest = rest.partition(b" ")
    broker = _BROKERS.get(word)
    if broker not in _DETAILED:
        raise FieldError("unknown fault between proxy and relay")
    reader = Reader(rest)
    detail = reader.short()
    reader.end()
    return BrokerFault(broker, detail)


def decode_blocking(data: bytes) -> Blocking:
    """`reason=spam` or `reason=content`, optionally with `,notice=` and JSON."""
    reason, comma, rest = data.partition(b",")
    try:
        word = BlockReason(reason.removeprefix(b"reason=").decode())
        if not reason.startswith(b"reason="):
            raise FieldError("no reason")
        if not comma:
            return Blocking(word)
        if not rest.startswith(b"notice="):
            raise FieldError("invalid notice")
        return Blocking(word, _notices.decode(rest[7:]))
    except (ValueError, RecursionError) as error:
        raise FieldError("invalid blocking") from error
