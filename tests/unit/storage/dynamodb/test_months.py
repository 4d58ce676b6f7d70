from datetime import UTC, datetime

import pytest

from waystation.push.model import Uaid
from waystation.storage.dynamodb.months import (
    DATELESS,
    Remembered,
    access_keys,
    last_connect,
    month_at,
    month_of_name,
    month_of_table,
    same_month,
    table_name,
)


def ms(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)


def test_a_month_has_its_own_table() -> None:
    assert table_name("message", month_at(ms(2015, 2, 1))) == "message_2015_02"
    assert table_name("message", month_at(ms(2015, 2, 28, 23, 59, 59))) == "message_2015_02"
    assert table_name("message", month_at(ms(2015, 3, 1))) == "message_2015_03"


def test_december_is_followed_by_january() -> None:
    december = month_at(ms(2026, 12, 31))

    assert table_name("m", december + 1) == "m_2027_01"
    assert table_name("m", december - 12) == "m_2025_12"


@pytest.mark.parametrize(
    "table, month",
    [
        ("message_2015_02", 2015 * 12 + 1),
        ("message_2015_2", 2015 * 12 + 1),
        ("message", DATELESS),
        ("message_2015_13", None),
        ("message_2015_00", None),
        ("message_old_2015_02", None),
        ("xmessage_2015_02", None),
        ("messages", None),
        ("router", None),
        ("2015_02", None),
    ],
)
def test_message_tables_are_known_by_their_names(table: str, month: int | None) -> None:
    """Older generations wrote a month without a zero."""
    assert month_of_table("message", table) == month


def test_a_name_may_end_in_a_month() -> None:
    assert month_of_name("anything_2021_06") == 2021 * 12 + 5
    assert month_of_name("anything") is None


def test_last_connect_is_one_of_few_keys_of_a_month() -> None:
    """§6.7: digits YYYY MM HH and 0000 to 0010"""
    now_ms = ms(2026, 3, 9, 7, 30)

    assert last_connect(now_ms, 0.0) == 2026_03_07_0000
    assert last_connect(now_ms, 0.999999) == 2026_03_07_0010


def test_last_connect_tells_its_month() -> None:
    now_ms = ms(2026, 3, 9)

    assert same_month(last_connect(now_ms, 0.5), ms(2026, 3, 31))
    assert not same_month(last_connect(now_ms, 0.5), ms(2026, 4, 1))
    assert not same_month(None, now_ms)


def test_only_so_many_tables_are_remembered() -> None:
    remembered = Remembered(limit=2)
    first, second, third = (Uaid(bytes([n]) * 16) for n in range(3))
    remembered.put(first, "a")
    remembered.put(second, "b")
    remembered.put(first, "c")
    remembered.put(third, "d")

    assert [remembered.get(uaid) for uaid in (first, second, third)] == ["c", None, "d"]
    remembered.drop(first)
    assert remembered.get(first) is None


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999999])
def test_every_last_connection_is_among_the_keys_of_its_month(chance: float) -> None:
    keys = access_keys(month_at(ms(2026, 12, 31, 23)))

    assert last_connect(ms(2026, 12, 31, 23), chance) in keys
    assert len(set(keys)) == len(keys) == 24 * 11
