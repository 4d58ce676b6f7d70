"""A plan that evens out the load of the servers of queues, for `cluster move --plan`.

Input: `slot_minutely` of a window, and a file with servers and the slots they own. Output: a plan
as JSON, and its moves in `slot_plan`.
Progress: none; a plan is a pure function of its input, and its name is a hash of its moves.
Idempotence: the same plan is written once a day.
Cost: one pass over the minutes of the window; the planning itself runs here, in milliseconds.
"""

import datetime as dt

import msgspec
from pyspark.sql import functions as F

from waystation.base.errors import RejectedError
from waystation.pipeline.gold import SLOT_MINUTELY, SLOT_PLAN
from waystation.pipeline.job import Context
from waystation.pipeline.rebalance import Plan, Server, Slot, rebalance
from waystation.pipeline.transforms import slots

NAME = "rebalance"


class ServersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"servers": [{"name": "q1", "capacity": 1.0}], "owners": {"0-2047": "q1", "2048": "q1"}}`"""

    servers: tuple[Server, ...]
    owners: dict[str, str]


class BadServersError(RejectedError):
    """The file does not say who owns the slots."""

    label = "bad_servers"


def read_servers(text: bytes) -> tuple[list[Server], dict[int, str]]:
    """Servers, and the owner of each slot; ranges of slots are written `first-last`."""
    try:
        file = msgspec.json.decode(text, type=ServersFile)
    except msgspec.MsgspecError as exc:
        raise BadServersError(f"servers: {exc}") from exc
    owners: dict[int, str] = {}
    for key, owner in file.owners.items():
        first, dash, last = key.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise BadServersError(f"{key!r} is no slot and no range of slots")
        for slot in range(int(first), int(last if dash else first) + 1):
            if slot in owners:
                raise BadServersError(f"slot {slot} has two owners")
            owners[slot] = owner
    return list(file.servers), owners


def run(
    ctx: Context,
    servers: list[Server],
    owners: dict[int, str],
    *,
    until: dt.date | None = None,
    window_days: int = 1,
    tolerance: float = 0.05,
    wave_bytes_max: int = 1 << 30,
) -> Plan:
    """By the load of `window_days` up to `until`, by default the newest day that there is."""
    minutes = ctx.lake.table(SLOT_MINUTELY).open()
    known = sorted(minutes.partition_values("date"))
    last = until or (dt.date.fromisoformat(known[-1]) if known else ctx_today(ctx))
    window = {(last - dt.timedelta(days=n)).isoformat() for n in range(window_days)}
    settings = ctx.settings
    weights = slots.weights(
        minutes.read(date=window),
        minutes=1440 * window_days,
        per_op=settings.weight_per_op,
        per_stored_mb=settings.weight_per_stored_mb,
        per_mb=settings.weight_per_mb,
    )
    load = [
        Slot(row.slot, row.weight, row.stored_bytes)
        for row in weights.orderBy(F.col("slot")).collect()
    ]
    plan = rebalance(load, owners, servers, tolerance=tolerance, wave_bytes_max=wave_bytes_max)
    _keep(ctx, plan, last)
    return plan


def ctx_today(ctx: Context) -> dt.date:
    return dt.datetime.fromtimestamp(ctx.clock.now_ms() / 1000, dt.UTC).date()


def _keep(ctx: Context, plan: Plan, day: dt.date) -> None:
    """The plan's moves take the place of an older plan's of the same day."""
    out = ctx.lake.table(SLOT_PLAN).open()
    rows = [
        {
            "day": day,
            "plan": plan.plan,
            "slot": move.slot,
            "source": move.from_,
            "target": move.to,
            "weight": move.weight,
            "bytes": move.bytes,
            "wave": move.wave,
            "reason": move.reason,
        }
        for move in plan.moves
    ]
    run_name = ctx.new_run()
    partition = {"date": day.isoformat()}
    staged = out.write_rows(rows, run_name, partition) if rows else []
    out.swap(out.files(date={day.isoformat()}), staged, run_name)
