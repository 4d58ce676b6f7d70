"""Job `rebalance`: plans slot moves that balance queue servers, for `cluster move --plan`.

Input: `slot_minutely` of a window, and a file with servers and the slots they own. Output: a plan
as JSON, and its moves in `slot_plan`.
Progress: none; a plan is a pure function of its input, and its name is a hash of its moves.
Idempotence: the same plan is written once a day.
Cost: one pass over the minutes of the window; planning takes milliseconds.
"""

import datetime as dt

import msgspec
from pyspark.sql import functions as F

from waystation.base.errors import RejectedError
from waystation.pipeline.job_context import Context
from waystation.pipeline.rebalance import Plan, PlanError, Server, Slot, rebalance
from waystation.pipeline.results import SLOT_MINUTELY, SLOT_PLAN
from waystation.pipeline.transforms import slots


class NodeSlots(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server, its relative capacity, and the slots it owns, as ranges."""

    node: int
    capacity: float = 1.0
    slots: tuple[tuple[int, int], ...] = ()


class NodesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"epoch": 7, "nodes": [{"node": 1, "capacity": 1.0, "slots": [[0, 4095]]}]}`, or only the
    list of nodes."""

    nodes: tuple[NodeSlots, ...]
    epoch: int | None = None


class BadNodesError(RejectedError):
    """The file is not a valid list of servers and slots."""

    label = "bad_nodes"


class Cluster(msgspec.Struct, frozen=True):
    servers: tuple[Server, ...]
    owners: dict[int, int]
    epoch: int | None = None


def read_nodes(text: bytes) -> Cluster:
    """Parses servers and the owner of each slot."""
    try:
        if text.lstrip().startswith(b"["):
            file = NodesFile(msgspec.json.decode(text, type=tuple[NodeSlots, ...]))
        else:
            file = msgspec.json.decode(text, type=NodesFile)
    except msgspec.MsgspecError as exc:
        raise BadNodesError(f"nodes: {exc}") from exc
    owners: dict[int, int] = {}
    for node in file.nodes:
        for first, last in node.slots:
            for slot in range(first, last + 1):
                if slot in owners:
                    raise BadNodesError(f"slot {slot} has two owners")
                owners[slot] = node.node
    servers = tuple(Server(node.node, node.capacity) for node in file.nodes)
    return Cluster(servers, owners, file.epoch)


def run(
    ctx: Context,
    cluster: Cluster,
    *,
    until: dt.date | None = None,
    window_days: int = 1,
    tolerance: float = 0.05,
    wave_bytes_max: int = 1 << 30,
) -> Plan:
    """Plans by the load of `window_days` up to `until`, by default the newest day."""
    minutes = ctx.lake.table(SLOT_MINUTELY).open()
    known = sorted(minutes.partition_values("date"))
    last = until or (dt.date.fromisoformat(known[-1]) if known else _today(ctx))
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
    try:
        plan = rebalance(
            load,
            cluster.owners,
            cluster.servers,
            tolerance=tolerance,
            epoch=cluster.epoch,
            wave_bytes_max=wave_bytes_max,
        )
    except PlanError as exc:
        raise BadNodesError(str(exc)) from exc
    _keep(ctx, plan, last)
    return plan


def _today(ctx: Context) -> dt.date:
    return dt.datetime.fromtimestamp(ctx.clock.now_ms() / 1000, dt.UTC).date()


def _keep(ctx: Context, plan: Plan, day: dt.date) -> None:
    """Writes the plan's moves, replacing an older plan of the same day."""
    out = ctx.lake.table(SLOT_PLAN).open()
    rows = [
        {
            "day": day,
            "plan": plan.plan,
            "slot": move.slot,
            "source": move.source,
            "target": move.target,
            "weight": move.load,
            "bytes": move.bytes,
            "wave": move.wave,
        }
        for move in plan.moves
    ]
    run_name = ctx.new_run()
    partition = {"date": day.isoformat()}
    staged = out.write_rows(rows, run_name, partition) if rows else []
    out.swap(out.files(date={day.isoformat()}), staged, run_name)
