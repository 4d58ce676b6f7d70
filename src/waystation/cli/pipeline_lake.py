"""`waystation pipeline`: the lake itself, from events to upkeep."""

import sys
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .pipeline import alone, days_between, need_spark, opened, origin, tell, tell_rows, would
from .terminal import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, give_up, say

if TYPE_CHECKING:
    from waystation.pipeline.job_context import Context, JobResult

    from .pipeline import Asked

# Names of the jobs over days, so that `--help` needs no Spark; a test compares them.
STEPS = (
    "fold",
    "merge",
    "reliability",
    "nodes",
    "conn",
    "slots",
    "presence",
    "capacity",
    "forecast",
    "abuse",
    "usage",
)

FollowOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Repeat at this interval until stopped.")
]
DateOption = Annotated[str | None, typer.Option("--date", metavar="D", help="One day (UTC).")]
FromOption = Annotated[str | None, typer.Option("--from", metavar="D", help="First day.")]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="D", help="The day after the last one.")
]
OddOption = Annotated[int, typer.Option(min=0, max=1000, help="Affected messages per thousand.")]
ApplyOption = Annotated[
    bool, typer.Option("--apply", help="Make the changes; without it, only count them.")
]


def register(app: typer.Typer) -> None:
    app.command("run")(run)
    app.command("ingest")(ingest)
    for name in STEPS:
        app.command(name, help=f"Run the job `{name}` alone, on new input or on the days given.")(
            _step_command(name)
        )
    for command in (compact, vacuum, rebuild, forget, generate, sql, ls, show, cat, doctor):
        app.command()(command)


def run(
    ctx: typer.Context,
    *,
    only: Annotated[
        str, typer.Option(metavar="JOB,…", help="Run only these jobs, in their usual order.")
    ] = "",
    until: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Stop after the job that fills this table.")
    ] = None,
    day: DateOption = None,
    follow: FollowOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the report (default: `report` in the data directory)."
        ),
    ] = None,
) -> None:
    """Run everything in order: ingest, each job with new input, the report."""
    asked: Asked = ctx.obj
    page = None if only or until else (out or asked.settings.data_dir / "report")
    names = [name.strip() for name in only.split(",") if name.strip()]
    days = days_between(day, None, None)
    with alone(asked), opened(asked) as context:
        while True:
            changed = _run_all(asked, context, names, until, days[0] if days else None)
            if page is not None and (changed or not (page / "report.html").exists()):
                _write_report(asked, context, page)
            if follow is None:
                return
            time.sleep(follow)


def _run_all(
    asked: "Asked", context: "Context", only: list[str], until: str | None, day: date | None
) -> bool:
    """Whether anything was new."""
    from waystation.pipeline.dag import STEPS as ALL
    from waystation.pipeline.dag import chosen, run_steps
    from waystation.pipeline.jobs import ingest as job

    steps = chosen(ALL, only=[name for name in only if name != "ingest"], until=until)
    changed = False
    if not only or "ingest" in only:
        result = job.drain(context, origin(asked))
        changed = result.state == "done"
        tell(asked, result)
    if only and not set(only) - {"ingest"}:
        return changed
    for result in run_steps(context, steps, day):
        changed = changed or result.state == "done"
        tell(asked, result)
    return changed


def _write_report(asked: "Asked", context: "Context", out: Path) -> None:
    from waystation.pipeline.job_context import attempt
    from waystation.pipeline.jobs import report as job

    tell(asked, attempt(context, lambda context: job.run(context, out)))
    if not asked.as_json:
        say(f"report       {out / 'report.html'}")


def ingest(
    ctx: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Ingest what is there, then stop (the default).")
    ] = False,
    follow: FollowOption = None,
    source: Annotated[
        Literal["segments", "kafka"] | None,
        typer.Option(
            help="Source of events (default: where servers with these settings write them)."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="Most bytes of segments per commit.")
    ] = None,
) -> None:
    """Read the event log, sealed segments or a Kafka topic, into the table `events`, each line
    exactly once."""
    import msgspec

    from .pipeline import Asked

    asked: Asked = ctx.obj
    if once and follow is not None:
        give_up("--once and --follow exclude each other", EXIT_USAGE)
    whence = origin(asked, source)
    with opened(asked) as context:
        from waystation.pipeline.jobs import ingest as job

        if max_bytes is not None:
            settings = msgspec.structs.replace(context.settings, batch_bytes_max=max_bytes)
            context = msgspec.structs.replace(context, settings=settings)
        while True:
            tell(asked, job.drain(context, whence))
            if follow is None:
                return
            time.sleep(follow)


def _step_command(name: str) -> Any:
    def command(
        ctx: typer.Context,
        *,
        day: DateOption = None,
        first: FromOption = None,
        end: ToOption = None,
    ) -> None:
        asked: Asked = ctx.obj
        days = days_between(day, first, end)
        with opened(asked, existing=True) as context:
            from waystation.pipeline.dag import STEPS as ALL
            from waystation.pipeline.job_context import attempt

            step = next(step for step in ALL if step.name == name)
            tell(asked, attempt(context, lambda context: step.run(context, days)))

    return command


def compact(ctx: typer.Context) -> None:
    """Merge the small files of each partition into a few large ones."""
    with opened(ctx.obj, existing=True) as context:
        from waystation.pipeline.all_tables import TABLES
        from waystation.pipeline.job_context import attempt
        from waystation.pipeline.jobs import compact as job

        tell(ctx.obj, attempt(context, lambda context: job.run(context, TABLES.values())))


def vacuum(
    ctx: typer.Context,
    *,
    apply: ApplyOption = False,
    now: Annotated[bool, typer.Option("--now", help="Delete removed files whatever their age.")] = (
        False
    ),
) -> None:
    """Drop partitions past their retention and delete files that no reader needs."""
    with opened(ctx.obj, existing=True) as context:
        from waystation.pipeline.all_tables import TABLES
        from waystation.pipeline.jobs import vacuum as job

        tell_rows(ctx.obj, job.run(context, TABLES.values(), apply=apply, at_once=now))
    would(apply=apply)


def rebuild(
    ctx: typer.Context,
    table: Annotated[str, typer.Argument(help="A table that a job computes.")],
    *,
    first: FromOption = None,
    end: ToOption = None,
) -> None:
    """Compute days of a table again from its input."""
    days = days_between(None, first, end)
    if days is None:
        give_up("rebuild wants --from and --to", EXIT_USAGE)
    with opened(ctx.obj, existing=True) as context:
        from waystation.pipeline.dag import STEPS as ALL
        from waystation.pipeline.job_context import attempt
        from waystation.pipeline.jobs import rebuild as job

        if table in {"msg", "msg_inc"}:
            tell(ctx.obj, attempt(context, lambda context: job.run(context, days)))
            return
        step = next((step for step in ALL if table in step.tables), None)
        if step is None:
            known = ", ".join(name for step in ALL for name in step.tables)
            give_up(f"no job computes {table!r}; there are {known}", EXIT_USAGE)
        tell(ctx.obj, attempt(context, lambda context: step.run(context, days)))


def forget(
    ctx: typer.Context,
    *,
    ids: Annotated[
        str, typer.Option(metavar="FILE", help="File with one id per line; - is stdin.")
    ] = "-",
    apply: ApplyOption = False,
) -> None:
    """Remove all rows about some clients (user agents, channels, parties) from the lake."""
    from waystation.app.data_dir import DataDir
    from waystation.app.keys import ensure_secrets, read_secret

    asked: Asked = ctx.obj
    text = sys.stdin.read() if ids == "-" else Path(ids).read_text(encoding="utf-8")
    data = DataDir(asked.settings.data_dir)
    if read_secret(data, "event_key") is None:
        give_up(f"{data.root} has no key of events: --data-dir names the server's directory")
    master = ensure_secrets(data)[0].event_key
    with opened(asked, existing=True) as context:
        from waystation.pipeline.dag import STEPS as ALL
        from waystation.pipeline.dag import run_steps
        from waystation.pipeline.id_hashes import hashes_of
        from waystation.pipeline.jobs import forget as job

        days = context.settings.events_keep_days
        hashes = hashes_of(text.split(), master, context.clock.now_ms(), days)
        if apply:  # so that nobody reads an old file again
            for result in run_steps(context, ALL):
                tell(asked, result)
        tell_rows(asked, job.run(context, hashes, apply=apply))
    would(apply=apply)


def generate(
    ctx: typer.Context,
    *,
    messages: Annotated[int, typer.Option(min=1, help="Number of messages.")] = 100_000,
    days: Annotated[int, typer.Option(min=1, help="Number of days they are spread over.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 1,
    out: Annotated[str, typer.Option(help="Folder for segments; empty: into the lake.")] = "",
    last: Annotated[
        str | None, typer.Option(metavar="D", help="Last day (default: today).")
    ] = None,
    clients: Annotated[
        int, typer.Option(min=0, help="Number of clients; 0: one per twenty messages.")
    ] = 0,
    apps: Annotated[int, typer.Option(min=1, help="Number of senders.")] = 50,
    repeats: OddOption = 0,
    late: OddOption = 0,
    disordered: OddOption = 0,
    endless: OddOption = 0,
    lossy: OddOption = 0,
    skew_ms: Annotated[int, typer.Option(min=0, help="How far one node's clock is behind.")] = 0,
    restarts: Annotated[int, typer.Option(min=0, help="Restarts of every node.")] = 0,
) -> None:
    """Generate events of realistic traffic whose results are known in advance.

    Of so many of a thousand messages the last event comes twice (--repeats), everything comes two
    days late (--late), two events change places (--disordered), the end is missing (--endless) or
    an event is lost and leaves a hole in the sequence numbers (--lossy).
    """
    from datetime import UTC, datetime

    from waystation.pipeline.traffic import Traffic

    end = date.fromisoformat(last) if last else datetime.now(UTC).date()
    traffic = Traffic(
        seed=seed,
        messages=messages,
        days=days,
        last_day=end,
        clients=clients,
        apps=apps,
        repeats=repeats,
        late=late,
        disordered=disordered,
        endless=endless,
        lossy=lossy,
        skew_ms=skew_ms,
        restarts=restarts,
    )
    with opened(ctx.obj) as context:
        from waystation.pipeline import generate as job
        from waystation.pipeline.job_context import attempt

        def make(context: "Context") -> "JobResult":
            if out:
                return job.to_segments(context, traffic, Path(out))
            return job.to_lake(context, traffic)

        tell(ctx.obj, attempt(context, make))


def sql(ctx: typer.Context, query: Annotated[str, typer.Argument(help="One SELECT.")]) -> None:
    """Query the tables with one SELECT; nothing can be changed."""
    with opened(ctx.obj, existing=True) as context:
        from waystation.pipeline.lake_queries import ask

        for line in ask(context, query):
            say(line)


def ls(ctx: typer.Context) -> None:
    """List the tables with their rows, files and sizes."""
    with opened(ctx.obj, short=True, existing=True) as context:
        from waystation.pipeline.lake_queries import overview

        tell_rows(ctx.obj, overview(context))


def show(
    ctx: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    *,
    versions: Annotated[bool, typer.Option("--versions", help="Show its commits.")] = False,
) -> None:
    """Show the columns, partitions and progress of a table, or its commits."""
    with opened(ctx.obj, short=True, existing=True) as context:
        from waystation.pipeline.lake_queries import commits, partitions

        tell_rows(ctx.obj, commits(context, table) if versions else partitions(context, table))


def cat(ctx: typer.Context, segment: Annotated[Path, typer.Argument(exists=True)]) -> None:
    """Print the events of a segment file with the names of their codes."""
    need_spark()
    from waystation.pipeline.lake_queries import segment_lines

    for line in segment_lines(segment, as_json=ctx.obj.as_json):
        say(line)


def doctor(ctx: typer.Context) -> None:
    """Check what jobs need: Java, Spark, disk space, a write and a commit."""
    import os

    need_spark()
    from waystation.pipeline.java import NoJavaError, find_java

    asked: Asked = ctx.obj
    home = asked.settings.pipeline.java_home
    try:
        java = find_java(Path(home) if home else None, os.environ)
    except NoJavaError as exc:
        give_up(str(exc), EXIT_CONFIG)
    with opened(asked, short=True) as context:
        from waystation.pipeline.lake_queries import examine

        findings = examine(context, java)
        tell_rows(asked, findings)
        if not all(finding.ok for finding in findings):
            raise SystemExit(EXIT_FAILED)
