"""What the maintenance of monthly tables plans."""

from datetime import UTC, datetime

from waystation.storage.dynamodb.rotate import Change, Drop, Make, Step, Units, plan
from waystation.storage.dynamodb.url import DynamoUrl

URL = DynamoUrl(region="r", rotation="monthly")
BIG, SMALL = Units(100, 200), Units(5, 5)


def planned(day: str, url: DynamoUrl = URL, /, **tables: Units) -> list[Step]:
    now_ms = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)
    return plan(url, tables, now_ms)


def test_next_months_table_is_made_with_this_months_units() -> None:
    assert planned("2026-11-15", message_2026_11=BIG) == [Make("message_2026_12", BIG)]


def test_a_new_store_gets_both_as_its_url_says() -> None:
    url = DynamoUrl(region="r", rotation="monthly", read_units=3, write_units=4)

    assert planned("2026-12-31", url) == [
        Make("message_2026_12", Units(3, 4)),
        Make("message_2027_01", Units(3, 4)),
    ]


def test_a_month_that_began_without_a_table_gets_last_months_units() -> None:
    assert planned("2026-12-01", message_2026_11=BIG) == [
        Make("message_2026_12", BIG),
        Make("message_2027_01", BIG),
    ]


def test_units_of_next_months_table_are_corrected() -> None:
    steps = planned("2026-11-15", message_2026_11=BIG, message_2026_12=SMALL)

    assert steps == [Change("message_2026_12", BIG)]


def test_last_months_units_are_lowered_when_few_are_left_there() -> None:
    tables = {"message_2026_10": BIG, "message_2026_11": BIG, "message_2026_12": BIG}

    assert planned("2026-11-07", **tables) == []
    assert planned("2026-11-08", **tables) == [Change("message_2026_10", SMALL)]
    assert planned("2026-11-08", **tables | {"message_2026_10": SMALL}) == []


def test_units_are_never_raised_by_lowering() -> None:
    tables = {"message_2026_10": Units(1, 9), "message_2026_11": BIG, "message_2026_12": BIG}

    assert planned("2026-11-20", **tables) == [Change("message_2026_10", Units(1, 5))]


def test_tables_older_than_last_month_are_dropped() -> None:
    tables = {f"message_2026_{month:02}": SMALL for month in (8, 9, 10, 11, 12)}

    assert planned("2026-11-01", **tables) == [Drop("message_2026_08"), Drop("message_2026_09")]


def test_a_table_without_a_month_is_left_to_its_operator() -> None:
    assert planned("2026-11-01", message=SMALL, message_2026_11=SMALL, message_2026_12=SMALL) == []


def test_the_year_turns() -> None:
    tables = {"message_2025_12": SMALL, "message_2026_01": SMALL}

    assert planned("2026-01-31", **tables) == [Make("message_2026_02", SMALL)]


def test_what_was_planned_and_done_is_not_planned_again() -> None:
    """It may be run at any time, as often as wanted."""
    tables: dict[str, Units] = {"message_2026_07": BIG, "message_2026_10": BIG}
    for step in planned("2026-11-20", **tables) + planned("2026-11-20", message_2026_11=BIG):
        match step:
            case Make(table, units) | Change(table, units):
                tables[table] = units
            case Drop(table):
                del tables[table]
    for step in planned("2026-11-20", **tables):
        assert isinstance(step, Change)
        tables[step.table] = step.units

    assert planned("2026-11-20", **tables) == []


def test_every_step_is_told_in_words() -> None:
    steps = [Make("a", BIG), Make("b", Units()), Change("c", SMALL), Drop("d")]

    assert [str(step) for step in steps] == [
        "make the table a with 100 read and 200 write units",
        "make the table b with no fixed units",
        "give the table c 5 read and 5 write units",
        "drop the table d",
    ]
