"""The layout of parties in Redis: names of keys, and decoding of rows.

`P` is a party's id as 16 hex digits, always as the hash tag `{P}`, so that all keys of a party
share a slot and one script can change them. The field of a session is its client id and session id,
32 hex digits. `scripts/party.lua` writes the rows.
"""

from typing import Final

from waystation.presence.model import (
    ClientId,
    Entry,
    Member,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    SessionRecord,
    Status,
    party_message_id,
)
from waystation.presence.store import Notice

COUNTER_BITS: Final = 21
SHARDS: Final = 256


class PartyKeys:
    def __init__(self, prefix: str, *, shards: int = SHARDS) -> None:
        self.prefix = prefix
        self.shards = shards

    def of(self, party_id: PartyId) -> list[str]:
        """Meta, sessions, clients, log, detached, channel: in the order of the scripts."""
        base = f"{self.prefix}:{{{party_id:016x}}}:"
        return [base + name for name in ("m", "s", "c", "log", "x", "bell")]

    def bell(self, party_id: PartyId) -> str:
        return f"{self.prefix}:{{{party_id:016x}}}:bell"

    def party_of(self, bell: str) -> PartyId:
        return PartyId(int(bell[len(self.prefix) + 2 : len(self.prefix) + 18], 16))

    def shard(self, party_id: PartyId) -> int:
        # The high bits of a product: consecutive ids get different shards.
        return (party_id * 0x9E3779B97F4A7C15 >> 56) % self.shards

    def sweep(self, shard: int) -> str:
        return f"{self.prefix}:sweep:{shard}"

    def node(self, node_id: str) -> str:
        return f"{self.prefix}:node:{node_id}"

    def parties_of(self, node_id: str) -> str:
        return f"{self.prefix}:np:{node_id}"

    def reaper(self, node_id: str) -> str:
        return f"{self.prefix}:reap:{node_id}"

    @property
    def nodes(self) -> str:
        return f"{self.prefix}:nodes"


def field_of(key: SessionKey) -> str:
    return f"{key.client_id:016x}{key.session_id:016x}"


def ids_of(field: bytes) -> tuple[ClientId, SessionId]:
    return ClientId(int(field[:16], 16)), SessionId(int(field[16:32], 16))


def decode_entry(raw: bytes) -> Entry:
    seq, kind, field, ms, n, ts, count, code, payload = raw.split(b":", 8)
    client_id, session_id = ids_of(field)
    return Entry(
        int(seq),
        MessageType(int(kind)),
        client_id,
        session_id,
        party_message_id(int(ms) << COUNTER_BITS | int(n)),
        int(ts),
        int(count),
        int(code),
        payload,
    )


def decode_member(raw: bytes) -> Member:
    client_id, session_id = ids_of(raw)
    return Member(client_id, session_id, raw[32:] != b"1")


def decode_record(key: SessionKey, raw: bytes) -> SessionRecord:
    parts = raw.decode().split("|")
    return SessionRecord(
        key=key,
        active=parts[0] == "1",
        owner=parts[1],
        incarnation=int(parts[2]),
        fence=int(parts[3]),
        joined_seq=int(parts[4]),
        joined_at_ms=int(parts[5]),
        cursor=int(parts[6]),
        ttl_ms=int(parts[7]),
        flags=int(parts[8]),
        token_hash=bytes.fromhex(parts[9]),
        previous_hash=bytes.fromhex(parts[10]),
        previous_until_ms=int(parts[11]),
        detached_at_ms=int(parts[12]),
        deadline_ms=int(parts[13]),
        cause=int(parts[14]),
        last_signal_id=int(parts[15], 16),
        token_exp_ms=int(parts[16]),
    )


def encode_record(record: SessionRecord) -> str:
    return "|".join(
        (
            "1" if record.active else "0",
            record.owner,
            str(record.incarnation),
            str(record.fence),
            str(record.joined_seq),
            str(record.joined_at_ms),
            str(record.cursor),
            str(record.ttl_ms),
            str(record.flags),
            record.token_hash.hex(),
            record.previous_hash.hex(),
            str(record.previous_until_ms),
            str(record.detached_at_ms),
            str(record.deadline_ms),
            str(record.cause),
            f"{record.last_signal_id:016x}",
            str(record.token_exp_ms),
        )
    )


def encode_notice(notice: Notice) -> bytes:
    return f"n{notice.status:d}:{field_of(notice.key)}:{notice.fence}:{notice.node_id}".encode()


def decode_notice(party_id: PartyId, raw: bytes) -> Notice:
    status, field, fence, node_id = raw[1:].split(b":", 3)
    client_id, session_id = ids_of(field)
    return Notice(
        key=SessionKey(party_id, client_id, session_id),
        status=Status(int(status)),
        fence=int(fence),
        node_id=node_id.decode(),
    )
