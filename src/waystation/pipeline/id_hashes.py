"""Computes the hashes of client ids in the lake, for `forget`.

An id may name a user agent, a channel, a queue, a party, a client or a session: it is hashed as
each of them. A hash key is used for one calendar quarter, so an id has one hash for each quarter
that the retention of events reaches into.
"""

from collections.abc import Iterable

from waystation.base.ids import parse_uuid
from waystation.telemetry.hashes import DAY_MS, EventHashes

COLUMNS = ("uah", "chh", "qh", "party", "cli", "sess")


def hashes_of(
    ids: Iterable[str], master: bytes, now_ms: int, keep_days: int
) -> dict[str, set[int]]:
    """Column -> every value that these ids can have in it."""
    hashes = EventHashes(master)
    found: dict[str, set[int]] = {name: set() for name in COLUMNS}
    moments = [now_ms - days * DAY_MS for days in range(0, keep_days + 31, 30)]
    for text in ids:
        raw = parse_uuid(text) or text.encode()
        for at_ms in moments:
            found["uah"].add(hashes.uah(raw, at_ms))
            found["chh"].add(hashes.chh(raw, at_ms))
            found["qh"].add(hashes.qh(raw, at_ms))
            for name in ("party", "cli", "sess"):
                found[name].add(hashes.presence(text.encode(), at_ms))
    return found
