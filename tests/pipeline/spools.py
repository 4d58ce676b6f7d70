"""Spools made by hand: segments with any lines in them, events of every code, and oddities."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from waystation.telemetry import contract

SECOND_US = 1_000_000
NODES = ("home.connect.0", "home.connect.1", "home.endpoint.0")


def write_segment(
    spool: Path, node: str, boot: int, segno: int, lines: Sequence[bytes], *, first_seq: int,
    sealed_at_s: float, count: int | None = None,
) -> Path:  # fmt: skip
    text = b"".join(line + b"\n" for line in lines)
    crc32c = google_crc32c.value(text)
    folder = spool / node
    folder.mkdir(parents=True, exist_ok=True)
    said = len(lines) if count is None else count
    path = folder / f"{boot}.{segno}.{first_seq}.{said}.{crc32c:08x}.jsonl"
    path.write_bytes(text)
    os.utime(path, (sealed_at_s, sealed_at_s))
    return path


def encode(row: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in row.items() if value is not None}).encode()


class Source:
    """One process's events: it knows its envelope and its sequence."""

    def __init__(self, rng: random.Random, node: str, boot: int, start_us: int) -> None:
        self.rng = rng
        self.node = node
        self.boot = boot
        self.ts = start_us
        self.seq = 0
        self.segno = 0

    def event(self, k: int, **columns: Any) -> dict[str, Any]:
        self.ts += self.rng.randrange(3 * SECOND_US)
        row = {"v": 1, "ts": self.ts, "node": self.node, "boot": self.boot, "seq": self.seq, "k": k}
        self.seq += 1
        return row | columns

    def any_event(self, mids: Sequence[str]) -> dict[str, Any]:
        """Of a random code (some unknown), with all that its code demands."""
        kind = self.rng.choice((*contract.KINDS.values(), contract.Kind(999, "new.code")))
        if self.rng.random() < 0.6:
            kind = contract.KINDS[self.rng.randrange(14)]
        columns = {name: self.value(name, mids) for name in kind.required}
        for name in kind.optional:
            if self.rng.random() < 0.5:
                columns[name] = self.value(name, mids)
        if self.rng.random() < 0.05:
            columns["w"] = self.rng.randrange(1, 20)
        return self.event(kind.code, **columns)

    def value(self, name: str, mids: Sequence[str]) -> Any:
        rng = self.rng
        match name:
            case "mid":
                return rng.choice(mids)
            case "via":
                return rng.choice(("webpush", "fcm", "apns", "adm", "stub", "carrier-pigeon"))
            case "peer":
                return rng.choice(NODES)
            case "flag":
                return rng.random() < 0.5
            case "slot":
                return rng.randrange(4096)
            case "path":
                return rng.randrange(3)
            case "attrs":
                return json.dumps({"os": "linux", "n": rng.randrange(9)})
            case "ttl":
                return rng.choice((0, 60, 86_400, 2_592_000))
            case "n" | "size" | "dur" | "code" | "errno":
                return rng.randrange(10_000)
            case _:
                return rng.randrange(-(1 << 63), 1 << 63)

    def odd_line(self, mids: Sequence[str], sealed_at_us: int) -> bytes:
        """A line that is no event; it uses up a sequence number like any other."""
        row = self.any_event(mids)
        milestone = self.event(8, mid=mids[0], uah=5)
        return self.rng.choice(
            (
                b"",
                b"{",
                b"null",
                b'"text"',
                encode(row)[:-9],
                encode(row | {"ts": "1794000000"}),
                encode(row | {"ts": 1.5}),
                encode(row | {"seq": None}),
                encode(row | {"v": 2}),
                encode(row | {"v": 70_000}),
                encode(row | {"boot": row["boot"] + 1}),
                encode(row | {"node": "somebody.else.0"}),
                encode(row | {"seq": -1}),
                encode(row | {"ts": sealed_at_us - 41 * 86_400 * SECOND_US}),
                encode(row | {"ts": sealed_at_us + 660 * SECOND_US}),
                encode(row | {"w": 0}),
                encode(row | {"peer": "10.0.0.1:8081"}),
                encode(row | {"slot": 4096}),
                encode(row | {"slot": -1}),
                encode(milestone | {"uah": None}),
                encode(milestone | {"mid": "z" * 32}),
                encode(milestone | {"mid": 7}),
                encode(milestone | {"mid": "f" * 32}),
                encode(milestone | {"flag": 1}),
                encode(milestone | {"attrs": "x" * 4097}),
            )
        )


def random_mids(rng: random.Random, count: int, start_us: int) -> list[str]:
    born = [start_us // 1000 + rng.randrange(86_400_000) for _ in range(count)]
    return [f"{ms:012x}{rng.getrandbits(80):020x}" for ms in born]


def odd_spool(spool: Path, seed: int, now_ms: int, *, sources: int = 6, odd: float = 0.02) -> None:
    """Several processes with a few segments each: bad lines, repeated lines, sampled events."""
    rng = random.Random(seed)
    start_us = now_ms * 1000 - 30 * 3600 * SECOND_US
    mids = random_mids(rng, 40, start_us)
    for number in range(sources):
        boot = start_us + number
        source = Source(rng, NODES[number % len(NODES)], boot, start_us)
        for segno in range(rng.randrange(1, 4)):
            first_seq = source.seq
            sealed_at_us = source.ts + 3600 * SECOND_US
            lines: list[bytes] = []
            for _ in range(rng.randrange(1, 120)):
                if rng.random() < odd:
                    lines.append(source.odd_line(mids, sealed_at_us))
                else:
                    lines.append(encode(source.any_event(mids)))
                if rng.random() < 0.02:
                    lines.append(lines[-1])  # the same event twice
            write_segment(
                spool, source.node, boot, segno, lines, first_seq=first_seq,
                sealed_at_s=sealed_at_us / SECOND_US,
            )  # fmt: skip
