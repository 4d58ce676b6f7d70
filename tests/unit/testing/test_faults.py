import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.sim.push.checkers import History
from waystation.base.errors import StoreUnavailableError
from waystation.push.model import Uaid, UserAgent
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.faults import FaultyProxy, FaultyStore, StoreLuck
from waystation.testing.loop import SimClock, run_sim

UAID = Uaid(b"\x11" * 16)


def store_with(clock: SimClock, **luck: Any) -> tuple[FaultyStore, MemoryPushStore]:
    inner = MemoryPushStore(clock)
    return FaultyStore(inner, StoreLuck(random.Random(1), **luck), History(clock), "c0"), inner


class TestFaultyStore:
    def test_a_call_that_fails_before_its_effect_has_none(self) -> None:
        async def main(clock: SimClock) -> None:
            store, inner = store_with(clock, fails_before=1.0)

            with pytest.raises(StoreUnavailableError):
                await store.add_user_agent(UserAgent(uaid=UAID, connected_at_ms=1))
            assert await inner.get_user_agent(UAID) is None

        clock = SimClock()
        run_sim(main(clock), clock)

    def test_a_call_that_fails_after_its_effect_has_one(self) -> None:
        async def main(clock: SimClock) -> None:
            store, inner = store_with(clock, fails_after=1.0)

            with pytest.raises(StoreUnavailableError):
                await store.add_user_agent(UserAgent(uaid=UAID, connected_at_ms=1))
            assert await inner.get_user_agent(UAID) is not None

        clock = SimClock()
        run_sim(main(clock), clock)

    def test_a_killed_caller_does_not_take_its_call_back(self) -> None:
        async def main(clock: SimClock) -> None:
            store, inner = store_with(clock, waits=1.0, slow=1.0, slow_s=4.0)
            adding = asyncio.create_task(
                store.add_user_agent(UserAgent(uaid=UAID, connected_at_ms=1))
            )
            await asyncio.sleep(0)
            adding.cancel()
            assert await inner.get_user_agent(UAID) is None

            await asyncio.sleep(5)
            assert adding.cancelled()
            assert await inner.get_user_agent(UAID) is not None

        clock = SimClock()
        run_sim(main(clock), clock)

    def test_without_bad_luck_it_never_suspends(self) -> None:
        async def main(clock: SimClock) -> None:
            store, _ = store_with(clock, waits=1.0, down=True, calm=True)
            coro = store.get_user_agent(UAID)
            with pytest.raises(StopIteration):
                coro.send(None)

        clock = SimClock()
        run_sim(main(clock), clock)


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class TestFaultyProxy:
    async def test_it_carries_both_ways(self) -> None:
        async with echoing() as port, FaultyProxy("127.0.0.1", port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"hello")

            assert await asyncio.wait_for(reader.readexactly(5), 10) == b"hello"
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    async def test_what_is_stalled_arrives_after_resuming(self) -> None:
        async with echoing() as port, FaultyProxy("127.0.0.1", port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            proxy.stall()
            writer.write(b"hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            proxy.resume()

            assert await asyncio.wait_for(reader.readexactly(5), 10) == b"hello"
            writer.close()

    async def test_what_is_delayed_is_on_its_way_together_in_both_directions(self) -> None:
        async with echoing() as port, FaultyProxy("127.0.0.1", port) as proxy:
            proxy.delay_s = 0.1
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            began = time.monotonic()
            for piece in (b"one ", b"two ", b"three"):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)

            assert await asyncio.wait_for(reader.readexactly(13), 10) == b"one two three"
            assert time.monotonic() - began >= 0.2
            proxy.delay_s = 0.0
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    async def test_a_cut_resets_both_sides(self) -> None:
        async with echoing() as port, FaultyProxy("127.0.0.1", port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"x")
            await asyncio.wait_for(reader.readexactly(1), 10)
            proxy.cut()

            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(_until_the_end(reader), 10)
            writer.close()

    async def test_newcomers_can_be_refused(self) -> None:
        async with echoing() as port, FaultyProxy("127.0.0.1", port) as proxy:
            proxy.refusing = True
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)

            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(_until_the_end(reader), 10)
            assert proxy.accepted == 1
            writer.close()


async def _until_the_end(reader: asyncio.StreamReader) -> None:
    """A peer that was aborted reads an end or a reset; both are an end to us."""
    while await reader.read(1024):
        pass
    raise ConnectionResetError
