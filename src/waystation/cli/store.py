"""`waystation store`: a store's own upkeep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import EXIT_FAILED, EXIT_USAGE, complain, give_up, say, settings_or_exit

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.storage.embedded.upkeep import Report

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
    """Walk through every row: does it decode, does what leads to it agree? Servers may run."""
    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.upkeep import check_store, open_environment

    settings = _settings(data_dir, store, config)
    try:
        env = open_environment(_directory(settings), settings.store)
        try:
            report = check_store(env)
        finally:
            env.close()
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    _show(report)
    for problem in report.problems:
        complain(problem)
    if report.problems_found:
        give_up(
            f"{report.problems_found} problems. Make a backup of what can be read:"
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
    """Write all rows into one file. Servers may run meanwhile."""
    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.backup import backup_store
    from waystation.storage.embedded.upkeep import open_environment

    settings = _settings(data_dir, store, config)
    try:
        env = open_environment(_directory(settings), settings.store)
        try:
            report = backup_store(env, target)
        finally:
            env.close()
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    _show(report)
    say(f"written to {target}. Keep a copy of keys/ as well: without it no endpoint URL opens")


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
    """Make the store from a backup. No server may run on it."""
    from waystation.app.data_dir import DataDir, DataDirError, lock_roles
    from waystation.app.roles import ROLES
    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.backup import restore_store

    settings = _settings(data_dir, store, config)
    data = DataDir(settings.data_dir)
    try:
        data.make()
        locks = lock_roles(data, ROLES, patience_s=0.0)
        try:
            report = restore_store(
                source, _directory(settings), settings=settings.store, force=force
            )
        finally:
            for lock in locks:
                lock.release()
    except (DataDirError, WaystationError, OSError) as exc:
        give_up(str(exc))
    _show(report)
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
    from waystation.storage.open import rotate_push_store

    settings = _settings(data_dir, store, config)
    scheme = settings.store.url.partition(":")[0]
    try:
        steps = asyncio.run(
            rotate_push_store(settings.store.url, settings.store, SystemClock(), dry_run=dry_run)
        )
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    if steps is None:
        say(f"nothing to do: the {scheme} store removes what has expired by itself")
        return
    for step in steps:
        say(f"  {'would ' if dry_run else ''}{step}")
    say("nothing to do: all tables are as they should be" if not steps else f"{len(steps)} steps")


def _settings(data_dir: Path | None, store: str | None, config: Path | None) -> "Settings":
    flags = {"data_dir": None if data_dir is None else str(data_dir), "store.url": store}
    return settings_or_exit(config, flags, roles=())  # nothing of it listens


def _directory(settings: "Settings") -> Path:
    from waystation.app.data_dir import DataDir
    from waystation.storage.open import EmbeddedUrl, parse_store_url, shown_url

    url = parse_store_url(settings.store.url, settings.store.db_settings)
    if not isinstance(url, EmbeddedUrl):
        shown = shown_url(settings.store.url, settings.store.db_settings)
        give_up(f"{shown} keeps nothing that could be checked or copied here", EXIT_USAGE)
    return url.directory(DataDir(settings.data_dir).root) / "push"


def _show(report: "Report") -> None:
    from waystation.console.pages import size

    for table, rows in report.rows.items():
        say(f"  {table:<14} {rows:>12,} rows")
    if report.used_bytes:
        say(f"  in use {size(report.used_bytes)} of {size(report.map_bytes)}")
    if report.orphaned:
        say(f"  {report.orphaned:,} rows that nobody can receive any more; they expire")
