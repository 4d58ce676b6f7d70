import asyncio
import random

from waystation.push.connect.connection import Connection, Ending, Handler
from waystation.push.wire.upgrade import Upgrade
from waystation.push.wire.websocket import close_frame, ping_frame, text_frame
from waystation.testing.loop import run_sim
from waystation.testing.network import Luck
from waystation.testing.wires import SimShell, Wire, server_frames


class Recorder:
    """A driver and a user agent, both of which only write down."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    # the driver's side
    def open(self, connection: Connection, upgrade: Upgrade) -> Handler:
        self.connection = connection
        return self

    def text(self, connection: Connection, text: bytes) -> None:
        self.seen.append(text)

    def binary(self, connection: Connection) -> None: ...

    def pinged(self, connection: Connection, payload: bytes) -> None: ...

    def ponged(self, connection: Connection) -> None:
        self.seen.append("pong")

    def broken(self, connection: Connection, code: int, reason: str) -> None: ...

    def closed(self, connection: Connection) -> None:
        self.seen.append(connection.ending)

    # the user agent's side
    def heard(self, wire: Wire, opcode: int, payload: bytes) -> None:
        self.seen.append((opcode, payload))

    def lost(self, wire: Wire, code: int) -> None:
        self.seen.append(("lost", code))


def shell_for(driver: Recorder, **limits: int) -> SimShell:
    limits = {"send_high_bytes": 1000, "send_bytes_max": 4000} | limits
    return SimShell(Luck(random.Random(1)), driver, **limits)


def test_frames_of_every_length_are_read_back() -> None:
    payloads = [b"", b"a", b"b" * 125, b"c" * 126, b"d" * 70_000]
    data = b"".join(map(text_frame, payloads)) + ping_frame() + close_frame(1011, "SM")

    frames = list(server_frames(data))
    assert [payload for opcode, payload in frames if opcode == 1] == payloads
    assert [opcode for opcode, _ in frames[-2:]] == [9, 8]


def test_nothing_overtakes_anything_on_one_connection() -> None:
    async def main() -> tuple[Recorder, Recorder]:
        driver, peer = Recorder(), Recorder()
        wire = shell_for(driver, send_high_bytes=10**6).connect(peer)
        assert wire is not None
        for n in range(40):
            wire.say(b"%d" % n)
            driver.connection.send(text_frame(b"%d" % n))
            await asyncio.sleep(0)
        await asyncio.sleep(10)
        return driver, peer

    driver, peer = run_sim(main())

    assert driver.seen == [b"%d" % n for n in range(40)]
    assert peer.seen == [(1, b"%d" % n) for n in range(40)]


def test_a_cut_is_noticed_on_both_sides_and_a_vanishing_on_none() -> None:
    async def main(how: str) -> tuple[list[object], list[object]]:
        driver, peer = Recorder(), Recorder()
        wire = shell_for(driver).connect(peer)
        assert wire is not None
        wire.cut() if how == "cut" else wire.vanish()
        driver.connection.send(text_frame(b"lost"))
        await asyncio.sleep(10)
        return driver.seen, peer.seen

    assert run_sim(main("cut")) == ([Ending.VANISHED], [("lost", 0)])
    assert run_sim(main("vanish")) == ([], [])


def test_a_close_of_the_node_reaches_the_user_agent_with_its_code() -> None:
    async def main() -> tuple[list[object], list[object]]:
        driver, peer = Recorder(), Recorder()
        shell_for(driver).connect(peer)
        driver.connection.close(1011, "SM")
        await asyncio.sleep(10)
        return driver.seen, peer.seen

    assert run_sim(main()) == ([Ending.CLOSED], [("lost", 1011)])


def test_a_user_agent_that_does_not_read_congests_and_then_overflows() -> None:
    async def main() -> Recorder:
        driver, peer = Recorder(), Recorder()
        wire = shell_for(driver).connect(peer)
        assert wire is not None
        wire.stalled = True
        driver.connection.send(text_frame(b"x" * 1500))
        assert driver.connection.congested
        driver.connection.send(text_frame(b"x" * 4000))
        await asyncio.sleep(10)
        return driver

    assert run_sim(main()).seen == [Ending.OVERFLOWED]
