import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from waystation.push.model import MessageId, Notification, Uaid, Update
from waystation.push.wire.relay import Answer, Node
from waystation.testing.loop import run_sim
from waystation.testing.network import ANSWER_TIMEOUT_S, Luck, Network, SimRelay

UAID = Uaid(b"\x11" * 16)
NODE = "http://c0:8081"


class Recorder:
    """A node, its place and a witness, all of which only write down."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.up = True

    @property
    def node(self) -> Node | None:
        return self if self.up else None

    def run(self, coro: Coroutine[Any, Any, None]) -> object:
        return asyncio.get_running_loop().create_task(coro)

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        return Answer.TAKEN

    async def check_stored(self, uaid: Uaid) -> Answer:
        self.seen.append("check")
        return Answer.FLAGGED

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        return Answer.TAKEN

    def misheard(self, uaid: Uaid, message_id: MessageId | None) -> None:
        self.seen.append("misheard")


def test_a_lost_answer_looks_like_a_lost_request_but_the_node_has_acted() -> None:
    async def main(**luck: Any) -> tuple[Answer, list[object], float]:
        place = Recorder()
        network = Network(Luck(random.Random(1), **luck), {NODE: place}, place)
        answer = await SimRelay(network, "e0").check_stored(NODE, UAID)
        return answer, place.seen, asyncio.get_running_loop().time()

    assert run_sim(main())[:2] == (Answer.FLAGGED, ["check"])
    assert run_sim(main(answer_lost=1.0)) == (
        Answer.UNREACHABLE,
        ["check", "misheard"],
        ANSWER_TIMEOUT_S,
    )
    assert run_sim(main(request_lost=1.0))[:2] == (Answer.UNREACHABLE, ["misheard"])


def test_a_node_that_is_down_refuses_and_nobody_is_misled() -> None:
    async def main() -> tuple[Answer, list[object]]:
        place = Recorder()
        place.up = False
        network = Network(Luck(random.Random(1)), {NODE: place}, place)
        return await SimRelay(network, "e0").check_stored(NODE, UAID), place.seen

    assert run_sim(main()) == (Answer.UNREACHABLE, [])


def test_a_parted_pair_cannot_speak_until_it_is_joined() -> None:
    async def main() -> list[Answer]:
        place = Recorder()
        network = Network(Luck(random.Random(1)), {NODE: place}, place)
        relay = SimRelay(network, "e0")
        network.part("e0", NODE)
        answers = [await relay.check_stored(NODE, UAID)]
        network.join("e0", NODE)
        return [*answers, await relay.check_stored(NODE, UAID)]

    assert run_sim(main()) == [Answer.UNREACHABLE, Answer.FLAGGED]
