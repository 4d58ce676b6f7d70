"""Conformance suite for server push stores behind a faulty network.

A store's tests subclass `PushStoreFaults`, with the fixtures `proxy`, `store` (through that proxy)
and `clock`, and state the store's limits:

    class TestBehindAProxy(PushStoreFaults):
        waiting_max = 64

Failed calls raise `StoreUnavailableError` or `BusyError` in time (for senders: 503 with
Retry-After), other calls succeed, confirmed writes are kept, and the store recovers without a
restart.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import pytest

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import ChannelId, Notification, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.testing.conformance.push_samples import fetch_all, new_channel, timed_notification
from waystation.testing.faults import FaultyProxy

SOON_S = 30.0  # generous: the machine may be busy

T = TypeVar("T")
Subscriber = tuple[Uaid, ChannelId]


async def subscribe(store: PushStore, clock: Clock, subscriber: Subscriber) -> None:
    """Adds a new connected user agent with one channel."""
    uaid, channel_id = subscriber
    record = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id="http://a:8081")
    assert await store.add_user_agent(record)
    assert await store.add_channel(uaid, channel_id, channels_max=10)


async def patiently(ask: Callable[[], Awaitable[T]], within_s: float = SOON_S) -> T:
    """Repeats a call until it succeeds. Stores in these tests have short timeouts, which a healthy
    server on a busy machine may exceed."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return await ask()
        except (StoreUnavailableError, BusyError):
            assert time.monotonic() < deadline, "it did not recover"
            await asyncio.sleep(0.05)


async def recovered(store: PushStore, within_s: float = SOON_S) -> None:
    """Waits until the store works again."""
    await patiently(store.check, within_s)


class PushStoreFaults:
    """The tests; they use real time."""

    soon_s: ClassVar[float] = SOON_S

    refused_within_s: ClassVar[float] = 30.0
    """Within this time calls fail if no server answers."""

    waiting_max: ClassVar[int]
    """Number of waiting and pending calls before further ones raise `BusyError`."""

    delay_s: ClassVar[float] = 0.02
    """Latency in one direction: noticeable, but far below the timeouts of the store under test."""

    @pytest.fixture
    async def subscriber(self, store: PushStore, clock: Clock) -> Subscriber:
        subscriber = Uaid(new_uuid4()), new_channel()
        await subscribe(store, clock, subscriber)
        return subscriber

    async def recovered(self, store: PushStore) -> None:
        await recovered(store, self.soon_s)

    async def test_a_server_that_stalls_is_given_up_in_time_and_found_again(
        self, store: PushStore, proxy: FaultyProxy, clock: Clock, subscriber: Subscriber
    ) -> None:
        uaid, channel_id = subscriber
        saved = _row(channel_id, clock, 1)
        await patiently(lambda: store.save(uaid, saved))
        proxy.stall()
        began = time.monotonic()

        with pytest.raises(StoreUnavailableError):
            await store.save(uaid, _row(channel_id, clock, 2))
        assert time.monotonic() - began < self.soon_s
        proxy.resume()
        await self.recovered(store)
        assert saved.sort_key in await _keys(store, uaid, clock)

    async def test_a_connection_that_is_cut_concerns_who_waits_and_nobody_after(
        self, store: PushStore, proxy: FaultyProxy, clock: Clock, subscriber: Subscriber
    ) -> None:
        uaid, channel_id = subscriber
        proxy.stall()
        rows = [_row(channel_id, clock, n) for n in range(5)]
        waiting = [asyncio.create_task(store.save(uaid, row)) for row in rows]
        await asyncio.sleep(0.05)
        proxy.cut()
        proxy.resume()

        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} <= {StoreUnavailableError, type(None)}
        await self.recovered(store)
        await patiently(lambda: store.save(uaid, _row(channel_id, clock, 9)))
        confirmed = {row.sort_key for row, failed in zip(rows, results, strict=True) if not failed}
        assert confirmed <= await _keys(store, uaid, clock)

    async def test_while_nobody_is_there_calls_fail_soon(
        self, store: PushStore, proxy: FaultyProxy, subscriber: Subscriber
    ) -> None:
        uaid, channel_id = subscriber
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(StoreUnavailableError):
            await _until_it_is_noticed(store, uaid)

        began = time.monotonic()
        refused = await asyncio.gather(
            *(store.get_user_agent(uaid) for _ in range(50)), return_exceptions=True
        )
        # A call that waits too long for a free slot raises `BusyError`.
        others = [one for one in refused if not isinstance(one, StoreUnavailableError | BusyError)]
        assert others == [], others
        assert any(isinstance(one, StoreUnavailableError) for one in refused)
        assert time.monotonic() - began < self.refused_within_s, (
            "calls must not time out one after the other"
        )
        proxy.refusing = False
        await self.recovered(store)
        assert await patiently(lambda: store.look_up(uaid, channel_id)) is not None

    async def test_only_so_many_wait(
        self, store: PushStore, proxy: FaultyProxy, subscriber: Subscriber
    ) -> None:
        uaid, _ = subscriber
        proxy.stall()
        asked = self.waiting_max + 40
        calls: list[Awaitable[object]] = [store.get_user_agent(uaid) for _ in range(asked)]

        results = await asyncio.gather(*calls, return_exceptions=True)
        others = [one for one in results if not isinstance(one, StoreUnavailableError | BusyError)]
        assert others == [], others
        assert sum(isinstance(result, BusyError) for result in results) >= 40
        proxy.resume()
        await self.recovered(store)
        assert await patiently(lambda: store.get_user_agent(uaid)) is not None

    async def test_what_was_confirmed_is_there_whatever_the_network_does(
        self, store: PushStore, proxy: FaultyProxy, clock: Clock, subscriber: Subscriber
    ) -> None:
        uaid, channel_id = subscriber
        confirmed: set[str] = set()

        async def sender(first: int) -> None:
            for n in range(first, first + 25):
                row = _row(channel_id, clock, n)
                try:
                    await store.save(uaid, row)
                except (StoreUnavailableError, BusyError):
                    await asyncio.sleep(0.02)
                else:
                    confirmed.add(row.sort_key)
                await asyncio.sleep(0.01)

        async def bad_luck() -> None:
            for turn in range(4):
                await asyncio.sleep(0.1)
                proxy.delay_s = self.delay_s * (turn % 2)
                proxy.cut()
                proxy.stall()
                await asyncio.sleep(0.05)
                proxy.resume()
            proxy.delay_s = 0.0

        await asyncio.gather(*(sender(first) for first in range(0, 400, 100)), bad_luck())
        await self.recovered(store)
        assert confirmed
        assert confirmed <= await _keys(store, uaid, clock)

    async def test_a_caller_that_leaves_does_not_disturb_the_others(
        self, store: PushStore, proxy: FaultyProxy, subscriber: Subscriber
    ) -> None:
        uaid, channel_id = subscriber
        proxy.stall()
        leaving = asyncio.create_task(store.get_channels(uaid))
        staying = asyncio.create_task(store.look_up(uaid, channel_id))
        await asyncio.sleep(0.05)
        leaving.cancel()
        proxy.resume()

        found = await staying
        assert found is not None
        assert found.subscribed
        assert await patiently(lambda: store.get_channels(uaid)) == {channel_id}

    async def test_a_server_far_away_is_slow_and_nothing_else(
        self, store: PushStore, proxy: FaultyProxy, clock: Clock, subscriber: Subscriber
    ) -> None:
        """Latency is not a failure: concurrent calls are pipelined, in order."""
        uaid, channel_id = subscriber
        proxy.delay_s = self.delay_s
        began = time.monotonic()
        found = await store.look_up(uaid, channel_id)
        took_s = time.monotonic() - began
        rows = [_row(channel_id, clock, n) for n in range(8)]  # few: a server may be busy
        await asyncio.gather(*(store.save(uaid, row) for row in rows))
        delivered = await fetch_all(store, uaid, now_ms=clock.now_ms())
        acked = [(row.sort_key, row.message_id) for row in rows[:4]]
        gone = await store.forget(uaid, acked)
        proxy.delay_s = 0.0

        assert found is not None
        assert found.subscribed
        assert took_s >= 2 * self.delay_s
        assert delivered == rows
        assert gone == 4
        assert await _keys(store, uaid, clock) == {row.sort_key for row in rows[4:]}

    async def test_answers_that_come_too_late_are_failures_and_their_effects_may_stay(
        self, store: PushStore, proxy: FaultyProxy, clock: Clock, subscriber: Subscriber
    ) -> None:
        uaid, channel_id = subscriber
        sure, doubtful = _row(channel_id, clock, 1), _row(channel_id, clock, 2)
        await patiently(lambda: store.save(uaid, sure))
        proxy.delay_s = self.soon_s
        with pytest.raises(StoreUnavailableError):
            await store.save(uaid, doubtful)
        proxy.delay_s = 0.0
        proxy.cut()

        await self.recovered(store)
        await patiently(lambda: store.save(uaid, doubtful))
        assert await _keys(store, uaid, clock) == {sure.sort_key, doubtful.sort_key}


async def _until_it_is_noticed(store: PushStore, uaid: Uaid) -> None:
    for _ in range(100):
        await store.get_user_agent(uaid)
        await asyncio.sleep(0.01)


def _row(channel_id: ChannelId, clock: Clock, n: int) -> Notification:
    return timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=f"{n:05}")


async def _keys(store: PushStore, uaid: Uaid, clock: Clock) -> set[str]:
    rows = await patiently(lambda: fetch_all(store, uaid, now_ms=clock.now_ms()))
    return {row.sort_key for row in rows}
