"""The tables of a report: aggregates of result tables, in a fixed order.

Rule 1: a report reads result tables only, so a month takes seconds, and every number can be queried
        from the lake again.
Rule 2: senders after the largest ones are one row, `other`; so are groups of fewer than `K_MIN`
        user agents, wherever a row could identify a person.
Rule 3: hashes are printed as 16 hex digits.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline import results
from waystation.pipeline.job_context import Context
from waystation.pipeline.report.rollups import (
    Row,
    nothing,
    only,
    quantile_rows,
    rollups,
    rows_of,
    without,
    zero,
)
from waystation.pipeline.schema import DQ, EVENTS, QUARANTINE, TableSpec
from waystation.pipeline.transforms import usage
from waystation.pipeline.transforms.fold import VIA_CODES
from waystation.pipeline.transforms.reliability import MILESTONE_NAMES
from waystation.telemetry.contract import KINDS

Tables = dict[str, list[Row]]

APPS_MAX = 20
LOSSES_MAX = 50
POINTS_MAX = 288
K_MIN = 20
CHECK_DAYS = 7
QUERIES_AT_ONCE = 4
PATHS = {0: "direct", 1: "stored", 2: "bridge", None: "not sent"}
_VIA = {code: name for name, code in VIA_CODES.items()}
_GOOD = ("delivered", "bridged")


def collect(ctx: Context, days: Sequence[dt.date]) -> Tables:
    """All tables of a report over `days`."""
    return _Collection(ctx, days).tables()


class _Collection:
    def __init__(self, ctx: Context, days: Sequence[dt.date]) -> None:
        self._ctx = ctx
        self._days = sorted(days)
        self._texts = {day.isoformat() for day in days}

    def tables(self) -> Tables:
        parts: tuple[Callable[[], Tables], ...] = (
            self._reliability,
            self._latency,
            self._loss,
            self._nodes,
            self._connections,
            self._slots,
            self._presence,
            self._capacity,
            self._habits,
            self._health,
        )
        found: Tables = {"days": [{"day": day.isoformat()} for day in self._days]}
        # Most of a small query's time is planning, so queries run concurrently.
        with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
            asked = [pool.submit(part) for part in parts]
            for one in asked:
                found |= one.result()
        return found

    def _read(self, spec: TableSpec) -> DataFrame:
        handle = self._ctx.lake.table(spec).open()
        files = handle.files(**{spec.partition_names[0]: self._texts})
        # An explicitly empty frame is answered without a Spark job.
        return handle.frame(files).where(F.lit(bool(files)))

    # Messages

    def _reliability(self) -> Tables:
        rows = self._read(results.REL_HOURLY)
        good = F.sum(F.when(F.col("outcome").isin(*_GOOD), F.col("messages")))
        sent_at_least = F.sum(
            F.when(F.col("outcome").isin(*_GOOD), F.col("messages")).otherwise(
                F.col("reached_transmitted")
            )
        )
        sums = (
            F.sum("messages").alias("messages"),
            zero(good).alias("delivered_or_bridged"),
            zero(sent_at_least).alias("success_mozilla"),
            zero(F.sum(F.when(F.col("outcome") == "lost", F.col("messages")))).alias("lost"),
            zero(F.sum(F.when(F.col("outcome") == "expired", F.col("messages")))).alias("expired"),
            F.sum("gap").alias("gap"),
            F.sum("bytes").alias("bytes"),
        )
        reached = [f"reached_{name}" for name in MILESTONE_NAMES]
        found = rollups(
            rows,
            {
                "total": (),
                "outcomes": ("outcome",),
                "hourly": ("day", "hour", "outcome"),
                "apps": ("app",),
                "paths": ("via", "path"),
            },
            *sums,
            *(zero(F.sum(name)).alias(name) for name in reached),
        )
        milestones = next(iter(found["total"]), dict.fromkeys(reached, 0))
        apps = without(found["apps"], reached)
        apps.sort(key=lambda row: (-row["messages"], str(row["app"])))
        return {
            "total": without(found["total"], reached),
            "outcomes": only(found["outcomes"], "outcome", "messages"),
            "hourly": only(found["hourly"], "day", "hour", "outcome", "messages"),
            "funnel": [
                {"milestone": name, "messages": milestones[f"reached_{name}"]}
                for name in MILESTONE_NAMES
            ],
            "apps": [row | {"app": _hash(row["app"], "no key")} for row in apps[:APPS_MAX]]
            + _other(apps[APPS_MAX:]),
            "paths": [
                row | {"via": _VIA.get(row["via"], "other"), "path": PATHS[row["path"]]}
                for row in without(found["paths"], reached)
            ],
        }

    def _latency(self) -> Tables:
        buckets = self._read(results.REL_LATENCY)
        whole = buckets.where(F.col("measure") == "e2e")
        keys = ("measure", "path", "day", "hour")
        asked = {"latency": ("measure",), "latency_paths": ("path",), "hours": ("day", "hour")}
        # One query, with nulls in place of the keys that a grouping does not use.
        of_all = [
            (buckets if by == ("measure",) else whole).select(
                F.lit(what).alias("what"),
                *(F.col(key) if key in by else nothing(buckets, key) for key in keys),
                "bucket",
                "n",
                "max_us",
            )
            for what, by in asked.items()
        ]
        rows = quantile_rows(reduce(DataFrame.unionAll, of_all), "what", *keys)
        found = {
            what: without(
                [row for row in rows if row["what"] == what],
                ["what", *(key for key in keys if key not in by)],
            )
            for what, by in asked.items()
        }
        counts = rollups(
            buckets,
            {"buckets": ("measure", "bucket"), "clamped": ("measure",)},
            F.sum("n").alias("n"),
            F.sum("clamped").alias("clamped"),
        )
        of_whole = [row for row in counts["buckets"] if row["measure"] == "e2e"]
        return {
            "latency": found["latency"],
            "latency_paths": [row | {"path": PATHS[row["path"]]} for row in found["latency_paths"]],
            "latency_hours": found["hours"],
            "latency_buckets": only(of_whole, "bucket", "n"),
            "clamped": only(counts["clamped"], "measure", "clamped"),
        }

    def _loss(self) -> Tables:
        rows = self._read(results.REL_LOSS).groupBy("state", "node", "peer")
        lost = rows_of(rows.agg(F.count(F.lit(1)).alias("messages")), "state", "node", "peer")
        lost.sort(key=lambda row: -row["messages"])
        return {
            "losses": [row | {"state": KINDS[row["state"]].name} for row in lost[:LOSSES_MAX]],
            "repeats": [
                row | {"k": KINDS[row["k"]].name}
                for row in rows_of(
                    self._read(results.REL_REPEATS)
                    .groupBy("k")
                    .agg(*(F.sum(name).alias(name) for name in ("n", "messages", "repeated"))),
                    "k",
                )
            ],
        }

    def _nodes(self) -> Tables:
        told = {0: "received", 1: "stored", 6: "transmitted", 8: "delivered", 303: "gap"}
        rows = self._read(results.REL_NODES)
        nodes = rows.groupBy("node").agg(
            F.sum("events").alias("events"),
            *(
                zero(F.sum(F.when(F.col("k") == code, F.col("n")))).alias(name)
                for code, name in told.items()
            ),
        )
        off = F.when(~F.col("explained"), F.abs(F.col("counted") - F.col("found")))
        compared = (
            self._read(results.REL_RECONCILE)
            .groupBy("node")
            .agg(
                F.sum("counted").alias("counted"),
                F.sum("found").alias("found"),
                zero(F.sum(off)).alias("unexplained"),
            )
        )
        holes = (
            self._read(results.REL_SEQUENCE).groupBy("node").agg(F.sum("missing").alias("missing"))
        )
        both = nodes.join(holes, on="node", how="left").withColumn(
            "missing", zero(F.col("missing"))
        )
        return {"nodes": rows_of(both, "node"), "reconcile": rows_of(compared, "node")}

    # Connections, slots, parties

    def _step(self) -> int:
        """Minutes per point of a line."""
        whole = 1440 * max(len(self._days), 1)
        return next(step for step in (5, 10, 15, 30, 60, 120, 240, 480, 1440) if (
            whole / step <= POINTS_MAX or step == 1440
        ))  # fmt: skip

    def _points(self, of_minutes: DataFrame, *columns: Column) -> list[Row]:
        at = F.floor(F.col("minute") / self._step()).cast("int") * self._step()
        return rows_of(of_minutes.groupBy("day", at.alias("minute")).agg(*columns), "day", "minute")

    def _connections(self) -> Tables:
        sessions = self._read(results.CONN_SESSIONS)
        families = rows_of(
            sessions.where("os is not null")
            .groupBy("os", "browser")
            .agg(
                F.count_distinct("uah").alias("user_agents"), F.count(F.lit(1)).alias("connections")
            ),
            "os",
            "browser",
        )
        hours = self._read(results.CONN_HOURLY)
        names = [
            name for name in results.CONN_HOURLY.data.names if name not in ("day", "hour", "node")
        ]
        median = F.percentile("dur", 0.5) / F.lit(1e6)
        return {
            "connection_minutes": self._points(
                self._read(results.CONN_MINUTELY),
                F.max(F.coalesce("peak", "present")).alias(
                    "peak"
                ),  # rows of earlier versions have no peak
                F.sum("opened").alias("opened"),
            ),
            "connection_ends": rows_of(
                sessions.groupBy("status", "code").agg(
                    F.count(F.lit(1)).alias("connections"),
                    median.alias("median_s"),
                    (F.percentile("away_us", 0.5) / F.lit(1e6)).alias("median_away_s"),
                ),
                "status",
                "code",
            ),
            "families": _few(families),
            "connection_totals": [
                {"what": name, "n": count}
                for row in rows_of(hours.agg(*(zero(F.sum(name)).alias(name) for name in names)))
                for name, count in row.items()
            ],
        }

    def _slots(self) -> Tables:
        rows = self._read(results.SLOT_MINUTELY)
        last = F.max(
            F.when(F.col("stored_bytes").isNotNull(), F.struct("day", "minute", "stored_bytes"))
        )
        codes = [name for name in results.SLOT_MINUTELY.data.names if name.startswith("sends_")]
        slots = rows_of(
            rows.groupBy("slot").agg(
                F.sum("ops").alias("ops"),
                F.sum("bytes").alias("bytes"),
                F.max("ops").alias("ops_minute_max"),
                last["stored_bytes"].alias("stored_bytes"),
                *(zero(F.sum(name)).alias(name) for name in codes),
            ),
            "slot",
        )
        plan = self._read(results.SLOT_PLAN).groupBy("day", "plan")
        return {
            "slots": without(slots, codes),
            "slot_sends": [
                {"result": name.removeprefix("sends_"), "n": sum(row[name] for row in slots)}
                for name in codes
            ],
            "slot_plans": rows_of(
                plan.agg(
                    F.count(F.lit(1)).alias("moves"),
                    F.sum("bytes").alias("bytes"),
                    (F.max("wave") + 1).alias("waves"),
                ),
                "day",
                "plan",
            ),
        }

    def _presence(self) -> Tables:
        sessions = self._read(results.PARTY_SESSIONS)
        whole = (
            self._read(results.PARTY_MINUTELY)
            .groupBy("day", "minute")
            .agg(
                F.coalesce(F.max("peak_of_all"), F.sum("present")).alias("peak"),
                F.sum("joined").alias("joined"),
            )
        )
        hours = self._read(results.PARTY_HOURLY)
        names = [
            name for name in results.PARTY_HOURLY.data.names if name not in ("day", "hour", "node")
        ]
        unbalanced = F.sum((F.coalesce("balanced", F.lit(True)) == F.lit(False)).cast("bigint"))
        return {
            "party_minutes": self._points(
                whole, F.max("peak").alias("peak"), F.sum("joined").alias("joined")
            ),
            "party_ends": rows_of(
                sessions.groupBy("status", "code").agg(
                    F.count(F.lit(1)).alias("sessions"),
                    (F.percentile("dur", 0.5) / F.lit(1e6)).alias("median_s"),
                    F.sum("resumes").alias("resumes"),
                    F.sum("redelivered").alias("redelivered"),
                    unbalanced.alias("unbalanced"),
                ),
                "status",
                "code",
            ),
            "party_latency": quantile_rows(
                self._read(results.PARTY_LATENCY).withColumn("measure", F.lit("ack")),
                "measure",
            ),
            "party_totals": [
                {"what": name, "n": count}
                for row in rows_of(hours.agg(*(zero(F.sum(name)).alias(name) for name in names)))
                for name, count in row.items()
            ],
        }

    # Capacity, and the pipeline itself

    def _capacity(self) -> Tables:
        minutes = self._read(results.CAP_MINUTELY)
        asked = minutes.where(F.col("resource").isin("notifications", "connects", "storage_checks"))
        step = self._step()
        at = F.floor(F.col("minute") / step).cast("int") * step
        return {
            "capacity_units": rows_of(
                self._read(results.CAP_UNITS).drop("date"), "day", "resource"
            ),
            "capacity_minutes": rows_of(
                asked.groupBy("day", at.alias("minute"), "resource").agg(
                    F.max("n").alias("busiest_minute")
                ),
                "day",
                "minute",
                "resource",
            ),
        }

    def _habits(self) -> Tables:
        made = self._ctx.lake.table(results.CAP_FORECAST).open()
        newest = sorted(made.partition_values("date"))[-1:]  # the newest forecast only
        found = rows_of(
            self._read(results.ABUSE).drop("date"),
            "day",
            "first_minute",
            "kind",
            "class",
            "key",
        )
        kept = self._ctx.lake.table(results.USAGE_SKETCHES).open()
        last = max(self._texts, default="")
        known = [day for day in kept.partition_values("date") if day <= last]
        return {
            "forecast": rows_of(made.read(date=newest).drop("date"), "resource", "target"),
            "abuse": [row | {"key": _key(row["class"], row["key"])} for row in found],
            "usage": rows_of(
                self._read(results.USAGE_DAILY)
                .groupBy("what", "detail")
                .agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes")),
                "what",
                "detail",
            ),
            "usage_windows": rows_of(usage.windows(kept.read(date=known)), "what", "days"),
        }

    def _health(self) -> Tables:
        made = self._ctx.lake.table(DQ).open()
        # Checks are in the partition of the day they ran, after the days that they are about.
        checks = made.read(date=sorted(made.partition_values("date"))[-CHECK_DAYS:])
        newest = F.max(F.struct("at", "value", "bound", "ok", "level")).alias("newest")
        held: list[Row] = []
        for spec in (EVENTS, QUARANTINE, *results.RESULT_TABLES):
            table = self._ctx.lake.table(spec)
            if table.exists():
                files = table.open().files(**{spec.partition_names[0]: self._texts})
                rows, size = sum(one.rows for one in files), sum(one.size_bytes for one in files)
                held.append({"table": spec.name, "rows": rows, "files": len(files), "bytes": size})
        return {
            "checks": rows_of(
                checks.groupBy("table", "check")
                .agg(newest)
                .select(
                    "table",
                    "check",
                    "newest.level",
                    "newest.value",
                    "newest.bound",
                    "newest.ok",
                ),
                "table",
                "check",
            ),
            "held": held,
        }


def _hash(value: int | None, missing: str) -> str:
    return missing if value is None else f"{value & (1 << 64) - 1:016x}"


def _key(kind: str, value: int) -> str:
    return str(value) if kind == "slot" else _hash(value, "")


def _other(rows: list[Row]) -> list[Row]:
    """Merges rows into one (rule 2)."""
    if not rows:
        return []
    sums = {name: sum(row[name] for row in rows) for name in rows[0] if name != "app"}
    return [{"app": f"other ({len(rows)})"} | sums]


def _few(families: list[Row]) -> list[Row]:
    """Merges groups of few user agents (rule 2)."""
    large = [row for row in families if row["user_agents"] >= K_MIN]
    small = [row for row in families if row["user_agents"] < K_MIN]
    if small:
        sums = {name: sum(row[name] for row in small) for name in ("user_agents", "connections")}
        large.append({"os": "other", "browser": "other"} | sums)
    return large
