"""What slots and stores were asked to do, added up event by event."""

import datetime as dt
import json
import math
from collections import defaultdict
from typing import Any

Row = dict[str, Any]
DAY_US = 86_400_000_000
SENDS = {0: "ok", 1: "auth", 2: "quota", 3: "large", 4: "blocked"}
COUNTS = {
    100: "news", 101: "subs", 104: "delivers", 105: "acks", 106: "gets", 107: "deletes",
    109: "expired", 112: "notifies",
}  # fmt: skip


def slot_minutes(events: list[Row], day: dt.date) -> list[Row]:
    groups: dict[tuple[int, int], Row] = {}
    newest: dict[tuple[int, int], tuple[Any, ...]] = {}
    for event in events:
        if event["slot"] is None or not 100 <= event["k"] <= 130:
            continue
        key = event["ts"] % DAY_US // 60_000_000, event["slot"]
        blank = dict.fromkeys(
            (*COUNTS.values(), *(f"sends_{name}" for name in SENDS.values()), "ops", "bytes"), 0
        )
        row = groups.setdefault(
            key,
            {"day": day, "minute": key[0], "slot": key[1]}
            | blank
            | dict.fromkeys(("queues", "stored_bytes", "stored_messages")),
        )
        times = (1 if event["n"] is None else event["n"]) * (event["w"] or 1)
        if event["k"] in COUNTS:
            row[COUNTS[event["k"]]] += times
            row["ops"] += times if event["k"] != 109 else 0
        elif event["k"] == 103:
            row["ops"] += times
            if event["code"] in SENDS:
                row[f"sends_{SENDS[event['code']]}"] += times
            if event["code"] == 0:
                row["bytes"] += event["size"]
        elif event["k"] == 130:
            order = (event["ts"], event["node"], event["boot"], event["seq"])
            if order > newest.get(key, ()):
                newest[key] = order
                row["queues"], row["stored_bytes"] = event["n"], event["size"]
                row["stored_messages"] = json.loads(event["attrs"])["messages"]
    return list(groups.values())


def slot_weights(minutes: list[Row], window: int, a: float, b: float, c: float) -> list[Row]:
    by_slot: dict[int, list[Row]] = defaultdict(list)
    for row in minutes:
        by_slot[row["slot"]].append(row)
    rows: list[Row] = []
    for slot, its in by_slot.items():

        def p95(name: str, its: list[Row] = its) -> int:
            values = [row[name] for row in its]
            values += [0] * (window - len(values))
            return sorted(values)[math.ceil(window * 95 / 100) - 1]

        told = [row for row in its if row["stored_bytes"] is not None]
        last = max(told, key=lambda row: (row["day"], row["minute"]), default=None)
        stored = last["stored_bytes"] if last else 0
        ops, mb = float(p95("ops")), p95("bytes") / 1e6
        rows.append(
            {
                "slot": slot,
                "ops_p95": ops,
                "mb_p95": mb,
                "ops": sum(row["ops"] for row in its),
                "bytes": sum(row["bytes"] for row in its),
                "queues": last["queues"] if last else 0,
                "stored_bytes": stored,
                "weight": a * ops + b * (stored / 1e6) + c * mb,
            }
        )
    return rows


ASKED = {
    20: "connects", 21: "hellos", 29: "closes", 0: "notifications", 1: "stored", 2: "retrieved",
    8: "acks", 5: "bridge_sends", 27: "storage_checks", 103: "queue_sends", 200: "party_joins",
    205: "party_messages",
}  # fmt: skip


def _p95(sizes: list[int]) -> float:
    """As the SQL function `percentile`: between the two values around the place."""
    place = 0.95 * (len(sizes) - 1)
    low, high = sorted(sizes)[math.floor(place)], sorted(sizes)[math.ceil(place)]
    if math.floor(place) == math.ceil(place):
        return float(low)
    return (math.ceil(place) - place) * low + (place - math.floor(place)) * high


def _blocks(size: float, block: int) -> int:
    return max(1, math.ceil(size / block))


def capacity_minutes(events: list[Row], day: dt.date, item: int) -> list[Row]:
    groups: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)
    for event in events:
        minute = event["ts"] % DAY_US // 60_000_000
        times = event["w"] or 1
        if event["k"] in (80, 103):
            times *= 1 if event["n"] is None else event["n"]
        size = event["size"] or 0
        blocks = _blocks(size, 4096) if event["k"] == 27 else 1
        if event["k"] == 80:
            said = json.loads(event["attrs"])
            name = f"store:{said['table']}:{said['op']}"
        elif event["k"] in ASKED:
            name = ASKED[event["k"]]
        else:
            continue
        groups[minute, name].append((times, times * blocks, size))
    rows: list[Row] = []
    minutes: dict[int, dict[str, Row]] = defaultdict(dict)
    for (minute, name), its in groups.items():
        sizes = [size for _, _, size in its]
        row = {
            "day": day,
            "minute": minute,
            "resource": name,
            "n": sum(n for n, _, _ in its),
            "units": sum(units for _, units, _ in its),
            "bytes": sum(sizes),
            "size_mean": sum(sizes) / len(sizes),
            "size_p95": _p95(sizes),
        }
        rows.append(row)
        minutes[minute][name] = row
    nothing = {"n": 0, "units": 0, "size_mean": 0.0}
    for minute, its in minutes.items():

        def of(name: str, column: str = "n", its: dict[str, Row] = its) -> Any:
            return its.get(name, nothing)[column]

        written = _blocks(of("notifications", "size_mean"), 1024)
        units = {
            "router_read": (of("notifications"), of("notifications") * _blocks(item, 4096)),
            "router_write": (of("hellos"), of("hellos") * _blocks(item, 1024) + of("closes")),
            "message_read": (of("storage_checks"), of("storage_checks", "units")),
            "message_write": (of("stored"), of("stored") * written + of("retrieved")),
        }
        rows += [
            {
                "day": day, "minute": minute, "resource": name, "n": n, "units": amount,
                "bytes": None, "size_mean": None, "size_p95": None,
            }
            for name, (n, amount) in units.items()
            if amount
        ]  # fmt: skip
    return rows


def capacity_units(minutes: list[Row], headroom: float) -> list[Row]:
    drivers = {
        "router_read": "notifications", "router_write": "hellos",
        "message_read": "storage_checks", "message_write": "stored",
    }  # fmt: skip
    rows: list[Row] = []
    for name, driver in drivers.items():
        its = [row for row in minutes if row["resource"] == name]
        if not its:
            continue
        hours: dict[int, list[int]] = defaultdict(list)
        for row in its:
            hours[row["minute"] // 60].append(row["units"])
        busiest = max(hours, key=lambda hour: (sum(hours[hour]), -hour))
        rate = max(hours[busiest]) / 60
        units, n = sum(row["units"] for row in its), sum(row["n"] for row in its)
        rows.append(
            {
                "day": its[0]["day"], "resource": name, "busiest_hour": busiest, "units": units,
                "rate_p99": rate, "provision": rate * (1 + headroom), "driver": driver,
                "driver_per_unit": n / units,
            }
        )  # fmt: skip
    return rows
