"""Which lines of a spool are events, and why the others are none: plain Python, line by line."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waystation.telemetry import contract

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
LATE_S = 40 * 86_400
EARLY_S = 600
DAY_MS = 86_400_000


class Verdict:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.rejected: list[tuple[str, int, int, str]] = []  # node, boot, segno, reason


def sealed(spool: Path) -> list[tuple[str, int, int, int, Path]]:
    found: list[tuple[str, int, int, int, Path]] = []
    for path in spool.glob("*/*.jsonl"):
        boot, segno, first_seq = map(int, path.name.split(".")[:3])
        found.append((path.parent.name, boot, segno, first_seq, path))
    return sorted(found)


def judge(spool: Path) -> Verdict:
    """As if everything in the spool were taken at once."""
    verdict = Verdict()
    kept: dict[tuple[str, int, int], dict[str, Any]] = {}
    for node, boot, segno, first_seq, path in sealed(spool):
        sealed_at_us = path.stat().st_mtime_ns // 1000
        for line in path.read_bytes().split(b"\n")[:-1]:
            row = values(line)
            reason = why_not(
                line, row, node=node, boot=boot, first_seq=first_seq, sealed_at_us=sealed_at_us
            )
            if reason is not None:
                verdict.rejected.append((node, boot, segno, reason))
                continue
            assert row is not None
            kept.setdefault((node, boot, row["seq"]), row)
    verdict.events = list(kept.values())
    return verdict


def values(line: bytes) -> dict[str, Any] | None:
    """The columns of a line; None when it is not an object or a value has the wrong type."""
    try:
        raw = json.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(raw, dict):
        return None
    row: dict[str, Any] = {}
    for name, column in contract.COLUMNS.items():
        value = raw.get(name)
        if value is None:
            row[name] = None
        elif column.type == "string":
            row[name] = value if isinstance(value, str) else json.dumps(value)
        elif column.type == "boolean":
            if not isinstance(value, bool):
                return None
            row[name] = value
        else:
            limit = 1 << (BITS[column.type] - 1)
            if isinstance(value, bool | float | str) or not -limit <= value < limit:
                return None
            row[name] = value
    return row


def why_not(
    line: bytes,
    row: dict[str, Any] | None,
    *,
    node: str,
    boot: int,
    first_seq: int,
    sealed_at_us: int,
) -> str | None:
    if not line:
        return "blank"
    if row is None:
        return "unreadable"
    if any(row[name] is None for name in ("v", "ts", "node", "boot", "seq", "k")):
        return "no_envelope"
    if row["v"] > contract.CONTRACT_VERSION:
        return "newer_contract"
    if (row["node"], row["boot"]) != (node, boot):
        return "foreign"
    if row["seq"] < first_seq:
        return "seq_before_file"
    if row["ts"] < sealed_at_us - LATE_S * 1_000_000:
        return "too_late"
    if row["ts"] > sealed_at_us + EARLY_S * 1_000_000:
        return "too_early"
    kind = contract.KINDS.get(row["k"])
    if kind is not None and any(row[name] is None for name in kind.required):
        return "missing_columns"
    return "bad_value" if any(malformed(row)) else None


def malformed(row: dict[str, Any]) -> Iterator[bool]:
    mid = row["mid"]
    if mid is not None:
        yield re.fullmatch(r"[0-9a-f]{32}", mid) is None
        if re.match(r"[0-9a-f]{12}", mid):
            ahead_ms = int(mid[:12], 16) - row["ts"] // 1000
            yield not -60 * DAY_MS <= ahead_ms <= DAY_MS
    if row["slot"] is not None:
        yield not 0 <= row["slot"] <= 4095
    if row["peer"] is not None:
        yield re.fullmatch(contract.NODE_PATTERN, row["peer"]) is None
    if row["via"] is not None:
        yield re.fullmatch(r"[a-z0-9_-]{1,16}", row["via"]) is None
    if row["attrs"] is not None:
        yield len(row["attrs"]) > contract.ATTRS_BYTES_MAX
    if row["w"] is not None:
        yield row["w"] < 1
    if row["n"] is not None:
        yield row["n"] < 0
