"""Job `nodes`: events per node, repeated events, and comparison with the nodes' counters.

Input: `events` of due days. Outputs: `rel_nodes`, `rel_repeats`, `rel_reconcile`, `rel_sequence`.
Progress: `nodes` in each output is the version of `events` that was read.
Idempotence: days are computed whole and replaced.
Cost: four passes over a few columns of a day's events.
"""

from pyspark.sql import functions as F

from waystation.pipeline.due_days import Days, DaysRun
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.quality import at_most, record
from waystation.pipeline.results import REL_NODES, REL_RECONCILE, REL_REPEATS, REL_SEQUENCE
from waystation.pipeline.transforms import reliability
from waystation.pipeline.transforms.reconcile import reconcile, sequence

NAME = "nodes"
UNEXPLAINED_SHARE_MAX = 0.0001


def run(ctx: Context, days: Days = None) -> JobResult:
    work = DaysRun(ctx, NAME, (REL_NODES, REL_REPEATS, REL_RECONCILE, REL_SEQUENCE), asked=days)
    due = work.due()
    if not due:
        return work.noop()
    events = work.read(*due)
    work.put(REL_NODES, reliability.by_node(events))
    work.put(REL_REPEATS, reliability.repeats(events))
    compared = work.put(REL_RECONCILE, reconcile(events))
    numbered = work.put(REL_SEQUENCE, sequence(events))
    work.done(*due)
    off = F.when(~F.col("explained"), F.abs(F.col("counted") - F.col("found")))
    sums = compared.agg(F.sum("counted").alias("counted"), F.sum(off).alias("off")).first()
    assert sums is not None
    counted, unexplained = sums.counted or 0, sums.off or 0
    share = unexplained / counted if counted else 0.0
    check = at_most("reconcile", "warn", share, UNEXPLAINED_SHARE_MAX, f"{unexplained} events")
    record(ctx, REL_RECONCILE.name, work.name, [check])
    holes = numbered.agg(F.sum("missing").alias("missing")).first()
    assert holes is not None
    record(ctx, REL_SEQUENCE.name, work.name, [at_most("sequence", "warn", holes.missing or 0)])
    return work.commit()
