"""The control port's protocol: lines of an operator and their answers (§5.11).

Rule 1: only `auth` and `help` work before `auth`; a role is taken once for a connection and stays.
Rule 2: queues are named by the id in a complaint: the sender's or the link's, base64url.
Rule 3: an invalid line is answered with the expected form, and changes nothing.
Rule 4: a web page can make a browser send lines to this port, after a request line and headers. A
        line of HTTP, or an unprintable line (a TLS hello), closes the connection; nothing after it
        is read.

A core without I/O: it calls `Operations`.
"""

import base64
import binascii
import enum
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.queue.model import ID_BYTES, Blocking, BlockReason, Notice

GREETING: Final = "Waystation queue server, control port; `help` lists the commands"
UNAUTHORISED: Final = "AUTH"
NOT_HTTP: Final = "error: this is the control port of a queue server, it does not speak HTTP or TLS"
_HELP: Final = (
    "auth PASSWORD                       take the role that the password gives",
    "stats                               counters since they were last logged",
    "stats-rts                           numbers of the process",
    "clients, sockets, threads, socket-threads",
    "server-info                         version and address",
    "status ID                           whether a queue is active, off or blocked",
    'block ID reason=spam|content[,notice={"ttl":SECONDS}]',
    "unblock ID",
    "delete ID                           admin only",
    "save                                write what is kept in memory; admin only",
    "quit",
)
_HTTP = re.compile(r"\S+ \S+ HTTP/\d.*|[A-Za-z0-9-]+:( .*)?")  # a request line or a header
_BLOCK = re.compile(r"reason=(spam|content)(?:,notice=(\{.*\}))?")


class Role(enum.Enum):
    NONE = "none"
    USER = "user"
    ADMIN = "admin"


class Outcome(enum.Enum):
    """The result of an operation on a queue; the value is the answer."""

    DONE = "ok"
    UNKNOWN = "error: no queue has this id"
    NOT_NOW = "error: the store does not answer"
    QUOTA = "error: the limit of queues blocked in a day is reached"
    NOT_BLOCKED = "error: the queue is not blocked"


class ModerationCommands(Protocol):
    """Moderation of one queue."""

    async def status(self, entity_id: bytes) -> str: ...

    async def block(self, entity_id: bytes, blocking: Blocking) -> Outcome: ...

    async def unblock(self, entity_id: bytes) -> Outcome: ...

    async def delete(self, entity_id: bytes) -> Outcome: ...


class Operations(ModerationCommands, Protocol):
    """The operations that the control port offers."""

    def stats(self) -> Sequence[str]: ...

    def process(self) -> Mapping[str, object]: ...

    def connections(self) -> Mapping[str, object]: ...

    def about(self) -> Sequence[str]: ...

    async def save(self) -> Outcome: ...


class ControlConversation:
    """One connection to the control port."""

    def __init__(self, operations: Operations, *, admin_password: str, user_password: str) -> None:
        self._operations = operations
        self._passwords = ((Role.ADMIN, admin_password), (Role.USER, user_password))
        self.role = Role.NONE
        self.over = False

    async def line(self, text: str) -> list[str]:
        """Returns the answer to one line."""
        text = text.strip()
        if self.over:
            return []
        if not text.isprintable() or _HTTP.fullmatch(text):
            self.over = True
            return [NOT_HTTP]
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        match word:
            case "":
                return []
            case "quit":
                self.over = True
                return ["bye"]
            case "help":
                return list(_HELP)
            case "auth":
                return [self._auth(rest)]
            case _ if self.role is Role.NONE:
                return [UNAUTHORISED]
            case "status" | "block" | "unblock" | "delete":
                return [await self._of_queue(word, rest)]
            case _:
                return await self._of_server(word)

    def _auth(self, password: str) -> str:
        if self.role is not Role.NONE:
            return f"Current role is {self.role.value}"
        for role, expected in self._passwords:
            # Both are compared in any case, so the duration reveals nothing.
            if expected and hmac.compare_digest(password.encode(), expected.encode()):
                self.role = role
                return f"Current role is {role.value}"
        return UNAUTHORISED

    async def _of_server(self, word: str) -> list[str]:
        operations = self._operations
        match word:
            case "stats":
                return list(operations.stats())
            case "stats-rts" | "threads" | "socket-threads":
                return _lines(operations.process())
            case "clients":
                numbers = operations.connections()
                return [",".join(numbers), ",".join(str(value) for value in numbers.values())]
            case "sockets":
                return _lines(operations.connections())
            case "server-info":
                return list(operations.about())
            case "save" if self.role is Role.ADMIN:
                return [(await operations.save()).value]
            case "save":
                return [UNAUTHORISED]
            case _:
                return [f"error: unknown command {word!r:.40}; try help"]

    async def _of_queue(self, word: str, rest: str) -> str:
        named, _, more = rest.partition(" ")
        entity_id = decode_id(named)
        if entity_id is None:
            return f"error: {word} ID: the id of a sender or a link, 32 letters of base64url"
        if word == "delete" and not more and self.role is not Role.ADMIN:
            return UNAUTHORISED
        return await moderated(self._operations, entity_id, f"{word} {more}".rstrip())


async def moderated(moderation: ModerationCommands, entity_id: bytes, order: str) -> str:
    """Executes `status`, `block reason=…`, `unblock` or `delete`; returns the answer."""
    word, _, more = order.partition(" ")
    if word == "block":
        blocking = parse_blocking(more)
        if blocking is None:
            return 'error: block ID reason=spam|content[,notice={"ttl":SECONDS}]'
        return (await moderation.block(entity_id, blocking)).value
    if more:
        return f"error: {word} takes one id"
    match word:
        case "status":
            return await moderation.status(entity_id)
        case "unblock":
            return (await moderation.unblock(entity_id)).value
        case "delete":
            return (await moderation.delete(entity_id)).value
        case _:
            return f"error: unknown order {word!r:.40}"


def decode_id(text: str) -> bytes | None:
    """Base64url with or without padding; None if it is no id."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == ID_BYTES else None


def parse_blocking(text: str) -> Blocking | None:
    found = _BLOCK.fullmatch(text.strip())
    if found is None:
        return None
    notice = None
    if found[2] is not None:
        try:
            notice = msgspec.json.decode(found[2], type=Notice)
        except DECODE_ERRORS:
            return None
    return Blocking(BlockReason(found[1]), notice)


def _lines(numbers: Mapping[str, object]) -> list[str]:
    return [f"{name}: {value}" for name, value in numbers.items()]
