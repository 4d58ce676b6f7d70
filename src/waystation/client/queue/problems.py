"""What an `ERR` says, and the error that a caller gets for it.

Rule 1: every form of the protocol is understood word by word; anything else is bad bytes.
Rule 2: the error a caller sees says what to do next: mend it, stop asking, wait, or try again.
"""

from typing import Any

import msgspec

from waystation.base.errors import BusyError, GoneError, RejectedError, UnavailableError
from waystation.base.unreadable import UNREADABLE

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
_DEPTH_MAX = 4  # PROXY PROTOCOL PROXY PROTOCOL … ends somewhere


class Problem(msgspec.Struct, frozen=True):
    """`code` are the words (`CMD SYNTAX`, `PROXY BROKER TIMEOUT`); `detail` is what only some
    have: the text of STORE, the reason of BLOCKED, what a relay answered."""

    code: str
    detail: str = ""
    notice: dict[str, Any] | None = None  # of BLOCKED, from version 18

    def __str__(self) -> str:
        return f"{self.code} ({self.detail})" if self.detail else self.code

    @property
    def innermost(self) -> "Problem":
        """What the relay said, if it comes through a proxy."""
        inner = self.code.removeprefix("PROXY PROTOCOL ")
        return self if inner == self.code else Problem(inner, self.detail, self.notice).innermost


def decode_problem(data: bytes, depth: int = 0) -> Problem:
    word, _, rest = data.partition(b" ")
    name = _word(word)
    if name in _PLAIN and data == word:
        return Problem(name)
    match name:
        case "CMD" if _word(rest) in _COMMAND:
            return Problem(f"CMD {_word(rest)}")
        case "BLOCKED":
            return _blocked(rest)
        case "STORE":
            return Problem("STORE", rest.decode("utf-8", "replace"))
        case "PROXY":
            return _proxy(rest, depth)
        case _:
            raise BadBytesError("an error of a kind that the protocol does not have")


def encode_problem(problem: Problem) -> bytes:
    """For peers in tests: the inverse of `decode_problem`."""
    code = problem.code
    if code.endswith(("BROKER RESPONSE", "BROKER UNEXPECTED")):
        return code.encode() + b" " + short(problem.detail.encode("latin-1"))
    if code.endswith("BLOCKED"):
        notice = (
            b"" if problem.notice is None else b",notice=" + msgspec.json.encode(problem.notice)
        )
        return code.encode() + b" reason=" + problem.detail.encode() + notice
    if code.endswith("STORE"):
        return code.encode() + b" " + problem.detail.encode()
    return code.encode()


def _word(word: bytes) -> str:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError as exc:
        raise BadBytesError("an error that is not ASCII") from exc


def _blocked(rest: bytes) -> Problem:
    info, comma, notice = rest.partition(b",notice=")
    reason = _word(info.removeprefix(b"reason="))
    if not info.startswith(b"reason=") or reason not in _REASONS:
        raise BadBytesError("BLOCKED without a known reason")
    if not comma:
        return Problem("BLOCKED", reason)
    try:
        return Problem("BLOCKED", reason, msgspec.json.decode(notice, type=dict[str, Any]))
    except UNREADABLE as exc:
        raise BadBytesError("BLOCKED with a notice that is not JSON") from exc


def _proxy(rest: bytes, depth: int) -> Problem:
    word, _, more = rest.partition(b" ")
    name = _word(word)
    if name in _PROXY and rest == word:
        return Problem(f"PROXY {name}")
    if name == "PROTOCOL" and depth < _DEPTH_MAX:
        inner = decode_problem(more, depth + 1)
        return Problem(f"PROXY PROTOCOL {inner.code}", inner.detail, inner.notice)
    if name == "BROKER":
        return _broker(more)
    raise BadBytesError("PROXY with an error that the protocol does not have")


def _broker(rest: bytes) -> Problem:
    word, _, more = rest.partition(b" ")
    name = _word(word)
    if name in _BROKER and rest == word:
        return Problem(f"PROXY BROKER {name}")
    if name in {"RESPONSE", "UNEXPECTED"}:
        reader = Reader(more)
        detail = reader.short().decode("latin-1")
        reader.end()
        return Problem(f"PROXY BROKER {name}", detail)
    if name == "TRANSPORT":
        text = _word(more)
        first, _, second = text.partition(" ")
        if text in _TRANSPORT or (first == "HANDSHAKE" and second in _HANDSHAKE):
            return Problem(f"PROXY BROKER TRANSPORT {text}")
    raise BadBytesError("BROKER with an error that the protocol does not have")


# what a caller gets


class RefusedError(RejectedError):
    """The server refused the command; asked again as it is, it is refused again."""

    label = "queue_refused"

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"the server answered {problem}")
        self.problem = problem


class AuthError(GoneError):
    """No such queue, or not with this key, or it takes no messages: servers do not tell which."""

    label = "queue_auth"

    def __init__(self, problem: Problem) -> None:
        super().__init__(
            "the server answered AUTH: no such queue, or it does not know this key, or it was"
            " closed (servers do not say which)"
        )
        self.problem = problem


class BlockedError(GoneError):
    """The operator of the server has blocked the queue."""

    label = "queue_blocked"

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"the operator has blocked this queue for {problem.detail or 'a reason'}")
        self.problem = problem


class QueueFullError(BusyError):
    """The recipient has to read first; the message was not taken."""

    label = "queue_full"

    def __init__(self, problem: Problem) -> None:
        super().__init__("the queue is full; it takes messages again once it has been read empty")
        self.problem = problem


class NoMessageError(RejectedError):
    """There is nothing to acknowledge under this id on this connection."""

    label = "queue_no_message"

    def __init__(self, problem: Problem) -> None:
        super().__init__("nothing was waiting for this acknowledgement")
        self.problem = problem


class TemporaryError(UnavailableError):
    """The relay behind a proxy did not answer; the command may be repeated."""

    label = "queue_temporary"

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"the server answered {problem}: try again later")
        self.problem = problem


QueueError = (
    RefusedError | AuthError | BlockedError | QueueFullError | NoMessageError | TemporaryError
)


def error_of(problem: Problem) -> QueueError:
    inner = problem.innermost
    match inner.code:
        case "AUTH":
            return AuthError(problem)
        case "BLOCKED":
            return BlockedError(inner)
        case "QUOTA":
            return QueueFullError(problem)
        case "NO_MSG":
            return NoMessageError(problem)
        case "PROXY BROKER NETWORK" | "PROXY BROKER TIMEOUT":
            return TemporaryError(problem)
        case _:
            return RefusedError(problem)
