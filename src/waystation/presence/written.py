"""The lines of the three events that parties have all the time, written by hand.

Somebody came, somebody left, something was announced: each is one step of formatting instead of two
structs and three encodings, a third of the time. The structs in `telemetry.events` stay what says
how a line must look; a test holds every line against them.
"""

from typing import Final

import msgspec

from waystation.telemetry import events

from .model import Entry, MessageType, PartyId, SessionKey, Status
from .names import Names
from .store import Joined

_UNSIGNED: Final = 1 << 64
_KINDS: Final = {kind: kind.name.lower().encode() for kind in MessageType}
_TRUTH: Final = (b"false", b"true")


class Departure(msgspec.Struct, frozen=True, gc=False):
    """A session that ended, as its event and its line need to know it."""

    key: SessionKey
    code: Status
    seq: int
    lived_s: float
    resumes: int
    said: int
    in_flight: int
    acked: int
    retried: int
    dropped: int
    superseded: int

    @property
    def out(self) -> int:
        """Rule 6 of `delivery`."""
        return self.acked + self.dropped + self.superseded + self.in_flight


class WrittenEvents:
    def __init__(self, names: Names) -> None:
        self._names = names
        self.started = events.Written(events.PartySessionStarted.k, self._started)
        self.left = events.Written(events.PartySessionLeft.k, self._left)
        self.sent = events.Written(events.PartyMessageSent.k, self._sent)

    def _started(
        self, start: bytes, ts_us: int, seq: int, what: tuple[SessionKey, Joined, float, bool, int]
    ) -> bytes:
        """`events.PartySessionStarted`, as it is written."""
        key, joined, ttl_s, auth, ms = what
        return (
            b'%b%d,"seq":%d,"k":200,"party":%d,"cli":%d,"sess":%d,"n":%d,"attrs":"{'
            rb"\"seq\":%d,\"epoch\":%d,\"device_sessions\":%d,\"ttl_ms\":%d,\"auth\":%b"
            b'}"}\n'
        ) % (
            start,
            ts_us,
            seq,
            *self._names.session(key, ms),
            joined.party_size,
            joined.seq,
            joined.epoch,
            joined.device_sessions,
            round(ttl_s * 1000),
            _TRUTH[auth],
        )

    def _left(self, start: bytes, ts_us: int, seq: int, what: tuple[Departure, int]) -> bytes:
        """`events.PartySessionLeft`, as it is written."""
        one, ms = what
        return (
            b'%b%d,"seq":%d,"k":201,"party":%d,"cli":%d,"sess":%d,"code":%d,"dur":%d,"attrs":"{'
            rb"\"seq\":%d,\"out\":%d,\"acked\":%d,\"retried\":%d,\"dropped\":%d,"
            rb"\"superseded\":%d,\"resumes\":%d"
            b'}"}\n'
        ) % (
            start,
            ts_us,
            seq,
            *self._names.last_of(one.key, ms),
            one.code,
            round(one.lived_s * 1e6),
            one.seq,
            one.out,
            one.acked,
            one.retried,
            one.dropped,
            one.superseded,
            one.resumes,
        )

    def _sent(
        self, start: bytes, ts_us: int, seq: int, what: tuple[PartyId, Entry, int, int]
    ) -> bytes:
        """`events.PartyMessageSent`, as it is written."""
        party_id, entry, recipients, size = what
        return (
            b'%b%d,"seq":%d,"k":205,"party":%d,"msg":%d,"n":%d,"size":%d,"attrs":"{'
            rb"\"type\":\"%b\",\"seq\":%d"
            b'}"}\n'
        ) % (
            start,
            ts_us,
            seq,
            self._names.party(party_id, entry.at_ms),
            entry.message_id - _UNSIGNED,  # of every party message the first bit is set
            recipients,
            size,
            _KINDS[entry.kind],
            entry.seq,
        )
