import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sim.push.relay import SimRelay
from tests.sim.sockets import Luck, SimNetLoop, SimNetwork
from waystation.net.http1.server import HttpServer, Request, Response, no_body
from waystation.push.connect.node_api import NodeApi
from waystation.push.link_handshake import TOKEN, link_port
from waystation.push.model import MessageId, Notification, SortKey, Uaid, Update
from waystation.push.wire.relay import Answer, ServedNode
from waystation.testing.loop import SimClock, run_sim

UAID = Uaid(b"\x11" * 16)
NODE = "http://c0:8081"
SECRET = b"a secret that both know"


class Recorder:
    """A node, its place and a witness, all of which only write down."""

    name = "c0"
    lives = 1

    def __init__(self, *, answers: bool = True) -> None:
        self.seen: list[object] = []
        self.up = True
        self._answers = answers

    @property
    def node(self) -> ServedNode | None:
        return self if self.up else None

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        return Answer.TAKEN

    async def check_stored(self, uaid: Uaid) -> Answer:
        self.seen.append("check")
        if not self._answers:
            await asyncio.sleep(1_000)
        return Answer.FLAGGED

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        return Answer.TAKEN

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None: ...

    def misheard(self, uaid: Uaid, message_id: MessageId | None) -> None:
        self.seen.append("misheard")

    def problem(self, sentence: str) -> None:
        raise AssertionError(sentence)


class World:
    def __init__(self, clock: SimClock, secret: bytes) -> None:
        self.clock = clock
        self.secret = secret
        self.network = SimNetwork(Luck(random.Random(1)))

    def serve(self, node: Recorder) -> SimNetLoop:
        net = SimNetLoop(self.network.host("c0"), clock=self.clock)
        api = NodeApi(
            node=node,
            worker=lambda _: None,
            sort_key_of=SortKey,
            health=lambda _: None,
            secret=self.secret,
            links=link_port(net),
            clock=self.clock,
        )
        server = HttpServer(
            api,
            net=net,
            clock=self.clock,
            body_limit=no_body,
            on_failure=_failed,
            upgrades=frozenset({TOKEN}),
        )
        server.listen_on(net.host.listening(8081))
        return net

    def relay(self, place: Recorder, own_node_id: str = "http://e0") -> SimRelay:
        return SimRelay(
            {NODE: place},
            place,
            own_node_id=own_node_id,
            net=SimNetLoop(self.network.host("e0"), clock=self.clock),
            clock=self.clock,
            secret=self.secret,
        )


def _failed(_request: Request, error: BaseException) -> Response:
    raise error


@pytest.fixture(params=[b"", SECRET], ids=["http", "link"])
def run(
    request: pytest.FixtureRequest,
) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], float]:
    def start(test: Callable[[World], Coroutine[Any, Any, None]]) -> float:
        clock = SimClock()

        async def main() -> None:
            await test(World(clock, request.param))

        run_sim(main(), clock)
        return clock.elapsed_s

    return start


Run = Callable[[Callable[[World], Coroutine[Any, Any, None]]], float]


def test_a_request_reaches_the_node_and_its_answer_comes_back(run: Run) -> None:
    async def test(world: World) -> None:
        place = Recorder()
        world.serve(place)

        assert await world.relay(place).check_stored(NODE, UAID) is Answer.FLAGGED
        assert place.seen == ["check"]

    run(test)


def test_an_answer_that_does_not_come_may_hide_an_effect(run: Run) -> None:
    async def test(world: World) -> None:
        place = Recorder(answers=False)
        world.serve(place)

        assert await world.relay(place).check_stored(NODE, UAID) is Answer.UNREACHABLE
        assert place.seen == ["check", "misheard"]

    run(test)


def test_a_node_that_is_down_refuses_and_nobody_is_misled(run: Run) -> None:
    async def test(world: World) -> None:
        place = Recorder()
        place.up = False

        assert await world.relay(place).check_stored(NODE, UAID) is Answer.UNREACHABLE
        assert place.seen == []

    assert run(test) < 3.0


def test_a_node_that_is_killed_over_a_request_is_unreachable(run: Run) -> None:
    async def test(world: World) -> None:
        place = Recorder(answers=False)
        net = world.serve(place)
        asyncio.get_running_loop().call_later(2.0, net.kill)

        assert await world.relay(place).check_stored(NODE, UAID) is Answer.UNREACHABLE
        assert place.seen[:2] == ["check", "misheard"]

    run(test)


def test_parted_nodes_time_out_or_are_refused_at_once(run: Run) -> None:
    async def test(world: World) -> None:
        place = Recorder()
        world.serve(place)
        world.network.part("e0", "c0")

        assert await world.relay(place).check_stored(NODE, UAID) is Answer.UNREACHABLE
        assert place.seen == ["misheard"]

    run(test)


def test_a_node_nearby_is_a_function_call(run: Run) -> None:
    async def test(world: World) -> None:
        place = Recorder()

        assert await world.relay(place, NODE).push(NODE, UAID, Update(UAID, 1)) is Answer.TAKEN  # pyright: ignore[reportArgumentType]

    assert run(test) == 0.0
