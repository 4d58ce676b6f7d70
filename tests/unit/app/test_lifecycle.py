"""The life of one process: start, serve, drain, stop, whatever ends it."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from waystation.app.lifecycle import live
from waystation.app.supervisor_protocol import Ready, SupervisorLine, decode_report


class Recorded:
    """A runtime that writes down what is asked of it."""

    def __init__(self, *, broken: bool = False) -> None:
        self.calls: list[str] = []
        self._broken = broken

    async def start(self) -> None:
        self.calls.append("start")
        if self._broken:
            raise OSError("no socket for us")

    async def drain(self, over_s: float) -> None:
        self.calls.append(f"drain {over_s}")

    async def stop(self) -> None:
        self.calls.append("stop")

    def reload(self) -> None:
        self.calls.append("reload")


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    """What was frozen stays so: conftest.py froze all tests as well."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


async def test_sigterm_drains_and_stops() -> None:
    runtime = Recorded()
    await live(runtime, drain_s=3.0, on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM))

    assert runtime.calls == ["start", "drain 3.0", "stop"]


async def test_sighup_reads_certificates_again_and_goes_on() -> None:
    runtime = Recorded()

    def ready() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)

    await live(runtime, drain_s=0.0, on_ready=ready)

    assert runtime.calls == ["start", "reload", "drain 0.0", "stop"]


async def test_a_start_that_fails_half_way_is_put_away() -> None:
    runtime = Recorded(broken=True)
    with pytest.raises(OSError, match="no socket for us"):
        await live(runtime, drain_s=1.0)

    assert runtime.calls == ["start", "stop"]


async def test_a_start_that_waits_is_broken_off_by_sigterm() -> None:
    runtime = Recorded()
    begun = runtime.start

    async def start() -> None:
        await begun()
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    runtime.start = start
    await asyncio.wait_for(live(runtime, drain_s=3.0), 10)

    assert runtime.calls == ["start", "stop"]


async def test_the_supervisor_hears_when_we_are_ready_and_its_end_is_ours() -> None:
    """Nobody waits for an orphan, so its closes are not spread."""
    runtime = Recorded()
    ours, theirs = socket.socketpair()
    life = asyncio.create_task(live(runtime, drain_s=9.0, line=SupervisorLine(theirs)))
    loop = asyncio.get_running_loop()
    ours.setblocking(False)
    heard = await asyncio.wait_for(loop.sock_recv(ours, 1000), 10)
    ours.close()
    await asyncio.wait_for(life, 10)
    theirs.close()

    assert decode_report(heard.strip()) == Ready()
    assert runtime.calls == ["start", "drain 0.0", "stop"]


async def test_what_start_made_is_frozen() -> None:
    before = gc.get_freeze_count()
    frozen: list[int] = []

    def ready() -> None:
        frozen.append(gc.get_freeze_count())
        os.kill(os.getpid(), signal.SIGTERM)

    await live(Recorded(), drain_s=0.0, on_ready=ready)

    assert frozen[0] > before
