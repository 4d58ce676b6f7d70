"""One push worker inside the test's own process: production classes, real sockets, and a store
whose calls a test can hold up or let fail at an exact moment."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from tests.e2e.platform import PORTS, variables
from tests.ports import free_ports
from waystation.app.addresses import reserve_ports, settle
from waystation.app.data_dir import DataDir
from waystation.app.keys import ensure_secrets
from waystation.app.roles import Role
from waystation.app.settings import load_settings
from waystation.app.wiring import push_worker
from waystation.base.errors import StoreUnavailableError
from waystation.push.store import PushStore

Hook = Callable[..., Awaitable[None]]
ROLES: tuple[Role, ...] = ("connect", "endpoint")


async def fails(*_args: object, **_kwargs: object) -> None:
    """A hook: the store does not answer."""
    raise StoreUnavailableError("the disk is on holiday")


class ScriptedStore:
    """A `PushStore`; a hook sees the arguments of its call and runs before or after it."""

    def __init__(self, inner: PushStore) -> None:
        self.inner = inner
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "look_up_now":
            raise AttributeError("a hook may wait, so this store has to be waited for")
        method = getattr(self.inner, name)
        before, after = self.before.get(name), self.after.get(name)
        if before is None and after is None:
            return method

        async def call(*args: object, **kwargs: object) -> object:
            if before is not None:
                await before(*args, **kwargs)
            result = await method(*args, **kwargs)
            if after is not None:
                await after(*args, **kwargs)
            return result

        return call

    async def switch_month(self, *args: Any, **kwargs: Any) -> bool:
        """Named here, because a Protocol is not satisfied by what `__getattr__` finds."""
        return await self.__getattr__("switch_month")(*args, **kwargs)


class WorkerHere(NamedTuple):
    ws_url: str
    relay_url: str
    endpoint_url: str
    store: ScriptedStore


@asynccontextmanager
async def worker_here(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, **settings: object
) -> AsyncIterator[WorkerHere]:
    stores: list[ScriptedStore] = []
    open_really = push_worker.open_push_store

    async def open_scripted(*args: Any, **kwargs: Any) -> ScriptedStore:
        stores.append(ScriptedStore(await open_really(*args, **kwargs)))
        return stores[-1]

    monkeypatch.setattr(push_worker, "open_push_store", open_scripted)
    loaded = load_settings(
        env=variables("WAYSTATION_", settings),
        flags={"data_dir": str(data_dir), "workers": 1, "port_base": free_ports(PORTS)},
        roles=ROLES,
    )
    data = DataDir(data_dir)
    data.make()
    data.reports("serve").mkdir()
    secrets, _ = ensure_secrets(data)
    held = reserve_ports(loaded, ROLES)
    loaded = settle(loaded, {one.setting: one.port for one in held})
    lines = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    worker = push_worker.PushWorker(loaded, secrets, lines, roles=ROLES, index=0, count=1)
    try:
        await worker.start()
        yield WorkerHere(
            loaded.connect.url, loaded.connect.relay_url, loaded.endpoint.url, stores[0]
        )
    finally:
        for store in stores:
            store.before.clear()
            store.after.clear()
        await worker.drain(0.0)
        await worker.stop()
        for one in held:
            one.release()
