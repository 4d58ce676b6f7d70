"""Decodes `ERR` answers and maps them to exceptions.

Every form of the protocol is decoded exactly; anything else is a `BadBytesError`. The class of the
exception says what to do: correct the request, stop, wait, or try again.
"""

from typing import Any

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.errors import BusyError, GoneError, RejectedError, UnavailableError

from .encoding import BadBytesError, Reader, short

_PLAIN = {
    *("BLOCK", "SESSION", "AUTH", "SERVICE", "CRYPTO", "QUOTA"),
    *("NO_MSG", "LARGE_MSG", "EXPIRED", "INTERNAL"),
}
_COMMAND = {"UNKNOWN", "SYNTAX", "PROHIBITED", "NO_AUTH", "HAS_AUTH", "NO_ENTITY"}
_PROXY = {"BASIC_AUTH", "NO_SESSION"}
_BROKER = {"NETWORK", "TIMEOUT", "HOST", "NO_SERVICE"}
_TRANSPORT = {"BLOCK", "VERSION", "LARGE_MSG", "SESSION", "NO_AUTH"}
_HANDSHAKE = {"PARSE", "IDENTITY", "BAD_AUTH", "BAD_SERVICE"}
_REASONS = {"spam", "content"}
_DEPTH_MAX = 4  # of nested PROXY PROTOCOL


class ErrorReply(msgspec.Struct, frozen=True):
    """`code` has all words (`CMD SYNTAX`, `PROXY BROKER TIMEOUT`); `detail` is the text of
    STORE, the reason of BLOCKED, or the answer of a relay."""

    code: str
    detail: str = ""
    notice: dict[str, Any] | None = None  # of BLOCKED, from version 18

    def __str__(self) -> str:
        return f"{self.code} ({self.detail})" if self.detail else self.code

    @property
    def innermost(self) -> "ErrorReply":
        """The error of the relay, if it comes through a proxy."""
        inner = self.code.removeprefix("PROXY PROTOCOL ")
        return self if inner == self.code else ErrorReply(inner, self.detail, self.notice).innermost


def decode_error_reply(data: bytes, depth: int = 0) -> ErrorReply:
    word, _, rest = data.partition(b" ")
    name = _word(word)
    if name in _PLAIN and data == word:
        return ErrorReply(name)
    match name:
        case "CMD" if _word(rest) in _COMMAND:
            return ErrorReply(f"CMD {_word(rest)}")
        case "BLOCKED":
            return _blocked(rest)
        case "STORE":
            return ErrorReply("STORE", rest.decode("utf-8", "replace"))
        case "PROXY":
            return _proxy(rest, depth)
        case _:
            raise BadBytesError("unknown error code")


def encode_error_reply(error_reply: ErrorReply) -> bytes:
    """The inverse of `decode_error_reply`, for tests."""
    code = error_reply.code
    if code.endswith(("BROKER RESPONSE", "BROKER UNEXPECTED")):
        return code.encode() + b" " + short(error_reply.detail.encode("latin-1"))
    if code.endswith("BLOCKED"):
        notice = (
            b""
            if error_reply.notice is None
            else b",notice=" + msgspec.json.encode(error_reply.notice)
        )
        return code.encode() + b" reason=" + error_reply.detail.encode() + notice
    if code.endswith("STORE"):
        return code.encode() + b" " + error_reply.detail.encode()
    return code.encode()


def _word(word: bytes) -> str:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError as exc:
        raise BadBytesError("error code is not ASCII") from exc


def _blocked(rest: bytes) -> ErrorReply:
    info, comma, notice = rest.partition(b",notice=")
    reason = _word(info.removeprefix(b"reason="))
    if not info.startswith(b"reason=") or reason not in _REASONS:
        raise BadBytesError("BLOCKED without a known reason")
    if not comma:
        return ErrorReply("BLOCKED", reason)
    try:
        return ErrorReply("BLOCKED", reason, msgspec.json.decode(notice, type=dict[str, Any]))
    except DECODE_ERRORS as exc:
        raise BadBytesError("BLOCKED with a notice that is not JSON") from exc


def _proxy(rest: bytes, depth: int) -> ErrorReply:
    word, _, more = rest.partition(b" ")
    name = _word(word)
    if name in _PROXY and rest == word:
        return ErrorReply(f"PROXY {name}")
    if name == "PROTOCOL" and depth < _DEPTH_MAX:
        inner = decode_error_reply(more, depth + 1)
        return ErrorReply(f"PROXY PROTOCOL {inner.code}", inner.detail, inner.notice)
    if name == "BROKER":
        return _broker(more)
    raise BadBytesError("unknown error code after PROXY")


def _broker(rest: bytes) -> ErrorReply:
    word, _, more = rest.partition(b" ")
    name = _word(word)
    if name in _BROKER and rest == word:
        return ErrorReply(f"PROXY BROKER {name}")
    if name in {"RESPONSE", "UNEXPECTED"}:
        reader = Reader(more)
        detail = reader.short().decode("latin-1")
        reader.end()
        return ErrorReply(f"PROXY BROKER {name}", detail)
    if name == "TRANSPORT":
        text = _word(more)
        first, _, second = text.partition(" ")
        if text in _TRANSPORT or (first == "HANDSHAKE" and second in _HANDSHAKE):
            return ErrorReply(f"PROXY BROKER TRANSPORT {text}")
    raise BadBytesError("unknown error code after BROKER")


# --- exceptions --------------------------------------------------------------------------------


class RefusedError(RejectedError):
    """The server refused the command and would refuse it again."""

    label = "queue_refused"

    def __init__(self, error_reply: ErrorReply) -> None:
        super().__init__(f"the server answered {error_reply}")
        self.error_reply = error_reply


class AuthError(GoneError):
    """No such queue, a wrong key, or a closed queue: servers do not say which."""

    label = "queue_auth"

    def __init__(self, error_reply: ErrorReply) -> None:
        super().__init__(
            "the server answered AUTH: no such queue, or it does not know this key, or it was"
            " closed (servers do not say which)"
        )
        self.error_reply = error_reply


class BlockedError(GoneError):
    """The operator of the server has blocked the queue."""

    label = "queue_blocked"

    def __init__(self, error_reply: ErrorReply) -> None:
        super().__init__(
            f"the operator has blocked this queue for {error_reply.detail or 'a reason'}"
        )
        self.error_reply = error_reply


class QueueFullError(BusyError):
    """The queue is full and the message was refused; the recipient must read first."""

    label = "queue_full"

    def __init__(self, error_reply: ErrorReply) -> None:
        super().__init__("the queue is full; send again when the recipient has read it empty")
        self.error_reply = error_reply


class NoMessageError(RejectedError):
    """No message with this id waits for an acknowledgement on this connection."""

    label = "queue_no_message"

    def __init__(self, error_reply: ErrorReply) -> None:
        super().__init__("no message waits for this acknowledgement")
        self.error_reply = error_reply


class TemporaryError(UnavailableError):
    """The relay behind a proxy did not answer; the command may be repeated."""

    label = "queue_temporary"

    def __init__(self, error_reply: ErrorReply) -> None:
        super().__init__(f"the server answered {error_reply}: try again later")
        self.error_reply = error_reply


QueueError = (
    RefusedError | AuthError | BlockedError | QueueFullError | NoMessageError | TemporaryError
)


def error_of(error_reply: ErrorReply) -> QueueError:
    inner = error_reply.innermost
    match inner.code:
        case "AUTH":
            return AuthError(error_reply)
        case "BLOCKED":
            return BlockedError(inner)
        case "QUOTA":
            return QueueFullError(error_reply)
        case "NO_MSG":
            return NoMessageError(error_reply)
        case "PROXY BROKER NETWORK" | "PROXY BROKER TIMEOUT":
            return TemporaryError(error_reply)
        case _:
            return RefusedError(error_reply)
