"""How the queue service is put together, where a choice is made."""

import asyncio
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.typing import FilteringBoundLogger

from waystation.app.wiring import queue_service
from waystation.base.clock import SystemClock
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.identity import ensure_identity
from waystation.queue.server import tls
from waystation.queue.settings import Queue
from waystation.queue.store import Expired, PendingNotification
from waystation.storage.memory.queue import MemoryQueueStore


class Lines:
    def __init__(self) -> None:
        self.warnings: list[dict[str, Any]] = []

    def warning(self, _event: str, /, **fields: Any) -> None:
        self.warnings.append(fields)


class Refusing(MemoryQueueStore):
    """A store on a full disk: nothing can be taken out, and nothing expires."""

    def __init__(self) -> None:
        super().__init__()
        self.full = True
        self.restored = asyncio.Event()

    async def take_pending(self) -> Sequence[PendingNotification]:
        if self.full:
            raise QueueStoreUnavailableError("the disk is full")
        self.restored.set()
        return await super().take_pending()

    async def expire(self, **_: Any) -> Expired:
        if self.full:
            raise QueueStoreUnavailableError("the disk is full")
        return Expired({}, None)


async def test_a_store_that_refuses_does_not_keep_the_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it refused at the start is done as soon as it takes part again."""
    usual = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setattr(tls, "tls_context", lambda _identity: usual)
    monkeypatch.setattr(queue_service, "RESTORE_AGAIN_S", 0.001)
    store, log, failed = Refusing(), Lines(), list[str]()
    clock = SystemClock()
    net = NetLoop(clock=clock)
    tasks = Tasks(lambda name, _: failed.append(name))
    part = queue_service.QueueService(
        settings=Queue(),
        store=store,
        identity=ensure_identity(tmp_path / "keys", host="here", algorithm="ed25519"),
        net=net,
        tasks=tasks,
        clock=clock,
        log=cast(FilteringBoundLogger, log),
    )
    await asyncio.wait_for(part.start(None), 10)
    await asyncio.sleep(0.02)
    store.full = False
    await asyncio.wait_for(store.restored.wait(), 10)
    await tasks.close()
    await part.stop()
    net.close()

    assert [fields["what"] for fields in log.warnings] == ["restore", "expiry"]
    assert failed == []


def test_tls_asks_for_certificates_only_where_services_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = ensure_identity(tmp_path / "keys", host="here", algorithm="ed25519")
    usual = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setattr(tls, "tls_context", lambda _identity: usual)

    assert tls.queue_tls(identity, asks=False) is usual
    assert callable(tls.queue_tls(identity, asks=True))
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    monkeypatch.delitem(sys.modules, "waystation.net.openssl", raising=False)
    with pytest.raises(SettingsError, match="services"):
        tls.queue_tls(identity, asks=True)
