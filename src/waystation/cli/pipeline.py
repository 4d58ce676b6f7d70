"""`waystation pipeline`: Spark jobs over events and stores.

The frame: what all its commands share. The commands stand in `pipeline_lake`, `pipeline_jobs` and
`pipeline_stores`; each imports Spark when it runs, so that `--help` stays quick.

Exit codes: 0 done or nothing to do, 1 failed, 2 usage, 3 data broke a rule that stops a job, 4 lost
the commit to a rival three times, 78 no Java or no Spark.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Generator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from typer.core import TyperGroup

from .terminal import EXIT_CONFIG, EXIT_USAGE, complain, give_up, say, settings_or_exit

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.pipeline.job_context import Context, JobResult
    from waystation.telemetry.kafka_topic import KafkaTopic

EXIT_QUALITY = 3
EXIT_RACE = 4
COMMANDS = ("pipeline_lake", "pipeline_jobs", "pipeline_stores")


class Anywhere(TyperGroup):
    """Takes the options of all commands before or after the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {
            name: bool(getattr(option, "is_flag", False))
            for option in self.params
            for name in option.opts
            if name not in ("-h", "--help")
        }
        first: list[str] = []
        rest: list[str] = []
        left = iter(args)
        for word in left:
            name, equals, _ = word.partition("=")
            if word == "--":
                rest += [word, *left]
            elif name in names:
                first.append(word)
                if not names[name] and not equals:
                    first += [value for value in [next(left, None)] if value is not None]
            else:
                rest.append(word)
        return super().parse_args(ctx, first + rest)


app = typer.Typer(
    cls=Anywhere,
    help="Run Spark jobs over events and stores.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Asked(msgspec.Struct, frozen=True):
    """The options that all commands share, and what they come to."""

    settings: "Settings"
    conf: dict[str, str]
    as_json: bool
    verbose: bool

    @property
    def lake(self) -> str:
        return self.settings.pipeline.lake or str(self.settings.data_dir / "lake")

    @property
    def spool(self) -> Path:
        return Path(self.settings.pipeline.spool or self.settings.data_dir / "events")


@app.callback()
def pipeline(
    ctx: typer.Context,
    *,
    lake: Annotated[
        str | None, typer.Option(help="Folder or object-store URL of the lake's tables.")
    ] = None,
    spool: Annotated[str | None, typer.Option(help="Folder of the event segments.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The server's data directory.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Spark profile: embedded, test or cluster.")
    ] = None,
    master: Annotated[str | None, typer.Option(help="URL of the Spark master.")] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A Spark setting; repeat for more."),
    ] = None,
    java: Annotated[
        str | None, typer.Option(metavar="DIR", help="Home directory of the Java to use.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON lines.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level info too.")] = (
        False
    ),
) -> None:
    """Run Spark jobs over events and stores."""
    flags = {
        "data_dir": None if data_dir is None else str(data_dir),
        "pipeline.lake": lake,
        "pipeline.spool": spool,
        "pipeline.profile": profile,
        "pipeline.master": master,
        "pipeline.java_home": java,
    }
    pairs = [word.partition("=") for word in conf or ()]
    if any(not equals for _, equals, _ in pairs):
        give_up("--conf wants KEY=VALUE", EXIT_USAGE)
    settings = settings_or_exit(config, flags, roles=())
    ctx.obj = Asked(settings, {key: value for key, _, value in pairs}, as_json, verbose)


def origin(asked: Asked, source: str | None = None) -> "Path | KafkaTopic":
    """Where events come from: what was asked for, or where servers with these settings put them."""
    events = asked.settings.events
    if (source or events.sink) == "segments":
        return asked.spool
    if not events.kafka_servers:
        give_up("events.kafka_servers must name the brokers of Kafka", EXIT_USAGE)
    if importlib.util.find_spec("confluent_kafka") is None:
        give_up("reading from Kafka needs its client: pip install 'waystation[kafka]'", EXIT_CONFIG)
    return events.topic


def need_spark() -> None:
    """Or exit code 78, with what to install."""
    missing = [
        name
        for name in ("pyspark", "deltalake", "pyarrow")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        give_up(
            f"the pipeline needs {', '.join(missing)}: pip install 'waystation[pipeline]'"
            " (and waystation[pipeline-java] where there is no Java)",
            EXIT_CONFIG,
        )


@contextlib.contextmanager
def opened(asked: Asked, *, short: bool = False, existing: bool = False) -> Generator["Context"]:
    """The surroundings of jobs, with a Spark session; errors become the exit codes above.
    `short`: of work that takes less than a minute. `existing`: of work that makes no lake."""
    need_spark()
    if existing and "://" not in asked.lake and not Path(asked.lake).is_dir():
        give_up(
            f"there is no lake at {asked.lake}: --lake or --data-dir names another;"
            " `waystation pipeline run` makes one from the events of a server"
        )
    from waystation.app.version import build as program
    from waystation.base.clock import SystemClock
    from waystation.base.errors import WaystationError
    from waystation.pipeline.delta_table import Lake, LostRaceError
    from waystation.pipeline.java import NoJavaError
    from waystation.pipeline.job_context import Context
    from waystation.pipeline.quality import QualityStopError
    from waystation.pipeline.session import build
    from waystation.telemetry import logs

    from .pipeline_progress import stage_bars

    logs.configure(level="info" if asked.verbose else "warning")
    settings = asked.settings.pipeline
    overrides = dict(asked.conf)
    if settings.memory:
        overrides.setdefault("spark.driver.memory", settings.memory)
    try:
        spark = build(
            settings.profile,
            overrides,
            master=settings.master or None,
            java=Path(settings.java_home) if settings.java_home else None,
            short=short,
            archived=settings.class_archive,
        )
        with stage_bars(spark):
            clock = SystemClock()
            lake = Lake(spark, asked.lake, clock, code_version=program().version)
            yield Context(spark, lake, clock, settings)
    except NoJavaError as exc:
        give_up(str(exc), EXIT_CONFIG)
    except QualityStopError as exc:
        give_up(f"stopped, nothing was committed: {exc}", EXIT_QUALITY)
    except LostRaceError as exc:
        give_up(f"lost the commit to another run, again and again: {exc}", EXIT_RACE)
    except WaystationError as exc:
        give_up(str(exc))


@contextlib.contextmanager
def alone(asked: Asked) -> Generator[None]:
    """One `run` at a time on a lake on this machine; elsewhere rivals merely waste their work."""
    need_spark()
    if "://" in asked.lake:
        yield
        return
    import fcntl

    folder = Path(asked.lake)
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / ".run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        give_up("another `waystation pipeline run` is at work on this lake")
    try:
        yield
    finally:
        os.close(fd)


def tell(asked: Asked, result: "JobResult") -> None:
    """A result on stdout: a line for people, or JSON."""
    if asked.as_json:
        say(msgspec.json.encode(result).decode())
        return
    if result.state == "noop":
        say(f"{result.job:<12} nothing new")
        return
    notes = "".join(f", {name}: {value}" for name, value in result.notes.items())
    say(
        f"{result.job:<12} {result.rows_in:,} rows in, {result.rows_out:,} out,"
        f" {result.files} files, {result.seconds:.1f} s{notes}"
    )


def tell_rows(asked: Asked, rows: Sequence[Any], form: Literal["table", "lines"] = "table") -> None:
    """Structs as a table, or as JSON lines."""
    if asked.as_json or form == "lines":
        for row in rows:
            say(msgspec.json.encode(row).decode())
        return
    texts = [{name: str(value) for name, value in msgspec.to_builtins(row).items()} for row in rows]
    if not texts:
        return
    widths = {name: max(len(name), *(len(row[name]) for row in texts)) for name in texts[0]}
    say("  ".join(f"{name:<{width}}" for name, width in widths.items()).rstrip())
    for row in texts:
        say("  ".join(f"{row[name]:<{width}}" for name, width in widths.items()).rstrip())


def days_between(day: str | None, first: str | None, end: str | None) -> list[date] | None:
    """`--date D`, or `--from D --to D` (the end is not included); None: none was given."""
    try:
        if day is not None:
            return [date.fromisoformat(day)]
        if first is None and end is None:
            return None
        if first is None or end is None:
            give_up("--from and --to belong together", EXIT_USAGE)
        start, stop = date.fromisoformat(first), date.fromisoformat(end)
    except ValueError as exc:
        give_up(f"a day is written 2026-01-31: {exc}", EXIT_USAGE)
    if stop <= start:
        give_up("--to is the day after the last one, so it comes after --from", EXIT_USAGE)
    return [start + timedelta(days=number) for number in range((stop - start).days)]


def would(*, apply: bool) -> None:
    if not apply:
        complain("nothing was changed; --apply does it")


for _name in COMMANDS:
    if importlib.util.find_spec(f"waystation.cli.{_name}") is not None:
        importlib.import_module(f"waystation.cli.{_name}").register(app)

if __name__ == "__main__":
    app(prog_name="waystation pipeline", args=sys.argv[1:])
