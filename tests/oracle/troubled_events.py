"""One date of events as a cluster with every kind of trouble would write them.

Plain Python and one seed a case. Nodes restart and die, clocks are off, events are lost with and
without a `log.gap`, said twice, out of order, without their beginnings and without their ends.
"""

import datetime as dt
import json
import random
from typing import Any

from waystation.telemetry.contract import COLUMNS

Row = dict[str, Any]

DAY = dt.date(2026, 11, 6)
DAY_START_US = (DAY - dt.date(1970, 1, 1)).days * 86_400_000_000
DAY_US = 86_400_000_000
NOW_US = DAY_START_US + 20 * 3_600_000_000  # some deadlines have passed by then, some have not

MILESTONE_WALKS = [
    (0, 6, 8),
    (0, 3, 6, 7, 8),
    (0, 3, 4, 6, 9),
    (0, 1),
    (0, 1, 2, 6, 8),
    (0, 1, 2, 6, 10),
    (0, 1, 11),
    (0, 1, 13),
    (0, 1, 14),
    (0, 1, 2, 6, 14),
    (0, 5),
    (0, 12),
    (0, 11),
    (0,),
    (0, 3),
    (0, 6),
    (0, 6, 1, 2, 6, 8),
    (0, 3, 0, 1, 2, 8),
]


class Process:
    """One life of a node: gives its events an identity, and counts as the event log does."""

    def __init__(self, node: str, boot: int, skew_us: int) -> None:
        self.node = node
        self.boot = boot
        self._skew_us = skew_us
        self._events: list[Row] = []

    def emit(self, ts: int, k: int, attrs: Row | None = None, **columns: Any) -> None:
        text = None if attrs is None else json.dumps(attrs)
        self._events.append(dict(columns, ts=ts + self._skew_us, k=k, attrs=text))

    def rows(self, chance: random.Random, *, loss: float) -> list[Row]:
        """In the order of time, with sequence numbers, statistics and what got lost on the way."""
        rows: list[Row] = []
        counts: dict[str, int] = {}
        seq = 0
        untold = 0
        self._events.sort(key=lambda event: event["ts"])
        for event in self._events:
            fate = chance.random()
            if event["k"] not in (300, 301, 302) and fate < loss:
                if fate < loss / 3:  # dropped: it has a number and no line, and a gap tells
                    seq += 1
                    untold += 1
                    continue
                if fate < 2 * loss / 3:  # the disk refused it: counted, told by a gap
                    counts[str(event["k"])] = counts.get(str(event["k"]), 0) + event.get("w", 1)
                    seq += 1
                    untold += 1
                    continue
                counts[str(event["k"])] = counts.get(str(event["k"]), 0) + event.get("w", 1)
                seq += 1  # silently gone: nobody tells
                continue
            if event["k"] == 302:
                told = {"connections": 1, "rss": 1, "cpu": 0.5, "loop_lag": 0.0, "spool_bytes": 1}
                event["attrs"] = json.dumps({**told, "counters": counts})
                if untold:
                    rows.append(self._row({"ts": event["ts"], "k": 303, "n": untold}, seq))
                    counts["303"] = counts.get("303", 0) + 1
                    event["attrs"] = json.dumps({**told, "counters": counts})
                    seq += 1
                    untold = 0
            rows.append(self._row(event, seq))
            counts[str(event["k"])] = counts.get(str(event["k"]), 0) + event.get("w", 1)
            seq += 1
        return rows

    def _row(self, event: Row, seq: int) -> Row:
        row: Row = dict.fromkeys(COLUMNS)
        row |= event
        return row | {"v": 1, "node": self.node, "boot": self.boot, "seq": seq}


class Case:
    """The processes of one small cluster; ids of different cases never meet."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.processes: list[Process] = []

    def node(self, role: str) -> list[tuple[int, int, Process]]:
        """(from, to, process) of each life of a node: some restart, some began a day earlier."""
        chance = self.chance
        name = f"c{self.seed}.{role}.{len(self.processes)}"
        skew = chance.choice([0, 0, 0, -1_500_000, 2_000_000])
        starts = sorted(chance.randrange(DAY_US) for _ in range(chance.randrange(3)))
        if chance.random() < 0.4:
            starts = [-3_600_000_000, *starts]
        starts = starts or [chance.randrange(3_600_000_000)]
        lives: list[tuple[int, int, Process]] = []
        for begin, end in zip(starts, [*starts[1:], DAY_US], strict=True):
            process = Process(name, DAY_START_US + begin, skew)
            first = DAY_START_US + max(begin, 3_000_000)
            # Some die long before they come again.
            last = DAY_START_US + end - 3_000_000
            if chance.random() < 0.3:
                last = max(first + 1, (first + last) // 2)
            if last <= first:
                continue
            lives.append((first, last, process))
            self.processes.append(process)
            if begin >= 0:
                process.emit(first, 300, {"version": "1"})
            for at in range(first + 60_000_000, last, chance.choice([9, 40, 99]) * 600_000_000):
                process.emit(at, 302)
            if chance.random() < 0.4:
                process.emit(last, 301, code=0)
        return lives

    def rows(self) -> list[Row]:
        chance = self.chance
        loss = chance.choice([0.0, 0.02, 0.2])
        rows = [row for process in self.processes for row in process.rows(chance, loss=loss)]
        chance.shuffle(rows)
        return [row for row in rows if DAY_START_US <= row["ts"] < DAY_START_US + DAY_US]

    def big(self) -> int:
        return self.chance.randrange(-(2**62), 2**62)


def mid_of(at_us: int, chance: random.Random) -> str:
    return f"{at_us // 1_000_000 * 1000:012x}{chance.randrange(16**20):020x}"


def push(case: Case, messages: int) -> None:
    """Messages through their milestones, with several nodes taking part."""
    chance = case.chance
    lives = [life for _ in range(3) for life in case.node("push")]
    apps = [None, case.big(), case.big()]
    for _ in range(messages):
        first, last, process = chance.choice(lives)
        at = chance.randrange(first, last)
        mid = mid_of(at, chance)
        ttl = chance.choice([0, 0, 60, 3600, 86_400, 2_592_000])
        app = chance.choice(apps)
        walk = chance.choice(MILESTONE_WALKS)
        if chance.random() < 0.1:  # a bug: any order of any milestones
            walk = tuple(chance.randrange(15) for _ in range(chance.randrange(1, 5)))
        for k in walk:
            speaker = process if chance.random() < 0.6 else chance.choice(lives)[2]
            columns: Row = {
                0: {"ttl": ttl, "size": chance.randrange(4096), "via": "webpush", "app": app},
                1: {"flag": chance.random() < 0.2},
                3: {"peer": chance.choice(lives)[2].node},
                5: {"via": chance.choice(["fcm", "apns"]), "code": 200, "dur": 1000},
                6: {"path": chance.choice([0, 1])},
                12: {"errno": 110},
            }.get(k, {})
            for _ in range(2 if chance.random() < 0.05 else 1):  # now and then it happens twice
                speaker.emit(at, k, mid=mid, **columns)
            at += int(10 ** chance.uniform(1, 10.5)) if chance.random() < 0.9 else 0


def connections(case: Case, count: int) -> None:
    chance = case.chance
    lives = [life for _ in range(2) for life in case.node("connect")]
    agents = [case.big() for _ in range(max(2, count // 4))]
    for cid in range(count):
        first, last, process = chance.choice(lives)
        at = chance.randrange(first, last)
        agent = chance.choice(agents)
        ends = at + int(10 ** chance.uniform(4, 10.8))
        if chance.random() < 0.9:
            process.emit(at, 20, cid=cid, iph=case.big())
        if chance.random() < 0.9:
            hello_at = at + chance.randrange(100_000)
            browsers = {"os": chance.choice(["Linux", "Windows"]), "browser": "Firefox"}
            process.emit(hello_at, 21, browsers, cid=cid, uah=agent, flag=chance.random() < 0.2)
            for _ in range(chance.randrange(3)):
                process.emit(
                    hello_at + 5, 27, uah=agent, n=chance.randrange(9),
                    size=chance.randrange(20_000), dur=900,
                )  # fmt: skip
        else:
            process.emit(at + 7, 22, cid=cid, code=401)
        if chance.random() < 0.1:
            process.emit(at + 9, 26, cid=cid, flag=chance.random() < 0.5)
        if ends < last and chance.random() < 0.9:
            for _ in range(2 if chance.random() < 0.05 else 1):
                process.emit(ends, 29, cid=cid, dur=ends - at, code=1000, uah=agent)
            if chance.random() < 0.2:
                process.emit(ends, chance.choice([32, 33]), uah=agent, n=chance.randrange(1, 9))
        if chance.random() < 0.05:
            process.emit(at + 11, 30, uah=agent, peer=process.node)
            process.emit(at + 12, 31, uah=agent, code=2)


def queues(case: Case, count: int) -> None:
    chance = case.chance
    lives = case.node("queue")
    slots = [chance.randrange(4096) for _ in range(6)]
    for _ in range(count):
        first, last, process = chance.choice(lives)
        at = chance.randrange(first, last)
        slot = chance.choice(slots)
        k = chance.choice([100, 101, 102, 103, 103, 103, 104, 105, 106, 107, 109, 112, 130, 120])
        columns: Row = {"slot": slot}
        if k == 130:
            columns |= {"n": chance.randrange(50), "size": chance.randrange(10**7)}
            process.emit(
                at, k, {"messages": chance.randrange(90), "ops_in": 1, "ops_out": 2}, **columns
            )
            continue
        if chance.random() < 0.8:
            columns["n"] = chance.randrange(1, 40)
        if k in (103, 105, 106):
            columns |= {
                "size": chance.randrange(10**6),
                "code": chance.choice([0, 0, 0, 1, 2, 3, 4, 9]),
            }
        if k == 120:
            columns |= {"peer": process.node, "code": 0}
        if chance.random() < 0.1:
            columns["w"] = 4
        process.emit(at, k, **columns)


def parties(case: Case, count: int) -> None:
    chance = case.chance
    lives = [life for _ in range(2) for life in case.node("presence")]
    groups = [case.big() for _ in range(5)]
    totals = ("out", "acked", "dropped", "superseded", "outstanding", "retried", "redelivered")
    for first, last, process in lives:
        sums = dict.fromkeys(totals, chance.randrange(5))
        for at in range(first, last, 7_700_000_000):
            sums = {name: value + chance.randrange(9) for name, value in sums.items()}
            process.emit(at, 208, sums)
    for _ in range(count):
        first, last, process = chance.choice(lives)
        at = chance.randrange(first, last)
        ids: Row = {"party": chance.choice(groups), "sess": case.big()}
        client = case.big()
        ends = at + int(10 ** chance.uniform(5, 10.8))
        seq = chance.randrange(100)
        if chance.random() < 0.9:
            started: Row = {"seq": seq, "epoch": 1, "device_sessions": 1, "auth": True}
            if chance.random() < 0.8:
                started["ttl_ms"] = chance.choice([10_000, 120_000, 3_600_000])
            for _ in range(2 if chance.random() < 0.03 else 1):
                process.emit(
                    at, 200, started, n=chance.choice([1, 3, 9, 40, 90]), cli=client, **ids
                )
        holder = process
        if chance.random() < 0.4:
            at += chance.randrange(10**9)
            process.emit(at, 202, code=1, n=chance.randrange(4), **ids)
            if chance.random() < 0.7:
                holder = chance.choice(lives)[2]
                holder.emit(
                    at + 500, 203, {"how": "attach", "resync": False},
                    dur=500, n=chance.randrange(4), **ids,
                )  # fmt: skip
        for _ in range(chance.randrange(3)):
            msg = case.big()
            holder.emit(at + 700, 205, {"type": "say", "seq": 1}, msg=msg, n=3, size=10, **ids)
            took = int(10 ** chance.uniform(1, 8))
            for _ in range(2 if chance.random() < 0.1 else 1):
                w: Row = {"w": 16} if chance.random() < 0.5 else {}
                holder.emit(at + 900, 207, msg=msg, n=1, dur=took, **w, **ids)
        if chance.random() < 0.1:
            holder.emit(at, 210, {"what": "rate"}, code=8)
        if ends < last and chance.random() < 0.8:
            acked = chance.randrange(9)
            left: Row = {
                "seq": seq + chance.randrange(-1, 9), "out": acked + chance.randrange(-1, 4),
                "acked": acked, "retried": 1, "dropped": 0, "superseded": 0, "resumes": 0,
            }  # fmt: skip
            for _ in range(2 if chance.random() < 0.03 else 1):
                holder.emit(
                    ends, 201, left, cli=client, code=chance.randrange(5), dur=ends - at, **ids
                )


def requests(case: Case, count: int) -> None:
    """What endpoints answered, what stores report."""
    chance = case.chance
    lives = case.node("endpoint")
    apps = [None, case.big(), case.big()]
    for _ in range(count):
        first, last, process = chance.choice(lives)
        at = chance.randrange(first, last)
        good = chance.random() < 0.7
        process.emit(
            at, 40, {"sub": case.big()}, code=201 if good else 404, errno=0 if good else 102,
            size=chance.randrange(4096), ttl=60, dur=int(10 ** chance.uniform(2, 6)),
            app=chance.choice(apps), chh=chance.randrange(40), **({"w": 16} if good else {}),
        )  # fmt: skip
        if not good:
            process.emit(at, 41, errno=109, app=chance.choice(apps))
        if chance.random() < 0.2:
            process.emit(
                at, 80, {"table": chance.choice(["router", "messages"]), "op": "read"},
                n=chance.randrange(1, 50), size=chance.randrange(9999), dur=100, code=0,
            )  # fmt: skip
        if chance.random() < 0.2:
            process.emit(at, chance.choice([23, 24]), uah=case.big(), chh=case.big(), code=200)
        if chance.random() < 0.2:
            process.emit(at, chance.choice([70, 72, 73, 74]), uah=case.big(), via="fcm")


def day_of_trouble(seeds: range, size: int = 40) -> list[Row]:
    """Everything at once, for all seeds; each seed's nodes carry its number."""
    rows: list[Row] = []
    for seed in seeds:
        case = Case(seed)
        for part in (push, connections, queues, parties, requests):
            part(case, case.chance.randrange(1, size))
        rows += case.rows()
    return rows
