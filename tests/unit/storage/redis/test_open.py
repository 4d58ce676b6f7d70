"""How a Redis URL becomes a store, and what is said when it cannot."""

import sys
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.settings import SettingsError
from waystation.presence.settings import Presence
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.open import (
    init_push_store,
    open_cluster_store,
    open_presence_store,
    open_push_store,
    shown_url,
    store_warnings,
)
from waystation.storage.redis.push import RedisPushStore
from waystation.storage.settings import Store

NOWHERE = "redis://:hunter2@127.0.0.1:1/0"


async def test_without_the_extra_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("push", "init", "presence", "cluster_store"):
        monkeypatch.setitem(sys.modules, f"waystation.storage.redis.{module}", None)

    with pytest.raises(SettingsError, match=r"pip install 'waystation\[redis\]'"):
        await open_push_store(NOWHERE, data_dir=tmp_path, settings=Store(), clock=ManualClock())
    with pytest.raises(SettingsError, match=r"pip install 'waystation\[redis\]'"):
        await init_push_store(NOWHERE, Store())
    with pytest.raises(SettingsError, match=r"^presence\.store: .*'waystation\[redis\]'"):
        await open_presence_store(
            Presence(store=NOWHERE), data_dir=tmp_path, settings=Store(), clock=ManualClock()
        )
    with pytest.raises(SettingsError, match=r"^the store of the cluster: .*'waystation\[redis\]'"):
        await open_cluster_store(NOWHERE, data_dir=tmp_path, settings=Store())


async def test_a_redis_that_is_down_keeps_nobody_from_starting(tmp_path: Path) -> None:
    store = await open_push_store(NOWHERE, data_dir=tmp_path, settings=Store(), clock=ManualClock())

    assert isinstance(store, RedisPushStore)
    with pytest.raises(StoreUnavailableError, match=r"Redis at 127\.0\.0\.1:1 cannot be reached"):
        await store.check()
    with pytest.raises(StoreUnavailableError) as caught:
        await store_warnings(store)
    assert "hunter2" not in str(caught.value)
    await store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.check()


async def test_a_store_without_warnings_has_none() -> None:
    assert list(await store_warnings(MemoryPushStore(ManualClock()))) == []


@pytest.mark.parametrize(
    "url, shown",
    [
        ("embedded:./store", "embedded:./store"),
        ("embedded:///var/lib/push", "embedded:///var/lib/push"),
        ("redis://u:p%40@h:1/2?router_ttl=3", "redis://h:1/2"),
        ("redis+cluster://:p@a:1,b:2", "redis+cluster://a:1,b:2"),
        ("dual:?primary=secret", "dual:"),
    ],
)
def test_a_url_is_shown_without_credentials_and_options(url: str, shown: str) -> None:
    assert shown_url(url) == shown
