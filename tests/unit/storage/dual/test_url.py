"""What a `dual:` URL and Autopush's settings of one say."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from waystation.base.clock import ManualClock
from waystation.base.settings import SettingsError
from waystation.push.model import Uaid
from waystation.storage.dual.push import DualPushStore
from waystation.storage.dual.url import DualUrl, StoreDsn, parse_dual_url
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.memory.push import MemoryPushStore
from waystation.storage.open import (
    backends_of,
    init_push_store,
    open_push_store,
    parse_store_url,
    rotate_push_store,
    shared_by_machines,
    shown_url,
)
from waystation.storage.settings import Store

BIGTABLE = "bigtable://project/instance/table?emulator=127.0.0.1:1"
POSTGRES = "postgres://user:secret@db.example/push"
BOTH = f"dual:?primary={quote(BIGTABLE, safe='')}&secondary={quote(POSTGRES, safe='')}"


def uaid(first: int, last: int) -> Uaid:
    return Uaid(bytes([first, *range(14), last]))


def test_the_url_names_two_stores_and_what_goes_where() -> None:
    parsed = parse_store_url(f"{BOTH}&write_to_secondary=1&median=0a&end_median=FF")

    assert parsed == DualUrl(
        primary=StoreDsn(BIGTABLE),
        secondary=StoreDsn(POSTGRES),
        write_to_secondary=True,
        median=10,
        end_median=255,
    )
    assert "secret" not in repr(parsed)


def test_autopush_has_it_all_in_its_settings() -> None:
    table = "projects/p/instances/i/tables/t"
    settings = {
        "primary": {
            "dsn": "grpc://bigtable.googleapis.com",
            "db_settings": json.dumps({"table_name": table}),
        },
        "secondary": {
            "dsn": "http://localhost:8000/",
            "db_settings": {"router_table": "test_router"},
        },
        "median": "0A",
    }
    parsed = parse_store_url("dual", json.dumps(settings))

    assert isinstance(parsed, DualUrl)
    assert parsed.write_to_secondary, "as it is in Autopush when nothing is said"
    assert parsed.median == 10
    assert parsed.end_median is None
    assert json.loads(parsed.primary.db_settings) == {"table_name": table}
    assert parsed.secondary.url == "dynamodb://us-east-1?endpoint=http%3A%2F%2Flocalhost%3A8000"
    assert json.loads(parsed.secondary.db_settings) == {"router_table": "test_router"}


@pytest.mark.parametrize(
    "options,expected",
    [
        ("", (True, True, True, True)),
        ("&median=7f", (True, True, False, False)),
        ("&end_median=7f", (True, False, True, False)),
        ("&median=7f&end_median=7f", (True, True, True, False)),
        ("&median=none", (False, False, False, False)),
        ("&median=ff", (True, True, True, True)),
    ],
)
def test_the_medians_allot_by_the_first_and_the_last_byte(
    options: str, expected: tuple[bool, ...]
) -> None:
    url = parse_dual_url(BOTH + options)
    agents = [uaid(0x7F, 0x7F), uaid(0x7F, 0x80), uaid(0x80, 0x7F), uaid(0x80, 0x80)]

    assert tuple(url.allots(agent) for agent in agents) == expected


@pytest.mark.parametrize(
    "url,db_settings,sentence",
    [
        ("dual:", "", "needs .primary=URL&secondary=URL"),
        ("dual:?primary=memory:", "", "needs secondary"),
        ("dual:?secondary=memory:", "", "needs primary"),
        (f"{BOTH}&other=1", "", "no option 'other'"),
        (f"{BOTH}&median=1ff", "", "a hex byte"),
        (f"{BOTH}&median=zz", "", "a hex byte"),
        (f"{BOTH}&write_to_secondary=maybe", "", "1 or 0"),
        ("dual:?primary=dual:&secondary=memory:", "", "cannot be a dual store"),
        ("dual:?primary=embedded:./a&secondary=embedded:./a", "", "the same store"),
        ("dual:?primary=rocks:&secondary=memory:", "", "`rocks:` is not a known store"),
        ("dual://host?primary=memory:&secondary=memory:", "", "`dual:` must be followed"),
        ("dual", "{}", "invalid for a dual store"),
        ("dual", '{"primary": {"dsn": 3}}', "invalid for a dual store"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    url: str, db_settings: str, sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        parse_store_url(url, db_settings)

    assert "secret" not in str(caught.value)


def test_people_see_both_without_credentials_and_options() -> None:
    assert (
        shown_url(BOTH) == "dual: bigtable://project/instance/table and postgres://db.example/push"
    )
    assert shown_url("dual:?password=x") == "dual:"


def test_two_stores_are_shared_only_if_both_are() -> None:
    assert [backend.name for backend in backends_of(BOTH)] == ["bigtable", "postgres"]
    assert shared_by_machines(BOTH)
    assert not shared_by_machines("dual:?primary=redis://host&secondary=embedded:./old")
    assert shared_by_machines("dual:?primary=nothing")


async def test_the_url_opens_both(tmp_path: Path) -> None:
    store = await open_push_store(
        "dual:?primary=embedded:./new&secondary=memory:",
        data_dir=tmp_path,
        settings=Store(map_bytes=1 << 24),
        clock=ManualClock(),
    )
    try:
        assert isinstance(store, DualPushStore)
        assert isinstance(store.primary, EmbeddedPushStore)
        assert isinstance(store.secondary, MemoryPushStore)
        assert list(await store.warnings()) == []
        assert await store.check() is None
    finally:
        await store.close()


async def test_stores_that_need_no_making_are_not_made_and_do_not_rotate() -> None:
    url = "dual:?primary=memory:&secondary=memory:"

    assert await init_push_store(url, Store()) == []
    assert await rotate_push_store(url, Store(), ManualClock(), dry_run=True) is None
