"""`waystation pipeline`: jobs over the push store: what does not fit, who is long gone."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .pipeline import opened, tell_rows, would
from .terminal import give_up

if TYPE_CHECKING:
    from waystation.pipeline.sources.store import StorePlace

    from .pipeline import Asked

ApplyOption = Annotated[bool, typer.Option("--apply", help="Do it; without, only count.")]


def register(app: typer.Typer) -> None:
    app.command()(audit)
    purge = typer.Typer(
        help="Remove user agents that have not been seen for long.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in (mark, confirm, delete):
        purge.command()(command)
    app.add_typer(purge, name="purge")


def _place(asked: "Asked") -> "StorePlace":
    from waystation.app.data_dir import DataDir
    from waystation.pipeline.sources.store import StorePlace
    from waystation.storage.open import EmbeddedUrl, parse_store_url

    settings = asked.settings
    url = parse_store_url(settings.store.url, settings.store.db_settings)
    if not isinstance(url, EmbeddedUrl):
        give_up("jobs over stores know the embedded store only, so far")
    data = DataDir(settings.data_dir)
    key_file = data.keys / "event_key"
    if not key_file.exists():
        give_up(f"{data.root} has no key of events: --data-dir names the server's directory")
    directory = url.directory(data.root) / "push"
    place = {"directory": str(directory.absolute()), "map_bytes": settings.store.map_bytes}
    return StorePlace("waystation.storage.embedded.bulk:open_bulk", json.dumps(place), key_file)


def audit(ctx: typer.Context) -> None:
    """Count what does not fit together in the store, by class. Servers may run."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import audit as job

        tell_rows(ctx.obj, job.run(context, place))


def mark(
    ctx: typer.Context,
    *,
    days: Annotated[int, typer.Option(min=30, help="Not seen for so long.")] = 60,
) -> None:
    """Write down who has not been seen, by the store and by the events."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import purge

        tell_rows(ctx.obj, [purge.mark(context, place, days=days)])


def confirm(
    ctx: typer.Context,
    *,
    hold: Annotated[float, typer.Option(metavar="HOURS", help="Marked so long ago.")] = 24.0,
) -> None:
    """Keep those of the marked whose record is still the same."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import purge

        tell_rows(ctx.obj, [purge.confirm(context, place, hold_s=hold * 3600)])


def delete(
    ctx: typer.Context,
    *,
    apply: ApplyOption = False,
    rate: Annotated[float | None, typer.Option(help="At most so many a second.")] = None,
) -> None:
    """Remove the confirmed ones, each only if nothing about it has changed."""
    place = _place(ctx.obj)
    with opened(ctx.obj) as context:
        from waystation.pipeline.jobs import purge

        tell_rows(ctx.obj, [purge.delete(context, place, apply=apply, rate_per_s=rate)])
    would(apply=apply)
