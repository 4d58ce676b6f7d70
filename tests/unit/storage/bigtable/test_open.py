"""How a Bigtable store is found by its URL, and what is said where its driver is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.base.settings import SettingsError
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.open import init_push_store, open_push_store, parse_store_url
from waystation.storage.settings import Store

URL = "bigtable://p/i?emulator=127.0.0.1:1"
AUTOPUSH = json.dumps({"table_name": "projects/p/instances/i/tables/t"})


def test_both_schemes_lead_here() -> None:
    assert isinstance(parse_store_url(URL), BigtableUrl)
    assert isinstance(parse_store_url("grpc://bigtable.googleapis.com", AUTOPUSH), BigtableUrl)


async def test_without_the_driver_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("push", "init"):
        monkeypatch.setitem(sys.modules, f"waystation.storage.bigtable.{module}", None)

    with pytest.raises(SettingsError, match=r"pip install 'waystation\[bigtable\]'"):
        await open_push_store(URL, data_dir=tmp_path, settings=Store(), clock=ManualClock())
    with pytest.raises(SettingsError, match=r"pip install 'waystation\[bigtable\]'"):
        await init_push_store(URL, Store())


def test_who_uses_another_store_does_not_load_the_driver() -> None:
    """It takes more than a second."""
    program = (
        "import sys, waystation.storage.open; sys.exit('google.cloud.bigtable' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
