"""What became of messages, by looking at each of them: the truth for fold and reliability."""

import datetime as dt
import math
from collections import defaultdict
from typing import Any

from waystation.telemetry.contract import KINDS, TERMINAL, TRANSITIONS

Row = dict[str, Any]

GROWTH = 1.02020202
VIA = {"webpush": 0, "fcm": 1, "apns": 2, "adm": 3, "stub": 4, "simplepush": 5}


def _least(events: list[Row], *codes: int) -> int | None:
    return min((event["ts"] for event in events if event["k"] in codes), default=None)


def _most(events: list[Row], name: str) -> Any:
    return max((event[name] for event in events if event[name] is not None), default=None)


def folded(events: list[Row], via_codes: dict[str, int] = VIA) -> list[Row]:
    """One row a message, from codes 0 to 14."""
    by_mid: dict[str, list[Row]] = defaultdict(list)
    for event in events:
        if 0 <= event["k"] <= 14 and event["mid"] is not None:
            by_mid[event["mid"]].append(event)
    rows: list[Row] = []
    for mid, its in by_mid.items():
        seen = 0
        for event in its:
            seen |= 1 << event["k"]
        vias = [via_codes.get(event["via"], 99) for event in its if event["via"] is not None]
        rows.append(
            {
                "mid": mid,
                "last": max(event["ts"] * 32 + event["k"] for event in its),
                "seen": seen,
                "t0": _least(its, 0),
                "t_store": _least(its, 1),
                "t_get": _least(its, 2),
                "t_fwd": _least(its, 3, 5),
                "t_sent": _least(its, 6),
                "t_acc": _least(its, 7),
                "t_term": _least(its, *TERMINAL),
                "t_done": _least(its, 8),
                "ttl": _most(its, "ttl"),
                "size": _most(its, "size"),
                "app": _most(its, "app"),
                "via": max(vias, default=None),
                "path": _most(its, "path"),
                "topic": _most(its, "flag"),
            }
        )
    return rows


def legal_sets() -> set[frozenset[int]]:
    """Every set of milestones that legal steps can lead through."""
    found: set[tuple[frozenset[int], int]] = set()

    def walk(passed: frozenset[int], here: int) -> None:
        if (passed, here) in found:
            return
        found.add((passed, here))
        for there in TRANSITIONS.get(here, frozenset[int]()):
            walk(passed | {there}, there)

    walk(frozenset({0}), 0)
    return {passed for passed, _ in found}


def bucket(us: int) -> int:
    millis = max(us, 0) / 1000.0
    return 0 if millis < 1.0 else math.ceil(math.log(millis) / math.log(GROWTH))


def bucket_ms(number: int) -> float:
    return 2 * GROWTH**number / (GROWTH + 1)


def judged(messages: list[Row], now_us: int) -> list[Row]:
    legal = legal_sets()
    rows: list[Row] = []
    for message in messages:
        passed = frozenset(code for code in range(15) if message["seen"] & 1 << code)
        born_us = int(message["mid"][:12], 16) * 1000
        start = message["t0"] if message["t0"] is not None else born_us
        ttl = message["ttl"] if message["ttl"] is not None else 30 * 86_400
        deadline = start + (ttl + 15 * 60) * 1_000_000
        state = message["last"] % 32
        late = now_us >= deadline
        if 8 in passed:
            outcome = "delivered"
        elif 5 in passed:
            outcome = "bridged"
        elif passed & {9, 10}:
            outcome = "rejected"
        elif 12 in passed:
            outcome = "errored"
        elif 13 in passed:
            outcome = "superseded"
        elif 14 in passed:
            outcome = "withdrawn"
        elif 11 in passed or (
            late and ((message["ttl"] == 0 and 6 not in passed) or passed & {1, 2, 6, 7})
        ):
            outcome = "expired"
        else:
            outcome = "lost" if late else "in_flight"
        born = dt.datetime.fromtimestamp(born_us / 1e6, dt.UTC)

        def span(to: str, since: str, message: Row = message) -> int | None:
            if message[to] is None or message[since] is None:
                return None
            return message[to] - message[since]

        rows.append(
            {
                "mid": message["mid"],
                "day": born.date(),
                "hour": born.hour,
                "app": message["app"],
                "via": message["via"],
                "path": 2 if 5 in passed else message["path"],
                "outcome": outcome,
                "gap": passed not in legal,
                "seen": message["seen"],
                "state": state,
                "last_at": message["last"] // 32,
                "deadline": deadline,
                "size": message["size"],
                "e2e": span("t_done", "t0"),
                "accept": span("t_acc", "t0"),
                "store": span("t_get", "t_store"),
                "route": span("t_sent", "t0"),
                "bridge": span("t_fwd", "t0") if 5 in passed else None,
            }
        )
    return rows


def hourly(outcomes: list[Row]) -> list[Row]:
    keys = ("day", "hour", "app", "via", "path", "outcome")
    groups: dict[tuple[Any, ...], Row] = {}
    for message in outcomes:
        key = tuple(message[name] for name in keys)
        row = groups.setdefault(
            key,
            dict(zip(keys, key, strict=True))
            | {"messages": 0, "bytes": 0, "gap": 0, "next_deadline": None}
            | {f"reached_{KINDS[code].name[5:]}": 0 for code in range(15)},
        )
        row["messages"] += 1
        row["bytes"] += message["size"] or 0
        row["gap"] += message["gap"]
        if message["outcome"] == "in_flight":
            earlier = row["next_deadline"]
            deadline = message["deadline"]
            row["next_deadline"] = deadline if earlier is None else min(earlier, deadline)
        for code in range(15):
            row[f"reached_{KINDS[code].name[5:]}"] += message["seen"] >> code & 1
    return list(groups.values())


def latency(outcomes: list[Row]) -> list[Row]:
    keys = ("day", "hour", "app", "path", "measure", "bucket")
    groups: dict[tuple[Any, ...], Row] = {}
    for message in outcomes:
        for measure in ("e2e", "accept", "store", "route", "bridge"):
            us = message[measure]
            if us is None:
                continue
            key = (*(message[name] for name in keys[:4]), measure, bucket(us))
            row = groups.setdefault(
                key, dict(zip(keys, key, strict=True)) | {"n": 0, "clamped": 0, "max_us": 0}
            )
            row["n"] += 1
            row["clamped"] += us < 0
            row["max_us"] = max(row["max_us"], us)
    return list(groups.values())


def quantiles(rows: list[Row], by: tuple[str, ...]) -> list[Row]:
    """Over buckets spread out into single values, in order."""
    values: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    most: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        key = tuple(row[name] for name in by)
        values[key] += [row["bucket"]] * row["n"]
        most[key] = max(most[key], row["max_us"])
    result: list[Row] = []
    for key, its in values.items():
        its.sort()
        places = {
            name: math.ceil(len(its) * thousandths / 1000)
            for name, thousandths in (
                ("p50", 500), ("p90", 900), ("p95", 950), ("p99", 990), ("p999", 999),
            )
        }  # fmt: skip
        result.append(
            dict(zip(by, key, strict=True))
            | {"n": len(its), "max_ms": most[key] / 1000}
            | {f"{name}_ms": bucket_ms(its[place - 1]) for name, place in places.items()}
        )
    return result


def lost(outcomes: list[Row], events: list[Row]) -> list[Row]:
    names = ("day", "hour", "mid", "app", "via", "path", "state", "last_at", "deadline", "gap")
    gone = [message for message in outcomes if message["outcome"] == "lost"]
    of_message: dict[str, list[Row]] = {message["mid"]: [] for message in gone}
    for event in events:
        if event["mid"] in of_message and event["k"] <= 14:
            of_message[event["mid"]].append(event)
    rows: list[Row] = []
    for message in gone:
        its = of_message[message["mid"]]
        newest = max(its, key=lambda event: (event["ts"] * 32 + event["k"], event["node"]))
        meant = [event for event in its if event["peer"] is not None]
        latest = max(
            meant, key=lambda event: (event["ts"] * 32 + event["k"], event["peer"]), default=None
        )
        rows.append(
            {name: message[name] for name in names}
            | {"node": newest["node"], "peer": latest["peer"] if latest else None}
        )
    return rows
