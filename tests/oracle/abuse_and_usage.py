"""Who stands out, and who uses what, counted event by event."""

import datetime as dt
import json
import statistics
from collections import Counter, defaultdict
from typing import Any

Row = dict[str, Any]
DAY_US = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1)
Connection = tuple[str, int, int]


def _day(ts: int) -> dt.date:
    return _EPOCH + dt.timedelta(days=ts // DAY_US)


def _looks(event: Row, connections: dict[Connection, int]) -> list[tuple[str, str, Any, int]]:
    """(kind, class, key, amount) for everything that an event counts for."""
    k, one = event["k"], event["w"] or 1
    many = one * (1 if event["n"] is None else event["n"])
    found: list[tuple[str, str, Any, int]] = []
    if k == 20:
        found.append(("flood_connect", "iph", event["iph"], one))
    if k == 0:
        found.append(("flood_send", "app", event["app"], one))
    if k == 41:
        found.append(("auth_guess", "app", event["app"], one))
    if k == 40 and event["code"] == 413:
        found.append(("giant_payload", "app", event["app"], one))
    if k in (32, 33):
        found.append(("unacked_pile", "uah", event["uah"], many))
    if k == 26 and event["flag"]:
        key = connections[event["node"], event["boot"], event["cid"]]
        found.append(("ping_abuse", "cid", key, one))
    if k == 100:
        found.append(("flood_new_queue", "slot", event["slot"], many))
    if k == 103 and event["code"] == 2:
        found.append(("quota_hammer", "slot", event["slot"], many))
    if k in (100, 101, 103, 104, 105, 106, 107, 112):
        found.append(("hot_slot", "slot", event["slot"], many))
    return [look for look in found if look[2] is not None]


def abuse(
    events: list[Row], floor: int, share: float, connections: dict[Connection, int]
) -> list[Row]:
    counts: Counter[tuple[Any, ...]] = Counter()
    nodes: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for event in events:
        minute = event["ts"] % DAY_US // 60_000_000
        for kind, group, key, amount in _looks(event, connections):
            counts[_day(event["ts"]), kind, minute, group, key] += amount
            nodes[_day(event["ts"]), kind, minute, group, key].add(event["node"])
    by_minute: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for (day, kind, minute, _, _), n in counts.items():
        by_minute[day, kind, minute].append(n)
    found: dict[tuple[Any, ...], dict[int, Row]] = defaultdict(dict)
    for (day, kind, minute, group, key), n in counts.items():
        if n <= floor:
            continue
        before = [
            count
            for at in range(minute - 60, minute)
            for count in by_minute.get((day, kind, at), ())
        ]
        median = statistics.median(before) if before else 0.0
        mad = statistics.median(abs(count - median) for count in before) if before else 0.0
        score = (n - median) / (mad * 1.4826 + 1.0)
        its_share = n / sum(by_minute[day, kind, minute])
        if score > 8.0 or (kind in ("hot_slot", "flood_send") and its_share > share):
            found[day, kind, group, key][minute] = {
                "n": n,
                "baseline": float(median),
                "score": score,
                "share": its_share,
                "nodes": nodes[day, kind, minute, group, key],
            }
    rows: list[Row] = []
    for (day, kind, group, key), minutes in found.items():
        run: list[int] = []
        for minute in sorted(minutes):
            if run and minute != run[-1] + 1:
                rows.append(_one((day, kind, group, key), run, minutes))
                run = []
            run.append(minute)
        rows.append(_one((day, kind, group, key), run, minutes))
    return rows


def _one(whose: tuple[dt.date, str, str, int], run: list[int], minutes: dict[int, Row]) -> Row:
    day, kind, group, key = whose
    its = [minutes[minute] for minute in run]
    peak = min(run, key=lambda minute: (-minutes[minute]["n"], minute))
    return {
        "day": day,
        "kind": kind,
        "class": group,
        "key": key,
        "first_minute": run[0],
        "last_minute": run[-1],
        "n": sum(one["n"] for one in its),
        "peak": minutes[peak]["n"],
        "baseline": minutes[peak]["baseline"],
        "score": max(one["score"] for one in its),
        "share": max(one["share"] for one in its),
        "nodes": " ".join(sorted(set[str]().union(*(one["nodes"] for one in its)))[:3]),
    }


NAMES = {
    0: "notifications", 1: "stored", 2: "fetched", 8: "acked", 21: "hellos", 23: "subscribes",
    24: "unsubscribes", 40: "requests", 70: "registrations", 72: "registrations_gone",
    73: "bridge_subscribes", 74: "bridge_unsubscribes",
}  # fmt: skip


def usage(events: list[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for event in events:
        k = event["k"]
        if k not in NAMES:
            continue
        detail = None
        if k == 40:
            detail = str(event["code"]) + (f" errno {event['errno']}" if event["errno"] else "")
        elif k == 21:
            said = json.loads(event["attrs"])
            detail = f"{said['os']} {said['browser']}"
        elif k in (23, 24):
            detail = str(event["code"])
        elif k in (0, 70, 72, 73, 74):
            detail = event["via"]
        sums = groups[_day(event["ts"]), NAMES[k], detail]
        sums[0] += event["w"] or 1
        sums[1] += (event["size"] or 0) * (event["w"] or 1)
    names = ("day", "what", "detail", "n", "bytes")
    return [dict(zip(names, (*key, *its), strict=True)) for key, its in groups.items()]


def distinct(events: list[Row]) -> dict[tuple[dt.date, str], set[int]]:
    seen: dict[tuple[dt.date, str], set[int]] = defaultdict(set)
    looks = {
        21: [("user_agents", "uah")],
        8: [("receivers", "uah")],
        0: [("recipients", "uah"), ("endpoints", "chh"), ("senders", "app")],
    }
    for event in events:
        for what, column in looks.get(event["k"], ()):
            if event[column] is not None:
                seen[_day(event["ts"]), what].add(event[column])
    return seen
