"""EventIds of parties and sessions in events: the same as the hashes say, day after day."""

import struct

from waystation.presence.event_ids import IDS_MAX, EventIds
from waystation.presence.model import PartyId, session_key
from waystation.telemetry.hashes import DAY_MS, EventHashes

MS = 1_700_000_000_000
HASHES = EventHashes(bytes(range(32)))
KEY = session_key(7, 8, 9)


def told(ms: int) -> tuple[int, int, int]:
    party, client = (HASHES.presence(struct.pack(">Q", one), ms) for one in (7, 8))
    return party, client, HASHES.presence(struct.pack(">QQQ", *KEY), ms)


def test_a_session_has_three_hashed_ids() -> None:
    names = EventIds(HASHES)

    assert names.session(KEY, MS) == told(MS)
    assert names.session(KEY, MS + 5) == told(MS)
    assert names.party(PartyId(7), MS) == told(MS)[0]


def test_a_new_quarter_has_new_hashes() -> None:
    names = EventIds(HASHES)
    before = names.session(KEY, MS)
    later = MS + 100 * DAY_MS

    assert names.session(KEY, later) == told(later)
    assert names.party(PartyId(7), later) == told(later)[0] != before[0]


def test_an_ended_session_is_forgotten_and_can_be_hashed_again() -> None:
    names = EventIds(HASHES)

    assert names.last_of(KEY, MS) == told(MS)
    assert not names._sessions
    assert names.session(KEY, MS) == told(MS)


def test_no_more_than_the_limit_is_remembered() -> None:
    names = EventIds(HASHES)
    for one in range(1, IDS_MAX + 100):
        names.session(session_key(one, 1, 1), MS)

    assert len(names._sessions) <= IDS_MAX
    assert len(names._parties) <= IDS_MAX
