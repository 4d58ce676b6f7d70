"""Keyed hashes of ids for events, and the tracking id of a message."""

import hashlib
import ipaddress
from typing import Any

from waystation.base.ids import PeriodTagger, Tagger

MEMO_MAX = 8_192
DAY_MS = 86_400_000


def mid(key: Tagger, version: str, time_s: int) -> str:
    """A message's tracking id: 48 bits of its time, 80 bits of a keyed hash of its version.

    Each node computes it from fields of relay and store, so it is never transmitted. It sorts by
    time like a UUIDv7 but is not one.
    """
    return f"{time_s * 1000:012x}{key.digest(version.encode())[:10].hex()}"


class _Memo(dict[bytes, int]):
    """Cache of recent hashes for one UTC day, because the key changes with the quarter."""

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

    `time_ms` is the event's time; for `mid` the notification's, so that all nodes agree. Recent
    hashes are cached, because a message has half a dozen events on a node.
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
        self._mids: dict[tuple[str, int], str] = {}
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
        """Hash of the /24 or /48 of an address, or of the text itself if it is not an address."""
        return self._address.at(time_ms).hash64(_prefix(address))

    def mid(self, version: str, time_s: int) -> str:
        # Keyed by both: a SimplePush version may be sent again later.
        known = self._mids.get((version, time_s))
        if known is None:
            if len(self._mids) > MEMO_MAX:
                self._mids.clear()
            key = self._message.at(time_s * 1000)
            known = self._mids[version, time_s] = mid(key, version, time_s)
        return known

    @staticmethod
    def app(public_key: bytes) -> int:
        """Hash of a VAPID public key (uncompressed point). Not keyed: the key is public."""
        return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "big", signed=True)


def _prefix(address: str) -> bytes:
    try:
        parsed: Any = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.encode()
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed[:3] if parsed.version == 4 else parsed.packed[:6]
