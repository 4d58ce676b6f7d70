"""Job `forget`: removes all rows about some ids from the lake and writes a receipt.

Input: hashes of the ids, by column. Outputs: every table with rows of single clients.
Rule 1: the messages of a client are found through its events, so `events` is rewritten last: a run
        after a crash still finds them.
Rule 2: the caller has brought all consumers up to date, so none reads a removed file again, and
        removed files are deleted at once.
Rule 3: at the end all tables are read again; a remaining row is an error.

Idempotence: files with such rows are replaced by files without them; a second run finds none.
Totals without identifiers are kept. Without `apply`, rows are only counted.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.base.errors import WaystationError
from waystation.pipeline.delta_table import Handle
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import vacuum
from waystation.pipeline.results import CONN_SESSIONS, PARTY_SESSIONS, REL_LOSS
from waystation.pipeline.schema import EVENTS, MSG, MSG_INC, QUARANTINE, TableSpec

TABLES = (MSG, MSG_INC, REL_LOSS, CONN_SESSIONS, PARTY_SESSIONS, QUARANTINE, EVENTS)


class NotForgottenError(WaystationError):
    """Rows of the ids remain, so no receipt is written."""

    label = "not_forgotten"


class Receipt(msgspec.Struct, frozen=True):
    table: str
    files: int
    rows: int
    version_before: int
    version_after: int


def run(ctx: Context, hashes: Mapping[str, set[int]], *, apply: bool) -> list[Receipt]:
    """`hashes` maps columns of the contract (uah, chh, qh, party, cli, sess) to values."""
    mids = _messages(ctx.lake.table(EVENTS).open(), hashes)
    there = [spec for spec in TABLES if ctx.lake.table(spec).exists()]
    receipts = [_from_table(ctx, spec, hashes, mids, apply=apply) for spec in there]
    if apply:
        vacuum.run(ctx, there, apply=True, at_once=True)
        for spec in there:
            if not ctx.lake.read(spec).where(_about(spec, hashes, mids)).isEmpty():
                raise NotForgottenError(f"{spec.name} still has rows of the ids")
    return receipts


def _from_table(
    ctx: Context,
    spec: TableSpec,
    hashes: Mapping[str, set[int]],
    mids: Sequence[str],
    *,
    apply: bool,
) -> Receipt:
    handle = ctx.lake.table(spec).open()
    about = _about(spec, hashes, mids)
    counts = handle.files_with(about)
    files = list(counts)
    if apply and files:
        name = ctx.new_run()
        rest = handle.frame(files).where(~F.coalesce(about, F.lit(False)))
        handle.swap(files, handle.write(rest, name), name)
    after = ctx.lake.table(spec).open().version
    return Receipt(spec.name, len(files), sum(counts.values()), handle.version, after)


def _messages(events: Handle, hashes: Mapping[str, set[int]]) -> list[str]:
    """Messages to and from the ids; of one client, so they fit into the driver's memory."""
    found: DataFrame = (
        events.read()
        .where(F.col("mid").isNotNull() & _about(EVENTS, hashes, ()))
        .select("mid")
        .distinct()
    )
    return [row.mid for row in found.collect()]


def _about(spec: TableSpec, hashes: Mapping[str, set[int]], mids: Sequence[str]) -> Column:
    names = set(spec.data.names)
    conditions = [
        F.col(name).isin(*values) for name, values in hashes.items() if name in names and values
    ]
    if spec is QUARANTINE:  # a rejected line may still contain the ids
        conditions += [
            F.col("line").contains(str(value)) for values in hashes.values() for value in values
        ]
    if "mid" in names and mids:
        conditions.append(F.col("mid").isin(*mids))
    return reduce(lambda a, b: a | b, conditions, F.lit(False))
