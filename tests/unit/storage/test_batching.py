"""Several callers, one question."""

import asyncio
from collections.abc import Sequence

import pytest

from waystation.base.errors import BusyError, StoreFullError, StoreUnavailableError, WaystationError
from waystation.storage.batching import IN_FLIGHT_MAX, Batcher


class Server:
    """Answers a number with its double, when it is let."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: WaystationError | None = None

    async def perform(self, numbers: Sequence[int]) -> Sequence[int | WaystationError]:
        self.asked.append(list(numbers))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [StoreFullError("full") if n < 0 else 2 * n for n in numbers]


def group_on(server: Server, *, group_max: int = 100, queue_max: int = 100) -> Batcher[int, int]:
    return Batcher(server.perform, server="PostgreSQL", group_max=group_max, queue_max=queue_max)


async def test_what_is_asked_in_one_turn_goes_together() -> None:
    server = Server()
    group = group_on(server)

    assert await asyncio.gather(*(group.ask(n) for n in range(5))) == [0, 2, 4, 6, 8]
    assert server.asked == [[0, 1, 2, 3, 4]]


async def test_while_enough_groups_are_on_their_way_the_next_one_grows() -> None:
    server = Server()
    server.open.clear()
    group = group_on(server)
    answers: list[asyncio.Future[int]] = []
    for n in range(IN_FLIGHT_MAX + 3):
        answers.append(group.ask(n))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert server.asked == [[n] for n in range(IN_FLIGHT_MAX)]

    server.open.set()
    assert await asyncio.gather(*answers) == [2 * n for n in range(IN_FLIGHT_MAX + 3)]
    assert server.asked[IN_FLIGHT_MAX:] == [list(range(IN_FLIGHT_MAX, IN_FLIGHT_MAX + 3))]


async def test_a_group_keeps_its_limit() -> None:
    server = Server()
    group = group_on(server, group_max=2)

    await asyncio.gather(*(group.ask(n) for n in range(5)))
    assert [len(asked) for asked in server.asked] == [2, 2, 1]


async def test_one_more_than_may_wait_is_refused() -> None:
    server = Server()
    group = group_on(server, queue_max=2)
    waiting = [group.ask(1), group.ask(2)]

    with pytest.raises(BusyError, match=r"store\.queue_max 2"):
        await group.ask(3)
    assert await asyncio.gather(*waiting) == [2, 4]


async def test_each_caller_has_its_own_error() -> None:
    group = group_on(Server())

    answers = await asyncio.gather(group.ask(1), group.ask(-1), return_exceptions=True)
    assert answers[0] == 2
    assert isinstance(answers[1], StoreFullError)


@pytest.mark.parametrize("error", [StoreFullError("full"), BusyError("busy")])
async def test_an_error_of_all_reaches_each_with_its_kind(error: WaystationError) -> None:
    server = Server()
    server.error = error
    group = group_on(server)

    answers = await asyncio.gather(group.ask(1), group.ask(2), return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(error)] * 2
    assert answers[0] is not answers[1]


async def test_who_left_before_the_group_is_not_asked_for() -> None:
    server = Server()
    group = group_on(server)
    gone, there = group.ask(1), group.ask(2)
    gone.cancel()

    assert await there == 4
    assert server.asked == [[2]]


async def test_who_leaves_later_does_not_disturb_the_others() -> None:
    server = Server()
    server.open.clear()
    group = group_on(server)
    gone, there = group.ask(1), group.ask(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    server.open.set()

    assert await there == 4
    assert server.asked == [[1, 2]]


async def test_closing_answers_what_was_asked_and_nothing_more() -> None:
    server = Server()
    group = group_on(server, group_max=1)
    waiting = [group.ask(n) for n in range(2 * IN_FLIGHT_MAX)]
    await group.close()

    assert [answer.result() for answer in waiting] == [2 * n for n in range(2 * IN_FLIGHT_MAX)]
    with pytest.raises(StoreUnavailableError, match="closed"):
        await group.ask(1)
    await group.close()
