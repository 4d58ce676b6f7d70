"""From a URL to a store, or to a sentence that helps."""

from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.base.settings import SettingsError
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.embedded.url import EmbeddedUrl
from waystation.storage.memory.backend import MemoryUrl
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.open import open_push_store, parse_store_url
from waystation.storage.settings import Store

DATA_DIR = Path("/data")


@pytest.mark.parametrize(
    "url,directory",
    [
        ("embedded", "/data/store"),
        ("embedded:", "/data/store"),
        ("embedded:./store", "/data/store"),
        ("embedded:other/place", "/data/other/place"),
        ("embedded:///var/lib/push", "/var/lib/push"),
        ("embedded:/var/lib/push", "/var/lib/push"),
    ],
)
def test_an_embedded_url_names_a_directory(url: str, directory: str) -> None:
    parsed = parse_store_url(url)

    assert isinstance(parsed, EmbeddedUrl)
    assert parsed.directory(DATA_DIR) == Path(directory)


@pytest.mark.parametrize("url", ["memory:", "memory", "memory://"])
def test_memory_needs_no_more_words(url: str) -> None:
    assert parse_store_url(url) == MemoryUrl()


def test_the_default_is_a_store_below_the_data_directory() -> None:
    assert parse_store_url(Store().url) == EmbeddedUrl("./store")


@pytest.mark.parametrize(
    "url,sentence",
    [
        ("rocks:./x", "`rocks:` is not a known store"),
        ("", "not a store URL"),
        ("./store", "not a store URL"),
        ("embedded://host/path", "names a host"),
        ("embedded:./x?sync=0", "a path only"),
        ("memory:x", "`memory:` has no options"),
    ],
)
def test_another_url_is_refused_with_the_reason(url: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        parse_store_url(url)

    assert caught.value.problems[0].startswith("store.url: ")


async def test_each_url_opens_its_backend(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = Store(map_bytes=1 << 24)
    memory = await open_push_store("memory:", data_dir=tmp_path, settings=settings, clock=clock)
    embedded = await open_push_store("embedded", data_dir=tmp_path, settings=settings, clock=clock)
    await embedded.close()

    assert isinstance(memory, MemoryPushStore)
    assert isinstance(embedded, EmbeddedPushStore)
    assert (tmp_path / "store" / "push" / "data.mdb").exists()
