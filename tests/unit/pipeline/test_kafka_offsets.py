"""Which offsets of a topic come next; plain values, no broker."""

import pytest

from waystation.pipeline.sources import kafka
from waystation.pipeline.sources.kafka import Offsets, Range, TopicError, cut, split


def test_a_batch_goes_from_where_the_lake_is_to_where_the_partition_ends() -> None:
    done = {0: 5, 2: 7}

    found = cut("events", {0: (0, 9), 1: (3, 4), 2: (0, 7)}, done.get, records_max=100)

    assert found == Offsets([Range(0, 5, 9), Range(1, 3, 4)], missing=0)


def test_partitions_share_a_batch_and_leave_to_others_what_they_do_not_need() -> None:
    ends = {0: (0, 1000), 1: (0, 10), 2: (0, 1000)}

    found = cut("events", ends, lambda _: None, records_max=110)

    assert found.ranges == [Range(0, 0, 50), Range(1, 0, 10), Range(2, 0, 50)]


def test_every_partition_gets_on_even_if_a_batch_is_smaller_than_their_number() -> None:
    ends = dict.fromkeys(range(4), (0, 3))

    found = cut("events", ends, lambda _: None, records_max=1)

    assert [one.end for one in found.ranges] == [1, 1, 1, 1]


def test_what_was_removed_before_it_was_read_is_counted() -> None:
    found = cut("events", {0: (20, 30)}, {0: 12}.get, records_max=100)

    assert found == Offsets([Range(0, 20, 30)], missing=8)


def test_a_new_lake_misses_nothing_of_a_topic_that_is_old() -> None:
    assert cut("events", {0: (20, 30)}, lambda _: None, records_max=100).missing == 0


def test_a_topic_that_was_made_anew_stops_everything() -> None:
    with pytest.raises(TopicError, match="partition 1 of topic events ends at offset 4"):
        cut("events", {0: (0, 9), 1: (0, 4)}, {1: 5}.get, records_max=100)


def test_a_long_range_is_cut_for_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "RANGE_RECORDS_MAX", 10)

    assert list(split(Range(3, 5, 26))) == [Range(3, 5, 15), Range(3, 15, 25), Range(3, 25, 26)]
