"""`waystation pipeline`: what is made of the tables, for people and for the cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from .pipeline import days_between, opened, tell
from .pipeline_lake import DateOption, FromOption, ToOption
from .terminal import EXIT_USAGE, give_up, say

if TYPE_CHECKING:
    from .pipeline import Asked


def register(app: typer.Typer) -> None:
    for command in (report, rebalance):
        app.command()(command)


def report(
    ctx: typer.Context,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write it.")] = Path("report"),
    day: DateOption = None,
    first: FromOption = None,
    end: ToOption = None,
    form: Annotated[
        Literal["html", "json", "csv", "parquet"],
        typer.Option("--format", help="A page for people, or its tables."),
    ] = "html",
) -> None:
    """One page that tells what happened, or its tables; the last month without a day."""
    asked: Asked = ctx.obj
    days = days_between(day, first, end)
    with opened(asked, short=True) as context:
        from waystation.pipeline.job_context import attempt
        from waystation.pipeline.jobs import report as job

        tell(asked, attempt(context, lambda context: job.run(context, out, days, form)))


def rebalance(
    ctx: typer.Context,
    *,
    nodes: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Servers and the slots they own.")
    ],
    out: Annotated[Path | None, typer.Option(metavar="PLAN", help="File for the plan.")] = None,
    until: Annotated[
        str | None, typer.Option("--date", metavar="D", help="The last day; the newest.")
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Days of load to look at.")] = 1,
    tolerance: Annotated[float, typer.Option(min=0, help="What is even enough.")] = 0.05,
    max_bytes: Annotated[int, typer.Option(min=1, help="To copy in one wave.")] = 1 << 30,
) -> None:
    """Plan which slots move where, so that measured load is even; `cluster move --plan` does it."""
    asked: Asked = ctx.obj
    days = days_between(until, None, None)
    text = nodes.read_bytes()
    with opened(asked) as context:
        from waystation.pipeline.jobs import rebalance as job

        plan = job.run(
            context,
            job.read_nodes(text),
            until=days[0] if days else None,
            window_days=window,
            tolerance=tolerance,
            wave_bytes_max=max_bytes,
        )
    document = msgspec.json.format(msgspec.json.encode(plan), indent=1)
    if out is None or asked.as_json:
        say(document.decode())
    if out is not None:
        try:
            out.write_bytes(document + b"\n")
        except OSError as exc:
            give_up(f"{out}: {exc.strerror}", EXIT_USAGE)
        if not asked.as_json:
            say(
                f"{len(plan.moves)} slots move, {plan.moved_bytes:,} bytes; the most loaded server"
                f" then carries {plan.max_over_mean:.3f} of the mean,"
                f" {plan.max_over_mean_before:.3f} now"
            )
