"""`waystation pipeline`: jobs over the push store: audit, purge, migrate."""

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from .pipeline import EXIT_QUALITY, opened, tell_rows, would
from .terminal import EXIT_USAGE, complain, give_up

if TYPE_CHECKING:
    from waystation.pipeline.sources.store import StoreHandle

    from .pipeline import Asked

ApplyOption = Annotated[
    bool, typer.Option("--apply", help="Make the changes; without it, only count them.")
]


def register(app: typer.Typer) -> None:
    app.command()(audit)
    app.command()(migrate)
    purge = typer.Typer(
        help="Remove user agents that have not connected for long.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in (mark, confirm, delete):
        purge.command()(command)
    app.add_typer(purge, name="purge")


def _place(asked: "Asked", url: str | None = None) -> "StoreHandle":
    """The servers' store, or the one at `url`. Its URL and settings are written to a file that only
    the owner can read, beside the key of the event log."""
    from waystation.app.data_dir import DataDir
    from waystation.base.settings import SettingsError
    from waystation.pipeline.sources.store import StoreHandle
    from waystation.storage.bulk import StoreConfig, write_store_config
    from waystation.storage.open import bulk_backend

    settings = asked.settings
    data = DataDir(settings.data_dir)
    key_file = data.keys / "event_key"
    if not key_file.exists():
        give_up(f"{data.root} has no key of events: --data-dir names the server's directory")
    own = settings.store
    if url is not None:
        own = msgspec.structs.replace(own, url=url, db_settings="")
    config = StoreConfig(url=own.url, data_dir=str(data.root.absolute()), settings=own)
    try:
        bulk_backend(config)
    except SettingsError as exc:
        give_up(str(exc), EXIT_USAGE)
    named = hashlib.sha256(own.url.encode()).hexdigest()[:12]
    path = data.keys / f"pipeline_store_{named}.json"
    write_store_config(path, config)
    return StoreHandle("waystation.storage.open:open_bulk", str(path.absolute()), key_file)


def audit(
    ctx: typer.Context,
    *,
    node: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Relay URL of a node in use; name all nodes or none."),
    ] = None,
) -> None:
    """Count inconsistent rows of the store by class. Servers may run."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import audit as job

        tell_rows(ctx.obj, job.run(context, place, nodes=node or None))


def mark(
    ctx: typer.Context,
    *,
    days: Annotated[int, typer.Option(min=30, help="Days without a connection.")] = 60,
) -> None:
    """Record the user agents that have not connected, by the store and by the events."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import purge

        tell_rows(ctx.obj, [purge.mark(context, place, days=days)])


def confirm(
    ctx: typer.Context,
    *,
    hold: Annotated[
        float, typer.Option(metavar="HOURS", help="Least hours since they were marked.")
    ] = 24.0,
) -> None:
    """Keep the marked user agents whose record is unchanged."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import purge

        tell_rows(ctx.obj, [purge.confirm(context, place, hold_s=hold * 3600)])


def delete(
    ctx: typer.Context,
    *,
    apply: ApplyOption = False,
    rate: Annotated[float | None, typer.Option(help="Most removals per second.")] = None,
) -> None:
    """Remove the confirmed user agents, each only if its record is unchanged."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import purge

        tell_rows(ctx.obj, [purge.delete(context, place, apply=apply, rate_per_s=rate)])
    would(apply=apply)


def migrate(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[copy|tail|verify] FROM TO",
            help="URLs of two stores; a step before them runs that step alone.",
        ),
    ],
    *,
    apply: ApplyOption = False,
    parts: Annotated[
        int, typer.Option(min=1, help="Number of parts that the source is read in.")
    ] = 32,
    rate: Annotated[float | None, typer.Option(help="Most rows per second.")] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Start over instead of resuming an interrupted run.")
    ] = False,
) -> None:
    """Copy one push store into another and compare both. Nothing is removed from the first.
    Servers may run on both as `dual:` with tombstones=1; otherwise stop them."""
    step, source, target = _move_words(words)
    from waystation.pipeline.sources.copy import Move
    from waystation.storage.open import shown_url

    places = _place(ctx.obj, source), _place(ctx.obj, target)
    name = hashlib.sha256(f"{source} {target}".encode()).hexdigest()[:12]
    named = f"{shown_url(source)} -> {shown_url(target)} {name}"
    move = Move("waystation.storage.dual.copy:open_copier", *places, named)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import migrate as job

        if apply and step != "verify":
            steps = job.copy(
                context,
                move,
                phases=("copy", "tail") if step is None else (step,),
                parts=parts,
                rate_per_s=rate,
                anew=anew,
                tell=complain,
            )
            tell_rows(ctx.obj, steps)
        if step is None or step == "verify" or not apply:
            found = job.verify(context, move)
            tell_rows(ctx.obj, found)
            lost = sum(one.lost for one in found)
            if lost and (apply or step == "verify"):
                give_up(
                    f"{lost} rows of the source are not in the target as they are", EXIT_QUALITY
                )
    if step != "verify":
        would(apply=apply)


def _move_words(words: list[str]) -> tuple[Literal["copy", "tail", "verify"] | None, str, str]:
    match words:
        case ["copy" | "tail" | "verify" as step, source, target]:
            return step, source, target
        case [source, target]:
            return None, source, target
        case _:
            return give_up(
                "migrate needs two arguments, FROM and TO: the URLs of two stores", EXIT_USAGE
            )
