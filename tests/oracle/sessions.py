"""Connections and sessions, one after the other: who was there, since when, and how it ended."""

import datetime as dt
import itertools
import json
from collections import Counter, defaultdict
from typing import Any

from tests.oracle.messages import bucket

Row = dict[str, Any]
_EPOCH = dt.date(1970, 1, 1)
DAY_US = 86_400_000_000


def start_of(day: dt.date) -> int:
    return (day - _EPOCH).days * DAY_US


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def connections(events: list[Row], still_open: list[Row], day: dt.date) -> list[Row]:
    boots: dict[str, set[int]] = defaultdict(set)
    told: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for event in events:
        boots[event["node"]].add(event["boot"])
        if event["k"] in (20, 21, 29) and event["cid"] is not None:
            told[event["node"], event["boot"], event["cid"]].append(event)
    old = {(row["node"], row["boot"], row["cid"]): row for row in still_open}
    rows: list[Row] = []
    for key in {*told, *old}:
        node, boot, _ = key
        its = sorted(told.get(key, []), key=lambda event: (event["ts"], event["seq"]))
        was = old.get(key, {})
        opens = [event for event in its if event["k"] == 20]
        hellos = [event for event in its if event["k"] == 21]
        closes = [event for event in its if event["k"] == 29]
        close = closes[0] if closes else None
        hello = hellos[0] if hellos else None
        next_boot = min((other for other in boots[node] if other > boot), default=None)
        ended_at = close["ts"] if close else next_boot
        first_word = min((event["ts"] for event in (opens + hellos)), default=None)
        opened_at = _first(
            was.get("opened_at"), first_word, close and close["ts"] - close["dur"], ended_at
        )
        status = "closed" if close else "crashed" if next_boot is not None else "open"
        if status == "open" and opened_at < start_of(day) - 31 * DAY_US:
            continue
        said = json.loads(hello["attrs"]) if hello else {}
        uahs = [event["uah"] for event in its if event["uah"] is not None]
        dur = close["dur"] if close else None if ended_at is None else ended_at - opened_at
        rows.append(
            {
                "day": day,
                "node": node,
                "boot": boot,
                "cid": key[2],
                "uah": _first(was.get("uah"), max(uahs, default=None)),
                "iph": _first(was.get("iph"), max((o["iph"] for o in opens), default=None)),
                "opened_at": opened_at,
                "hello_at": _first(was.get("hello_at"), hello and hello["ts"]),
                "ended_at": ended_at,
                "dur": dur,
                "code": close and close["code"],
                "status": status,
                "new_uaid": _first(was.get("new_uaid"), hello and hello["flag"]),
                "os": _first(was.get("os"), said.get("os")),
                "browser": _first(was.get("browser"), said.get("browser")),
                "away_us": None,
            }
        )
    visits: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["uah"] is not None:
            visits[row["uah"]].append(row)
    for its in visits.values():
        its.sort(key=lambda row: (row["opened_at"], row["node"], row["boot"], row["cid"]))
        for before, after in itertools.pairwise(its):
            if before["ended_at"] is not None and after["opened_at"] >= before["ended_at"]:
                after["away_us"] = after["opened_at"] - before["ended_at"]
    return rows


def _minute(at: int, day: dt.date) -> int:
    return -1 if at < start_of(day) else (at - start_of(day)) // 60_000_000 % 1440


def _peaks(moments: list[tuple[int, int, int]]) -> list[int]:
    """The most at any moment of each minute, from (minute, time, change)."""
    present = sum(change for minute, _, change in moments if minute < 0)
    of_minutes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for minute, at, change in moments:
        of_minutes[minute].append((at, change))
    peaks: list[int] = []
    for minute in range(1440):
        most = present
        for _, change in sorted(of_minutes[minute]):
            present += change
            most = max(most, present)
        peaks.append(most)
    return peaks


def connection_minutes(sessions: list[Row], day: dt.date) -> list[Row]:
    counts: Counter[tuple[int, str]] = Counter()
    moments: list[tuple[int, int, int]] = []
    for row in sessions:
        moments.append((_minute(row["opened_at"], day), row["opened_at"], 1))
        if row["ended_at"] is not None:
            moments.append((_minute(row["ended_at"], day), row["ended_at"], -1))
        was_there = row["opened_at"] < start_of(day)
        counts[_minute(row["opened_at"], day), "was_there" if was_there else "opened"] += 1
        if row["hello_at"] is not None:
            counts[_minute(row["hello_at"], day), "hellos"] += 1
        if row["ended_at"] is not None:
            counts[_minute(row["ended_at"], day), row["status"]] += 1
    present = 0
    rows: list[Row] = []
    for minute in range(-1, 1440):
        present += counts[minute, "opened"] + counts[minute, "was_there"]
        present -= counts[minute, "closed"] + counts[minute, "crashed"]
        names = ("opened", "hellos", "closed", "crashed")
        row = {name: counts[minute, name] for name in names}
        rows.append({"day": day, "minute": minute, "present": present} | row)
    return [row | {"peak": peak} for row, peak in zip(rows[1:], _peaks(moments), strict=True)]


def connection_hours(events: list[Row], day: dt.date) -> list[Row]:
    groups: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for event in events:
        if 20 <= event["k"] <= 33:
            groups[event["ts"] % DAY_US // 3_600_000_000, event["node"]].append(event)
    rows: list[Row] = []
    for (hour, node), its in groups.items():

        def times(k: int, its: list[Row] = its) -> int:
            return sum(event["k"] == k for event in its)

        def total(k: int, name: str, its: list[Row] = its) -> int:
            return sum(event[name] for event in its if event["k"] == k)

        rows.append(
            {
                "day": day,
                "hour": hour,
                "node": node,
                "hellos": times(21),
                "rejects": times(22),
                "pings_excessive": sum(event["k"] == 26 and event["flag"] for event in its),
                "storage_checks": times(27),
                "messages_read": total(27, "n"),
                "bytes_read": total(27, "size"),
                "unacked_stored": total(32, "n"),
                "unacked_dropped": total(33, "n"),
                "displaced": times(30),
                "dropped_users": times(31),
            }
        )
    return rows


def party_sessions(
    events: list[Row], still_open: list[Row], day: dt.date, now_us: int
) -> list[Row]:
    horizon = min(now_us, start_of(day) + DAY_US)
    last_word: dict[tuple[str, int], int] = {}
    stopped: dict[tuple[str, int], int] = {}
    newest: dict[str, int] = {}
    told: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for event in events:
        process = event["node"], event["boot"]
        last_word[process] = max(last_word.get(process, 0), event["ts"])
        newest[event["node"]] = max(newest.get(event["node"], 0), event["boot"])
        if event["k"] == 301:
            stopped[process] = min(stopped.get(process, event["ts"]), event["ts"])
        if 200 <= event["k"] <= 204 and event["sess"] is not None:
            told[event["party"], event["sess"]].append(event)
    old = {(row["party"], row["sess"]): row for row in still_open}
    rows: list[Row] = []
    for party, sess in {*told, *old}:
        was = old.get((party, sess), {})
        its = told.get((party, sess), [])
        its.sort(key=lambda event: (event["ts"], event["node"], event["boot"], event["seq"]))
        starts = [event for event in its if event["k"] == 200]
        leaves = [event for event in its if event["k"] == 201]
        resumes = [event for event in its if event["k"] == 203]
        start = starts[0] if starts else None
        leave = leaves[0] if leaves else None
        began = json.loads(start["attrs"]) if start else {}
        left = json.loads(leave["attrs"]) if leave else {}
        node = its[-1]["node"] if its else was["node"]
        boot = its[-1]["boot"] if its else was["boot"]
        held_at = _first(last_word.get((node, boot)), was.get("held_at"))
        stopped_at = _first(stopped.get((node, boot)), None if its else was["holder_stopped_at"])
        holder_ended = stopped_at
        if holder_ended is None and (boot < newest.get(node, 0) or held_at < horizon - 180_000_000):
            holder_ended = held_at
        ttl_ms = _first(was.get("ttl_ms"), began.get("ttl_ms"))
        patience_us = (120_000 if ttl_ms is None else ttl_ms) * 1000 + 70_000_000
        vanished = (
            leave is None and holder_ended is not None and holder_ended + patience_us < horizon
        )
        started_at = _first(
            was.get("started_at"),
            start and start["ts"],
            leave and leave["ts"] - leave["dur"],
            its[0]["ts"] if its else None,
        )
        ended_at = leave["ts"] if leave else holder_ended if vanished else None
        sizes = [event["n"] for event in starts] + [was["size"] for _ in was if was["size"]][:1]
        start_seq = _first(was.get("start_seq"), began.get("seq"))
        n_starts = len(starts) + was.get("starts", 0)
        n_leaves = len(leaves) + was.get("leaves", 0)
        outstanding = balanced = None
        if leave:
            outstanding = left["out"] - left["acked"] - left["dropped"] - left["superseded"]
            in_order = start_seq is None or left["seq"] > start_seq
            balanced = outstanding >= 0 and in_order and n_leaves == 1 and n_starts <= 1
        rows.append(
            {
                "day": day,
                "party": party,
                "sess": sess,
                "cli": _first(was.get("cli"), start and start["cli"], leave and leave["cli"]),
                "node": node,
                "boot": boot,
                "started_at": started_at,
                "ended_at": ended_at,
                "dur": leave["dur"] if leave else ended_at and ended_at - started_at,
                "code": leave and leave["code"],
                "status": "left" if leave else "vanished" if vanished else "open",
                "ttl_ms": ttl_ms,
                "size": max(sizes, default=None),
                "detaches": sum(event["k"] == 202 for event in its) + was.get("detaches", 0),
                "resumes": len(resumes) + was.get("resumes", 0),
                "away_us": sum(event["dur"] for event in resumes) + was.get("away_us", 0),
                "redelivered": sum(event["n"] for event in resumes) + was.get("redelivered", 0),
                "outgoing": left.get("out"),
                "acked": left.get("acked"),
                "retried": left.get("retried"),
                "dropped": left.get("dropped"),
                "superseded": left.get("superseded"),
                "outstanding": outstanding,
                "start_seq": start_seq,
                "leave_seq": left.get("seq"),
                "starts": n_starts,
                "leaves": n_leaves,
                "balanced": balanced,
                "held_at": held_at,
                "holder_stopped_at": stopped_at,
            }
        )
    return rows


def party_minutes(sessions: list[Row], day: dt.date) -> list[Row]:
    largest: dict[int, int] = {}
    for row in sessions:
        largest[row["party"]] = max(largest.get(row["party"], 0), row["size"] or 0)

    def kind(party: int) -> str:
        size = largest[party] or 1
        bounds = ((1, "1"), (4, "2-4"), (16, "5-16"), (64, "17-64"))
        return next((name for most, name in bounds if size <= most), "65+")

    counts: Counter[tuple[str, int, str]] = Counter()
    moments: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in sessions:
        size = kind(row["party"])
        moments[size].append((_minute(row["started_at"], day), row["started_at"], 1))
        if row["ended_at"] is not None:
            moments[size].append((_minute(row["ended_at"], day), row["ended_at"], -1))
        was_there = row["started_at"] < start_of(day)
        counts[size, _minute(row["started_at"], day), "was_there" if was_there else "joined"] += 1
        if row["ended_at"] is not None:
            counts[size, _minute(row["ended_at"], day), row["status"]] += 1
    rows: list[Row] = []
    of_all = _peaks([one for its in moments.values() for one in its])
    for size in {size for size, _, _ in counts}:
        present, peaks = 0, _peaks(moments[size])
        for minute in range(-1, 1440):
            present += counts[size, minute, "joined"] + counts[size, minute, "was_there"]
            present -= counts[size, minute, "left"] + counts[size, minute, "vanished"]
            if minute >= 0:
                row = {name: counts[size, minute, name] for name in ("joined", "left", "vanished")}
                row |= {"present": present, "peak": peaks[minute], "peak_of_all": of_all[minute]}
                rows.append({"day": day, "minute": minute, "class": size} | row)
    return rows


_TOTALS = ("out", "acked", "retried", "dropped", "superseded", "redelivered")


def party_hours(events: list[Row], day: dt.date) -> list[Row]:
    groups: dict[tuple[int, str], Row] = {}

    def group(hour: int, node: str) -> Row:
        blank = dict.fromkeys(
            ("sent", "recipients", "outgoing", "refused", "acks_again", *_TOTALS[1:]), 0
        )
        return groups.setdefault((hour, node), {"day": day, "hour": hour, "node": node} | blank)

    acks: set[tuple[Any, ...]] = set()
    processes: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for event in events:
        hour = event["ts"] % DAY_US // 3_600_000_000
        w = event["w"] or 1
        if event["k"] == 205:
            group(hour, event["node"])["sent"] += w
            group(hour, event["node"])["recipients"] += w * event["n"]
        elif event["k"] == 210:
            group(hour, event["node"])["refused"] += w
        elif event["k"] == 207:
            key = (hour, event["node"], event["party"], event["sess"], event["msg"])
            group(hour, event["node"])["acks_again"] += key in acks
            acks.add(key)
        elif event["k"] == 208:
            processes[event["node"], event["boot"]].append(event)
    for (node, boot), its in processes.items():
        its.sort(key=lambda event: event["seq"])
        sums = dict.fromkeys(_TOTALS, 0)
        if boot < start_of(day):
            sums = json.loads(its[0]["attrs"])
        for event in its:
            told = json.loads(event["attrs"])
            row = group(event["ts"] % DAY_US // 3_600_000_000, node)
            for name in _TOTALS:
                row["outgoing" if name == "out" else name] += told[name] - sums[name]
            sums = told
    return list(groups.values())


def party_latency(events: list[Row], day: dt.date) -> list[Row]:
    groups: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for event in events:
        if event["k"] == 207 and event["dur"] is not None:
            row = groups[event["ts"] % DAY_US // 3_600_000_000, bucket(event["dur"])]
            row[0] += event["w"] or 1
            row[1] = max(row[1], event["dur"])
    return [
        {"day": day, "hour": hour, "bucket": number, "n": n, "max_us": most}
        for (hour, number), (n, most) in groups.items()
    ]
