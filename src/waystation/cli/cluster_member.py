"""Shared by `waystation cluster` commands: settings of a member, and its slot map store."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, give_up, settings_or_exit

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.queue.cluster.cluster_store import ClusterStore
    from waystation.queue.cluster.membership import Membership
    from waystation.queue.cluster.slot_map import SlotMap

DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="The member's data directory.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]


TRIES_MAX = 20


def settings_of(data_dir: Path | None, config: Path | None) -> "Settings":
    return settings_or_exit(config, {"data_dir": None if data_dir is None else str(data_dir)}, ())


def run_as_member(
    data_dir: Path | None, config: Path | None, step: "Callable[[ClusterStore], Awaitable[None]]"
) -> None:
    settings = settings_of(data_dir, config)
    run_with_store(settings, membership_of(settings).member.store_url, step)


def membership_of(settings: "Settings") -> "Membership":
    from waystation.app.data_dir import DataDir
    from waystation.base.settings import SettingsError
    from waystation.queue.cluster.membership import required_membership

    try:
        return required_membership(DataDir(settings.data_dir).keys)
    except SettingsError as exc:
        give_up(str(exc), EXIT_CONFIG)


def run_with_store(
    settings: "Settings", store_url: str, step: "Callable[[ClusterStore], Awaitable[None]]"
) -> None:
    from waystation.app.data_dir import DataDir
    from waystation.base.errors import WaystationError
    from waystation.base.settings import SettingsError
    from waystation.queue.cluster.slot_map import SlotMapError
    from waystation.storage.open import open_cluster_store

    async def run() -> None:
        opened = await open_cluster_store(
            store_url, data_dir=DataDir(settings.data_dir).root, settings=settings.store
        )
        try:
            await step(opened)
        finally:
            await opened.close()

    try:
        asyncio.run(run())
    except SettingsError as exc:
        give_up(str(exc), EXIT_CONFIG)
    except SlotMapError as exc:
        give_up(str(exc), EXIT_USAGE)
    except (WaystationError, OSError) as exc:
        give_up(str(exc) or type(exc).__name__, EXIT_FAILED)


async def changed(store: "ClusterStore", change: "Callable[[SlotMap], SlotMap]") -> "SlotMap":
    """Over whatever is in force; tried again when somebody else was quicker."""
    for _ in range(TRIES_MAX):
        before = await store.read()
        after = change(before).as_one_change(before)
        if await store.commit(after):
            return after
    return give_up("the map changes too quickly; try again")
