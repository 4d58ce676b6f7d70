"""`waystation store`: a store's own upkeep."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import EXIT_FAILED, EXIT_USAGE, complain, give_up, say, settings_or_exit

if TYPE_CHECKING:
    from collections.abc import Generator

    from waystation.app.settings import Settings
    from waystation.storage.embedded.check import Report
    from waystation.storage.embedded.environment import Environment

app = typer.Typer(
    help="Make, check, back up and restore the store.", no_args_is_help=True, rich_markup_mode=None
)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="The server's data directory.")
]
StoreOption = Annotated[str | None, typer.Option("--store", help="The store's URL.")]


@app.command()
def init(
    data_dir: DataDirOption = None, store: StoreOption = None, config: ConfigOption = None
) -> None:
    """Make the store if there is none, and see that it answers."""
    import asyncio

    from waystation.app.data_dir import DataDir, DataDirError
    from waystation.base.clock import SystemClock
    from waystation.base.errors import WaystationError
    from waystation.storage.open import init_push_store, open_push_store, shown_url

    settings = _settings(data_dir, store, config)

    async def make() -> None:
        for done in await init_push_store(settings.store.url, settings.store):
            say(f"  {done}")
        opened = await open_push_store(
            settings.store.url,
            data_dir=DataDir(settings.data_dir).root,
            settings=settings.store,
            clock=SystemClock(),
        )
        try:
            await opened.check()
        finally:
            await opened.close()

    try:
        DataDir(settings.data_dir).make()
        asyncio.run(make())
    except (DataDirError, WaystationError, OSError) as exc:
        give_up(str(exc))
    say(f"the store {shown_url(settings.store.url, settings.store.db_settings)} is ready")


@app.command()
def check(
    data_dir: DataDirOption = None, store: StoreOption = None, config: ConfigOption = None
) -> None:
    """Walk through every row of every embedded store: does it decode, does what leads to it agree?
    Servers may run."""
    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.backup import PARTS

    settings = _settings(data_dir, store, config)
    problems_found = 0
    try:
        with _opened(settings) as opened:
            for name, env in opened:
                report = PARTS[name].check(env)
                _show(name, report)
                for problem in report.problems:
                    complain(f"{name}: {problem}")
                problems_found += report.problems_found
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    if problems_found:
        give_up(
            f"{problems_found} problems. Make a backup of what can be read:"
            " waystation store backup FILE; then restore it into a new directory",
            EXIT_FAILED,
        )
    say("no problems")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Write all rows of all embedded stores into one file. Servers may run meanwhile."""
    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.backup import backup_stores

    settings = _settings(data_dir, store, config)
    try:
        with _opened(settings) as opened:
            reports = backup_stores(opened, target)
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    for name, report in reports.items():
        _show(name, report)
    say(
        f"written to {target}. Keep a copy of keys/ as well: without it no endpoint URL opens, and"
        " the queue server is another one"
    )


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A file that `store backup` wrote.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the store that is there.")
    ] = False,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Make the stores of a backup anew. No server may run on them."""
    from waystation.app.data_dir import DataDir, DataDirError, lock_all
    from waystation.app.roles import ROLES
    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.backup import restore_stores

    settings = _settings(data_dir, store, config)
    data = DataDir(settings.data_dir)

    @contextmanager
    def alone() -> "Generator[None]":
        data.make()
        locks = lock_all(data, ROLES)
        try:
            yield
        finally:
            for lock in locks:
                lock.release()

    try:
        reports = restore_stores(
            source, _places(settings), settings=settings.store, force=force, alone=alone
        )
    except (DataDirError, WaystationError, OSError) as exc:
        give_up(str(exc))
    for name, report in reports.items():
        _show(name, report)
    say(f"restored from {source}")


@app.command()
def rotate(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    data_dir: DataDirOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Make next month's tables, lower last month's, drop older ones. Safe at any time."""
    import asyncio

    from waystation.base.clock import SystemClock
    from waystation.base.errors import WaystationError
    from waystation.storage.open import rotate_push_store, scheme_of

    settings = _settings(data_dir, store, config)
    try:
        steps = asyncio.run(
            rotate_push_store(settings.store.url, settings.store, SystemClock(), dry_run=dry_run)
        )
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    if steps is None:
        scheme = scheme_of(settings.store.url)
        say(f"nothing to do: the {scheme} store removes what has expired by itself")
        return
    for step in steps:
        say(f"  {'would ' if dry_run else ''}{step}")
    say("nothing to do: all tables are as they should be" if not steps else f"{len(steps)} steps")


def _settings(data_dir: Path | None, store: str | None, config: Path | None) -> "Settings":
    flags = {"data_dir": None if data_dir is None else str(data_dir), "store.url": store}
    return settings_or_exit(config, flags, roles=())  # nothing of it listens


def _places(settings: "Settings") -> dict[str, Path]:
    """Where the embedded stores are, by the settings; one that lives elsewhere is not there."""
    from waystation.app.data_dir import DataDir
    from waystation.queue.cluster.membership import load_membership
    from waystation.storage.open import local_directory, presence_store_url, queue_store_url

    data = DataDir(settings.data_dir)
    shared = settings.store.url
    membership = load_membership(data.keys)
    urls = {
        "push": (shared, "push"),
        "queue": (queue_store_url(settings.queue.store, shared), "queue"),
        "presence": (presence_store_url(settings.presence.store, shared), ""),
    }
    if membership is not None:
        urls["cluster"] = (membership.member.store_url, "cluster")
    places = {
        name: directory / folder
        for name, (url, folder) in urls.items()
        if (directory := local_directory(url, data.root)) is not None
    }
    if "cluster" in places and not places["cluster"].is_relative_to(data.root):
        del places["cluster"]  # the map lies with another server, and goes with that one's backup
    return places


@contextmanager
def _opened(settings: "Settings") -> "Generator[list[tuple[str, Environment]]]":
    """Every embedded store that has been made."""
    from waystation.storage.embedded.backup import PARTS
    from waystation.storage.embedded.check import open_environment
    from waystation.storage.open import shown_url

    places = _places(settings)
    shown = shown_url(settings.store.url, settings.store.db_settings)
    elsewhere = f"{shown} keeps nothing that could be checked or copied here"
    made = {name: place for name, place in places.items() if (place / "data.mdb").exists()}
    if not made and "push" in places:
        give_up(f"there is no embedded store at {places['push']}")
    if not made:
        give_up(elsewhere, EXIT_USAGE)
    if "push" not in places:
        complain(elsewhere)
    opened: list[tuple[str, Environment]] = []
    try:
        for name, place in made.items():
            part = PARTS[name]
            env = open_environment(place, settings.store, form=part.form, tables=part.tables)
            opened.append((name, env))
        yield opened
    finally:
        for _, env in opened:
            env.close()


def _show(name: str, report: "Report") -> None:
    from waystation.console.pages import size

    say(name)
    for table, rows in report.rows.items():
        say(f"  {table:<17} {rows:>12,} rows")
    if report.used_bytes:
        say(f"  in use {size(report.used_bytes)} of {size(report.map_bytes)}")
    if report.orphaned:
        say(f"  {report.orphaned:,} rows that nobody can receive any more; they expire")
