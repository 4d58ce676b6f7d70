"""Another package registers a backend by an entry point and runs the suites against it."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.base.settings import SettingsError
from waystation.push.store import PushStore
from waystation.storage.memory.backend import CAPABILITIES
from waystation.storage.open import find_backend, open_push_store, open_queue_store
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import PushStoreConformance

MODULE = """
from waystation.base.settings import SettingsError
from waystation.storage.backend import Backend, Opening
from waystation.storage.memory.backend import CAPABILITIES


def parse(url: str, db_settings: str) -> str:
    if not url.startswith("shelf://"):
        raise SettingsError(["store.url: after shelf: comes //NAME"])
    return url


async def open_push(opening: Opening):
    from waystation.storage.memory.push import MemoryPushStore

    if opening.url.endswith("without-driver"):
        import shelf_driver_that_is_not_installed
    return MemoryPushStore(opening.clock)


BACKEND = Backend(
    name="shelf",
    schemes=("shelf",),
    url_forms=("shelf://NAME",),
    install="waystation-shelf[driver]",
    capabilities=CAPABILITIES,
    parse=parse,
    open_push=open_push,
)
"""


@pytest.fixture
def shelf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution: a module, and metadata that names its entry point."""
    (tmp_path / "waystation_shelf.py").write_text(MODULE)
    metadata = tmp_path / "waystation_shelf-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: waystation-shelf\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[waystation.backends]\nshelf = waystation_shelf:BACKEND\nbroken = waystation_shelf:parse\n"
    )
    monkeypatch.delitem(sys.modules, "waystation_shelf", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("shelf_package")
class TestOutsideBackend(PushStoreConformance):
    capabilities = CAPABILITIES

    @pytest.fixture
    async def store(
        self, shelf_package: None, clock: ManualClock, tmp_path: Path
    ) -> AsyncIterator[PushStore]:
        store = await open_push_store(
            "shelf://one", data_dir=tmp_path, settings=Store(), clock=clock
        )
        yield store
        await store.close()


@pytest.mark.usefixtures("shelf_package")
class TestRegistration:
    async def test_a_missing_driver_is_reported_with_what_to_install(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"pip install 'waystation-shelf\[driver\]'"):
            await open_push_store(
                "shelf://without-driver",
                data_dir=tmp_path,
                settings=Store(),
                clock=ManualClock(),
            )

    async def test_a_wrong_url_is_refused_by_the_backend_itself(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="after shelf: comes //NAME"):
            await open_push_store(
                "shelf:one", data_dir=tmp_path, settings=Store(), clock=ManualClock()
            )

    async def test_a_store_that_the_backend_lacks_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"shelf://one has no queue store; use embedded"):
            await open_queue_store("shelf://one", data_dir=tmp_path, settings=Store())

    def test_an_entry_point_must_name_a_backend_record(self) -> None:
        with pytest.raises(SettingsError, match="is not a storage Backend"):
            find_backend("broken://x")


def test_without_the_package_its_scheme_is_unknown() -> None:
    with pytest.raises(SettingsError, match=r"`shelf:` is not a known store"):
        find_backend("shelf://one")
