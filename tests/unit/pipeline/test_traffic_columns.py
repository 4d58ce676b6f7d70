"""Synthetic traffic by the column, beside the twin that makes one row at a time."""

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from tests.pipeline.samples import ODD, USUAL
from waystation.pipeline.seeded_random import Draws, draw, signed
from waystation.pipeline.traffic import Traffic, rows
from waystation.pipeline.traffic_columns import HOUR_US, Plan, Slice
from waystation.telemetry import contract

NAMES = list(contract.COLUMNS)
arrow: Any = import_module("pyarrow")


def test_a_column_of_draws_is_made_of_single_draws() -> None:
    entities = [0, 1, 123_456_789, 2**40 + 7, 2**62, -5 % 2**63]
    numbers = [0, 1, 2, 101, 999, 5]
    draws = Draws(2**40, arrow.array(entities))

    assert draws.at(103).to_pylist() == [draw(2**40, one, 103) for one in entities]
    assert draws.at(arrow.array(numbers)).to_pylist() == [
        draw(2**40, one, number) for one, number in zip(entities, numbers, strict=True)
    ]
    assert draws.below(5, 1000).to_pylist() == [draw(2**40, one, 5) % 1000 for one in entities]
    assert draws.ids(5).to_pylist() == [signed(draw(2**40, one, 5)) for one in entities]
    assert draws.of(arrow.array([4, 1])).at(7).to_pylist() == [
        draw(2**40, entities[at], 7) for at in (4, 1)
    ]


def test_draws_stay_what_they_were() -> None:
    """As Spark's xxhash64 says: data that was generated once can be generated again."""
    assert [draw(*three) for three in ((1, 0, 0), (7, 123_456_789, 3), (2**40, 2**62, 999))] == [
        515_350_186_187_004_242,
        4_779_755_376_146_266_214,
        5_056_646_341_720_586_354,
    ]


@pytest.mark.parametrize("traffic", [USUAL, ODD], ids=["plain", "odd"])
def test_both_twins_make_the_same_rows(traffic: Traffic) -> None:
    made = Slice(traffic, Plan(traffic), 0, traffic.messages).by_hour()

    assert told(made) == Counter(tuple(row.get(name) for name in NAMES) for row in rows(traffic))


def test_a_slice_can_be_made_alone() -> None:
    made = Slice(ODD, Plan(ODD), 900, 1_100).by_hour()
    alone = rows(ODD, 900, 1_100)

    assert told(made) == Counter(tuple(row.get(name) for name in NAMES) for row in alone)


@pytest.mark.parametrize("traffic", [USUAL, ODD], ids=["plain", "odd"])
def test_every_hour_is_in_the_order_of_the_table(traffic: Traffic) -> None:
    made = Slice(traffic, Plan(traffic), 0, traffic.messages, in_us=77).by_hour()

    assert len(made) >= 24 * traffic.days - 2
    for hour, table in made.items():
        inside = table.to_pylist()
        keys = [(row["k"], row["mid"] or "", row["ts"]) for row in inside]
        assert keys == sorted(keys)
        assert {row["ts"] // HOUR_US for row in inside} == {hour}
        assert {row["_in"] for row in inside} == {77}


def told(made: dict[int, Any]) -> Counter[tuple[object, ...]]:
    return Counter(
        tuple(row[name] for name in NAMES) for table in made.values() for row in table.to_pylist()
    )
