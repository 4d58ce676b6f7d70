"""Data checks of jobs: results go to the table `dq`.

Rule 1: a failed check of level `stop` ends the job before its commit; level `warn` is only
        recorded. Every result is kept.
Rule 2: `dq` is written without progress: results of a run that died stay, marked by its `run`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from waystation.base.errors import RejectedError
from waystation.base.numbers import significant
from waystation.pipeline.job_context import Context
from waystation.pipeline.schema import DQ

Level = Literal["stop", "warn"]


class QualityStopError(RejectedError):
    """A `stop` check failed; nothing was committed."""

    label = "quality_stop"

    def __init__(self, failed: "Sequence[Check]") -> None:
        super().__init__("; ".join(check.sentence for check in failed))
        self.failed = tuple(failed)


class Check(msgspec.Struct, frozen=True):
    name: str
    level: Level
    value: float
    bound: float
    ok: bool
    note: str = ""

    @property
    def sentence(self) -> str:
        note = f" ({self.note})" if self.note else ""
        value, bound = significant(self.value, 6), significant(self.bound, 6)
        return f"{self.name} is {value}, allowed: {bound}{note}"


def at_most(name: str, level: Level, value: float, bound: float = 0.0, note: str = "") -> Check:
    return Check(name, level, float(value), float(bound), value <= bound, note)


def equal(name: str, level: Level, value: float, wanted: float, note: str = "") -> Check:
    return Check(name, level, float(value), float(wanted), value == wanted, note)


def record(ctx: Context, table: str, run: str, checks: Sequence[Check]) -> None:
    """Records the results, then raises `QualityStopError` if a `stop` check failed."""
    if not checks:
        return
    now_us = ctx.clock.now_us()
    rows = [
        {
            "at": now_us,
            "run": run,
            "table": table,
            "check": check.name,
            "level": check.level,
            "value": check.value,
            "bound": check.bound,
            "ok": check.ok,
            "note": check.note,
        }
        for check in checks
    ]
    handle = ctx.lake.table(DQ).open()
    date = datetime.fromtimestamp(now_us / 1_000_000, UTC).date().isoformat()
    name = f"{run}-{table}-{ctx.new_run()}"
    handle.append(handle.write_rows(rows, name, {"date": date}), name, {})
    for check in checks:
        if not check.ok:
            ctx.log.warning("check.failed", table=table, check=check.name, level=check.level)
    failed = [check for check in checks if check.level == "stop" and not check.ok]
    if failed:
        raise QualityStopError(failed)
