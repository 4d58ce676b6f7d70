"""What nodes wrote and what they say they wrote, event by event."""

import datetime as dt
import json
from collections import Counter, defaultdict
from typing import Any

Row = dict[str, Any]
_EPOCH = dt.date(1970, 1, 1)


def when(us: int) -> tuple[dt.date, int]:
    days, rest = divmod(us, 86_400_000_000)
    return _EPOCH + dt.timedelta(days=days), rest // 3_600_000_000


def by_node(events: list[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for event in events:
        counted = groups[*when(event["ts"]), event["node"], event["k"]]
        counted[0] += event["n"] if event["k"] == 303 else event["w"] or 1
        counted[1] += 1
    names = ("day", "hour", "node", "k", "n", "events")
    return [dict(zip(names, (*key, *its), strict=True)) for key, its in groups.items()]


def repeats(events: list[Row]) -> list[Row]:
    times: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for event in events:
        if event["k"] in (6, 8):
            times[when(event["ts"])[0], event["k"], event["mid"]].append(event["ts"])
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (day, k, _mid), at in times.items():
        sums = groups[day, when(min(at))[1], k]
        sums[0] += len(at)
        sums[1] += 1
        sums[2] += len(at) - 1
    names = ("day", "hour", "k", "n", "messages", "repeated")
    return [dict(zip(names, (*key, *its), strict=True)) for key, its in groups.items()]


Span = tuple[str, int, int, list[Row], Row | None, Row, int]


def _spans(events: list[Row], day: dt.date) -> list[Span]:
    """node, boot, hour, the process's events, from which mark to which, the process's gap."""
    day_start = (day - _EPOCH).days * 86_400_000_000
    processes: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for event in events:
        processes[event["node"], event["boot"]].append(event)
    spans: list[Span] = []
    for (node, boot), its in processes.items():
        its.sort(key=lambda event: event["seq"])
        stats = [event for event in its if event["k"] == 302]
        gap = sum(event["n"] for event in its if event["k"] == 303)
        last_of_hour: dict[int, Row] = {}
        for event in stats:
            last_of_hour[when(event["ts"])[1]] = event
        before: Row | None = None
        if boot < day_start:
            if not stats:
                continue
            before = stats[0]
        for hour, mark in sorted(last_of_hour.items(), key=lambda item: item[1]["seq"]):
            if mark is before:
                continue
            spans.append((node, boot, hour, its, before, mark, gap))
            before = mark
    return spans


def reconciled(events: list[Row], day: dt.date) -> list[Row]:
    rows: list[Row] = []
    for node, boot, hour, its, before, mark, gap in _spans(events, day):
        start = json.loads(before["attrs"])["counters"] if before else {}
        end = json.loads(mark["attrs"])["counters"]
        since = before["seq"] if before else -1
        found: Counter[int] = Counter()
        for event in its:
            if since <= event["seq"] < mark["seq"]:
                found[event["k"]] += event["w"] or 1
        for k in {*map(int, end), *found}:
            counted = end.get(str(k), 0) - start.get(str(k), 0)
            row = {"day": day, "node": node, "boot": boot, "hour": hour, "k": k, "gap": gap}
            explained = 0 <= counted - found[k] <= gap
            rows.append(row | {"counted": counted, "found": found[k], "explained": explained})
    return rows


def numbered(events: list[Row], day: dt.date) -> list[Row]:
    rows: list[Row] = []
    for node, boot, hour, its, before, mark, _ in _spans(events, day):
        since = before["seq"] if before else 0
        inside = [event for event in its if since <= event["seq"] < mark["seq"]]
        told = sum(event["n"] for event in inside if event["k"] == 303)
        rows.append(
            {
                "day": day,
                "node": node,
                "boot": boot,
                "hour": hour,
                "numbers": mark["seq"] - since,
                "found": len(inside),
                "gap": told,
                "missing": mark["seq"] - since - len(inside) - told,
            }
        )
    return rows
