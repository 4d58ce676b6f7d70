"""Ids as they may be written: keyed hashes, and the tracking id of a message."""

import hashlib
import ipaddress
from binascii import hexlify
from typing import Any

from waystation.base.ids import PeriodTagger, Tagger

MEMO_MAX = 8_192
DAY_MS = 86_400_000
_SECOND = b'"mid":"%012x'  # how `mid` begins in a line
_NAMES = b'%b%b",%b'


def mid(key: Tagger, version: str, time_s: int) -> str:
    """A message's tracking id: 48 bits of its time, 80 bits of a keyed hash of its version.

    Each node computes it from what relay and store carry anyway, so it never travels. It sorts
    by time like a UUIDv7 and is none.
    """
    return f"{time_s * 1000:012x}{key.digest(version.encode())[:10].hex()}"


class _Memo(dict[bytes, int]):
    """Hashes of the ids that were met lately, for one UTC day: the key changes with the quarter."""

    __slots__ = ("_tagger", "_until_ms", "from_ms")

    def __init__(self, tagger: PeriodTagger) -> None:
        super().__init__()
        self._tagger = tagger
        self.from_ms = self._until_ms = 0

    def hash64(self, raw: bytes, time_ms: int) -> int:
        if not self.from_ms <= time_ms < self._until_ms or len(self) > MEMO_MAX:
            self.clear()
            self.from_ms = time_ms - time_ms % DAY_MS
            self._until_ms = self.from_ms + DAY_MS
        known = self.get(raw)
        if known is None:
            known = self[raw] = self._tagger.at(time_ms).hash64(raw)
        return known


class EventHashes:
    """The keyed hashes of one cluster: a key for each purpose and calendar quarter.

    `time_ms` is the event's time; of `mid`, the notification's, so that every node agrees. A
    message has half a dozen events on a node, so what was met lately is remembered.
    """

    def __init__(self, master: bytes) -> None:
        self._uaid = PeriodTagger(master, "uaid")
        self._channel = PeriodTagger(master, "channel")
        self._message = PeriodTagger(master, "message")
        self._address = PeriodTagger(master, "address")
        self._claim = PeriodTagger(master, "claim")
        self._presence = PeriodTagger(master, "presence")
        self._queue = PeriodTagger(master, "queue")
        self._uahs = _Memo(self._uaid)
        self._parties = _Memo(self._presence)
        self._chhs = _Memo(self._channel)
        self._mids: dict[str, str] = {}
        # As `_Memo`, for one UTC day. Who writes a line for every message looks here by itself.
        self.known_names: dict[str, bytes] = {}
        self.known_from_us = self.known_until_us = 0
        self._known_tagger = self._message.at(0)  # of messages
        # The second that messages are of now, which is how their names begin; of the same day.
        self._second_ms = self._second_until_ms = 0
        self._second = b""
        self._uah_texts: dict[bytes, bytes] = {}  # for the same day, as they stand in a line
        self._chh_texts: dict[bytes, bytes] = {}
        self.uah = self._uahs.hash64  # of a uaid
        self.chh = self._chhs.hash64  # of a channel id

    def qh(self, recipient_id: bytes, time_ms: int) -> int:
        return self._queue.at(time_ms).hash64(recipient_id)

    def presence(self, raw: bytes, time_ms: int) -> int:
        """For `party`, `cli` and `sess`."""
        return self._parties.hash64(raw, time_ms)

    def claim(self, text: str, time_ms: int) -> int:
        """For a token's `aud` and `sub`."""
        return self._claim.at(time_ms).hash64(text.encode())

    def iph(self, address: str, time_ms: int) -> int:
        """Of the /24 or /48 an address lies in; of the text itself when it is no address."""
        return self._address.at(time_ms).hash64(_prefix(address))

    def mid(self, version: str, time_s: int) -> str:
        known = self._mids.get(version)
        if known is None:
            if len(self._mids) > MEMO_MAX:
                self._mids.clear()
            known = self._mids[version] = mid(self._message.at(time_s * 1000), version, time_s)
        return known

    def names(self, uaid: bytes, version: str, time_ms: int, event_us: int) -> bytes:
        """`mid` and `uah` as they stand in a line: all that tells most events of a message apart.
        A message has one user agent, so its version names both. `time_ms` is the message's."""
        known = self.known_names.get(version)
        if known is not None and self.known_from_us <= event_us < self.known_until_us:
            return known
        return self._new_names(uaid, version, time_ms // 1000 * 1000, event_us)

    def last_names(self, uaid: bytes, version: str, time_ms: int, event_us: int) -> bytes:
        """As `names`, for the last event that a message has: what was remembered for it makes
        room, so that there is no more of it than fits into the processor's cache."""
        known = self.known_names.pop(version, None)
        if known is not None and self.known_from_us <= event_us < self.known_until_us:
            return known
        names = self._new_names(uaid, version, time_ms // 1000 * 1000, event_us)
        del self.known_names[version]
        return names

    def first_names(
        self, uaid: bytes, channel_id: bytes, version: str, time_ms: int
    ) -> tuple[bytes, bytes]:
        """As `names`, for the first event that a message has, at the message's own time; and `chh`
        as it stands in a line."""
        names = self.known_names
        if not self._second_ms <= time_ms < self._second_until_ms or len(names) > MEMO_MAX:
            self._begin_second(time_ms)
        uah = self._uah_texts.get(uaid)
        if uah is None:
            uah = self._new_text(self._uah_texts, b'"uah":%d', uaid, self._uaid, time_ms)
        chh = self._chh_texts.get(channel_id)
        if chh is None:
            chh = self._new_text(self._chh_texts, b'"chh":%d', channel_id, self._channel, time_ms)
        # As the tagger's `digest`, without the call; the message is of this day, as its event is.
        tagger = self._known_tagger
        inner = tagger.inner.copy()
        inner.update(version.encode())
        outer = tagger.outer.copy()
        outer.update(inner.digest())
        made = names[version] = _NAMES % (self._second, hexlify(outer.digest()[:10]), uah)
        return made, chh

    def _new_names(self, uaid: bytes, version: str, time_ms: int, event_us: int) -> bytes:
        names = self.known_names
        if not self.known_from_us <= event_us < self.known_until_us or len(names) > MEMO_MAX:
            self._begin_day(event_us)
        uah = self._uah_texts.get(uaid)
        if uah is None:
            uah = self._new_text(self._uah_texts, b'"uah":%d', uaid, self._uaid, event_us // 1000)
        digest = self._message.at(time_ms).digest(version.encode())
        made = names[version] = _NAMES % (_SECOND % time_ms, hexlify(digest[:10]), uah)
        return made

    def _begin_second(self, time_ms: int) -> None:
        event_us = time_ms * 1000
        if (
            not self.known_from_us <= event_us < self.known_until_us
            or len(self.known_names) > MEMO_MAX
        ):
            self._begin_day(event_us)
        self._second_ms = time_ms - time_ms % 1000
        self._second_until_ms = self._second_ms + 1000
        self._second = _SECOND % self._second_ms

    def _begin_day(self, event_us: int) -> None:
        self.known_names.clear()
        self._uah_texts.clear()
        self._chh_texts.clear()
        self.known_from_us = event_us - event_us % (DAY_MS * 1000)
        self.known_until_us = self.known_from_us + DAY_MS * 1000
        self._known_tagger = self._message.at(event_us // 1000)
        self._second_until_ms = 0  # it was of another day

    @staticmethod
    def _new_text(
        texts: dict[bytes, bytes], form: bytes, raw: bytes, tagger: PeriodTagger, time_ms: int
    ) -> bytes:
        if len(texts) >= MEMO_MAX:
            texts.clear()
        text = texts[raw] = form % tagger.at(time_ms).hash64(raw)
        return text

    @staticmethod
    def app(public_key: bytes) -> int:
        """Of a VAPID public key as an uncompressed point. Not keyed: the key is public."""
        return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "big", signed=True)


def _prefix(address: str) -> bytes:
    try:
        parsed: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.encode()
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed[:3] if parsed.version == 4 else parsed.packed[:6]
