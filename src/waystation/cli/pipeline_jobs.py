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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the report to.")] = Path(
        "report"
    ),
    day: DateOption = None,
    first: FromOption = None,
    end: ToOption = None,
    form: Annotated[
        Literal["html", "json", "csv", "parquet"],
        typer.Option("--format", help="An HTML page, or its tables as files."),
    ] = "html",
) -> None:
    """Write the report of the days given (default: the last month) as a page or as tables."""
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
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSON file with the servers and the slots that each owns.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="File to write the plan to.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--date", metavar="D", help="Last day of load to use (default: the newest)."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Days of load to use.")] = 1,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Relative excess of load that is accepted.")
    ] = 0.05,
    max_bytes: Annotated[int, typer.Option(min=1, help="Most bytes to copy in one wave.")] = 1
    << 30,
) -> None:
    """Plan slot moves that even out the measured load, for `cluster move --plan`."""
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
