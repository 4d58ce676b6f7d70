"""`kill -9` of every process in turn, under load, at random moments: promises 1 and 2.

A seed is printed with each run; KILLS_SEED repeats its choices (not the machine's timing).
"""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.crowd import Crowd
from tests.e2e.platform import BIN, Serve, clean_environment
from tests.e2e.wire_clients import http
from tests.e2e.witness import Line, Witness

pytestmark = pytest.mark.e2e

KINDS = ("worker", "other worker", "console", "supervisor", "everything")


class Killer:
    """Knows the processes of a server by what they listen to, and ends them."""

    def __init__(self, server: Serve, witness: Witness, chance: random.Random) -> None:
        self._server = server
        self._witness = witness
        self._chance = chance

    async def kill(self, kind: str) -> None:
        server = self._server
        self._witness.killed(time.monotonic())
        if kind == "everything":
            await asyncio.to_thread(server.kill)
        elif kind == "supervisor":
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.to_thread(server.wait)
        else:
            os.kill(self._find(kind), signal.SIGKILL)
            return
        # Orphans notice by themselves, and end; what they do until then may lose no more than
        # what a kill may.
        await asyncio.sleep(self._chance.uniform(0, 0.3))
        await asyncio.to_thread(server.start)
        self._witness.killed(time.monotonic())

    def _find(self, kind: str) -> int:
        ports: dict[str, int] = self._server.addresses["ports"]
        pids = self._server.worker_pids()
        port = ports["console.port" if kind == "console" else "connect.port"]
        # One that was killed a moment ago is not back yet: then whoever was started last.
        found = [pid for pid in pids if listens(pid, port)] or pids[-1:]
        return found[-1] if kind == "other worker" else found[0]


def listens(pid: int, port: int) -> bool:
    wanted = f":{port:04X}"
    inodes: set[str] = set()
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    for line in itertools.chain(*tables):
        fields = line.split()
        if fields[1].endswith(wanted) and fields[3] == "0A":  # LISTEN
            inodes.add(f"socket:[{fields[9]}]")
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        return any(os.readlink(descriptor) in inodes for descriptor in descriptors)
    except OSError:
        return False  # it has just ended


async def ready_again(server: Serve) -> None:
    """All its processes are back."""
    expected = server.workers + 1
    ports = server.addresses["ports"]
    async with asyncio.timeout(30):
        while True:
            pids = server.worker_pids()
            up = [pid for pid in pids if any(listens(pid, port) for port in ports.values())]
            if len(up) >= expected:
                return
            await asyncio.sleep(0.05)


async def rounds(server: Serve, *, seed: int, kills: list[str]) -> Witness:
    """A crowd, and a kill now and then; then quiet, until all has arrived."""
    chance = random.Random(seed)
    crowd = Crowd(server.ws_url, seed=seed)
    killer = Killer(server, crowd.witness, chance)
    await crowd.subscribe()
    async with crowd.alive():
        async with crowd.posting():
            await asyncio.sleep(0.5)
            for kind in kills:
                await asyncio.sleep(chance.uniform(0.2, 1.2))
                await killer.kill(kind)
                # Now and then the next kill comes before the server has recovered.
                if chance.random() < 0.7:
                    await ready_again(server)
            await ready_again(server)
            await asyncio.sleep(0.5)
        await crowd.calm_down()
        await asyncio.sleep(1.5)  # acks are recorded
    return crowd.witness


def seed_of_today() -> int:
    return int(os.environ.get("KILLS_SEED") or random.SystemRandom().randrange(2**32))


def kinds(count: int, seed: int) -> list[str]:
    """Each at least once, in any order."""
    chance = random.Random(seed)
    chosen = [*KINDS, *(chance.choice(KINDS) for _ in range(count - len(KINDS)))]
    chance.shuffle(chosen)
    return chosen


async def broken_promises(server: Serve, *, kills: int) -> list[str]:
    """After that many kills under load."""
    seed = seed_of_today()
    plan = kinds(kills, seed)
    print(f"KILLS_SEED={seed}: {', '.join(plan)}")
    witness = await rounds(server, seed=seed, kills=plan)
    print(witness.summary())

    assert witness.accepted > 20 * kills
    assert (await http("GET", f"{server.endpoint_url}/__heartbeat__")).status == 200
    assert server.stop() == 0
    check = subprocess.run(
        [BIN / "waystation", "store", "check", "--data-dir", server.data_dir],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert check.returncode == 0, check
    assert "no problems" in check.stdout
    return witness.verdict() + [line for line in server.lines if "Traceback" in line]


async def test_nothing_is_lost_by_five_kills(data_dir: Path) -> None:
    with Serve(data_dir, workers=2) as server:
        assert await broken_promises(server, kills=5) == []


@pytest.mark.soak
@pytest.mark.parametrize("journal", ["write", "fsync"])
async def test_nothing_is_lost_by_fifty_kills(data_dir: Path, journal: str) -> None:
    with Serve(data_dir, workers=2, connect__inflight_journal=journal) as server:
        assert await broken_promises(server, kills=50) == []


# --- the witness itself: one that cannot complain proves nothing ----------------------------------


class TestWitness:
    def test_it_misses_what_was_answered_and_never_came(self) -> None:
        witness = Witness()
        number = witness.began(("d", 0), None, 1.0)
        witness.ended(number, "accepted", 2.0)

        assert witness.missing() == [number]
        assert "never came" in witness.verdict()[0]

    def test_it_does_not_miss_what_was_not_answered(self) -> None:
        witness = Witness()
        witness.ended(witness.began(("d", 0), None, 1.0), "unknown", 2.0)

        assert witness.verdict() == []

    def test_a_topic_is_replaced_by_a_later_one_only(self) -> None:
        witness = Witness()
        older = witness.began(("d", 0), "t", 1.0)
        witness.ended(older, "accepted", 2.0)
        newer = witness.began(("d", 0), "t", 3.0)
        witness.ended(newer, "accepted", 4.0)

        assert witness.missing() == [newer]

    def test_it_waits_for_no_ack_of_what_was_replaced(self) -> None:
        """Its device went away without an ack; only the newer one comes when it is back."""
        witness = Witness()
        older = witness.began(("d", 0), "t", 1.0)
        witness.ended(older, "accepted", 2.0)
        witness.got(older, ("d", 0), 2.5)
        assert witness.unacked() == {older}
        newer = witness.began(("d", 0), "t", 3.0)
        witness.ended(newer, "accepted", 4.0)
        witness.got(newer, ("d", 0), 4.5)

        assert witness.unacked() == {newer}

    @pytest.mark.parametrize(
        "kill, lost_at, excused",
        [(None, None, False), (10.5, None, True), (9.0, None, False), (None, 10.2, True)],
    )
    def test_a_repeat_is_excused_only_near_a_kill_or_a_lost_connection(
        self, kill: float | None, lost_at: float | None, *, excused: bool
    ) -> None:
        witness, line = Witness(), Line()
        number = witness.began(("d", 0), None, 1.0)
        witness.ended(number, "accepted", 2.0)
        witness.got(number, ("d", 0), 9.5)
        witness.acked(number, line, 10.0)
        if kill is not None:
            witness.killed(kill)
        if lost_at is not None:
            line.ended = lost_at
        witness.got(number, ("d", 0), 12.0)

        assert (witness.verdict() == []) is excused

    def test_it_notices_a_stranger(self) -> None:
        witness = Witness()
        number = witness.began(("d", 0), None, 1.0)
        witness.got(number, ("e", 0), 2.0)

        assert "whose it is not" in witness.verdict()[0]
