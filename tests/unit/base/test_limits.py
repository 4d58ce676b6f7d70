import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.limits import BoundedLru, BucketTable, CountLimit, TokenBucket


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(rate=2.0, burst=3)

    assert [bucket.take(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.take(100.25) == pytest.approx(0.25)
    assert bucket.take(100.5) == 0.0
    assert bucket.take(100.5) == pytest.approx(0.5)


def test_a_long_rest_saves_up_no_more_than_the_burst() -> None:
    bucket = TokenBucket(rate=10.0, burst=2)
    bucket.take(0.0)

    assert [bucket.take(1_000.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(0.1)]


@given(
    st.floats(0.1, 1000),
    st.integers(1, 50),
    st.lists(st.floats(0, 5, allow_nan=False), max_size=60),
)
def test_whoever_waits_as_told_gets_a_token(rate: float, burst: int, gaps: list[float]) -> None:
    bucket, mono = TokenBucket(rate, burst), 50.0
    for gap in gaps:
        mono += gap
        wait_s = bucket.take(mono)
        assert wait_s >= 0
        if wait_s:
            mono += wait_s
            assert bucket.take(mono) == 0.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2)), max_size=80))
def test_a_table_gives_each_key_the_answers_of_its_own_bucket(
    takes: list[tuple[str, float]],
) -> None:
    table: BucketTable[str] = BucketTable(rate=2.0, burst=3, keys_max=3)
    buckets = {key: TokenBucket(rate=2.0, burst=3) for key in "abc"}
    mono = 0.0
    for key, gap in takes:
        mono += gap
        assert table.take(key, mono) == pytest.approx(buckets[key].take(mono))


def test_a_table_forgets_full_buckets_and_never_grows_beyond_its_limit() -> None:
    table: BucketTable[int] = BucketTable(rate=1.0, burst=1, keys_max=10)
    for key in range(10):
        table.take(key, 0.0)
    assert len(table) == 10

    table.take(99, 5.0)
    assert len(table) == 9, "two full buckets left for the one that came"
    assert table.forgotten_early == 0

    for key in range(1_000):
        table.take(1_000 + key, 5.0)
    assert len(table) <= 10
    assert table.forgotten_early > 0


def test_the_longest_unused_entry_leaves_a_full_cache() -> None:
    cache: BoundedLru[str, int] = BoundedLru(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1

    cache.put("c", 3)

    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c"), len(cache)) == (1, 3, 2)


def test_putting_a_key_again_replaces_its_value_and_nobody_leaves() -> None:
    cache: BoundedLru[str, int] = BoundedLru(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)

    assert (cache.get("a"), cache.get("b"), len(cache)) == (3, 2, 2)


def test_an_entry_is_not_given_out_from_its_deadline_on() -> None:
    cache: BoundedLru[str, int] = BoundedLru(2)
    cache.put("a", 1, deadline=10.0)

    assert cache.get("a", mono=9.9) == 1
    assert cache.get("a", mono=10.0) is None
    assert "a" not in cache


def test_an_entry_can_be_taken_out_and_all_can_be_cleared() -> None:
    cache: BoundedLru[str, int] = BoundedLru(4)
    cache.put("a", 1)
    cache.put("b", 2)

    assert cache.pop("a") == 1
    assert cache.pop("a") is None
    cache.clear()
    assert len(cache) == 0


def test_a_count_limit_refuses_and_counts_and_has_room_again() -> None:
    limit = CountLimit("connections_max", 2)

    assert limit.enter()
    assert limit.enter()
    assert not limit.enter()
    limit.leave()
    assert limit.enter()
    assert (limit.used, limit.refused) == (2, 1)


def test_a_count_limit_takes_an_amount_whole_or_not_at_all() -> None:
    limit = CountLimit("buffered_bytes_max", 100)
    assert limit.enter(80)

    assert not limit.enter(30)
    assert limit.used == 80


def test_leaving_more_often_than_entering_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="connections_max"):
        CountLimit("connections_max", 2).leave()
