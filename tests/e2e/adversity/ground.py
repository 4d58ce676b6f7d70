"""A server on a small disk of its own, and what can go wrong around it: no room, no descriptors,
stopped processes, a wall clock that is set."""

import asyncio
import os
import random
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.platform import Serve
from tests.e2e.test_kills import listens

ROLES = ("connect", "endpoint", "queue", "presence", "console")
WORKERS = 2
PROCESSES = WORKERS + 3  # queue, presence, console
DISK_BYTES = 192 << 20
RESERVE_BYTES = 16 << 20
MAP_BYTES = 32 << 20
# Less than the crowd's TTL: nothing is over because a clock was set. A user agent whose route was
# written later than it is now is refused until the clock has caught up, as Autopush does.
SHIFT_MAX_S = 10.0
# Some stops are shorter and some longer: what a worker finds in its sockets afterwards may be taken
# or is stored by then.
REQUEST_TIMEOUT_S = 1.0
STOP_MAX_S = 2.5  # the watchdog waits for longer
BACK_MAX_S = 45.0  # one that died young waits up to 30 s for its next start
CLOCK_TICK_S = 0.2  # how often a time without room is told to the witness


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system in memory, so that filling it harms nobody."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    assert mounted.returncode == 0, (
        "this test fills a disk of its own and needs the right to mount a tmpfs: run it as root,"
        f" or in a container with CAP_SYS_ADMIN ({mounted.stderr.strip()})"
    )
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


class Ground:
    def __init__(self, disk: Path, scratch: Path, chance: random.Random) -> None:
        self.disk = disk
        self.chance = chance
        self.happened: list[str] = []
        self.kills = 0
        self.told: Callable[[float], None] = lambda _mono: None  # acks may not be recorded now
        self._ballast = disk / "ballast"
        self._shift = scratch / "shift"
        self._shift.write_bytes(struct.pack("<q", 0))
        self.server = Serve(
            disk / "data",
            roles=ROLES,
            workers=WORKERS,
            store__map_bytes=MAP_BYTES,
            store__disk_reserve_bytes=RESERVE_BYTES,
            queue__identity_algorithm="ed25519",
            presence__session_ttl_s=300,
            endpoint__request_timeout_s=REQUEST_TIMEOUT_S,
        )
        self.server.add_to_environment(
            PYTHONPATH=str(Path(__file__).parent), WALL_CLOCK_SHIFT=str(self._shift)
        )

    # What goes wrong, one thing at a time

    async def round(self, kind: str) -> None:
        self.happened.append(kind)
        match kind:
            case "a short disk":
                await self._short_of_room(RESERVE_BYTES // 2, kill=False)
            case "a short disk and a kill":
                await self._short_of_room(RESERVE_BYTES // 2, kill=True)
            case "a full disk":
                await self._short_of_room(0, kill=False)
            case "a full disk and a kill":
                await self._short_of_room(0, kill=True)
            case "no descriptors":
                await self._without_descriptors(self.chance.choice(self.server.worker_pids()))
            case "no descriptors and a kill":
                await self._without_descriptors(self.server.pid, kill=True)
            case "a stopped worker":
                await self._stopped(self.chance.choice(self.server.worker_pids()))
            case "a clock that is set":
                self.set_clock(self.chance.uniform(-SHIFT_MAX_S, SHIFT_MAX_S))
            case _:
                raise AssertionError(kind)

    async def _short_of_room(self, left_bytes: int, *, kill: bool) -> None:
        try:
            await asyncio.to_thread(self._fill, left_bytes)
            if kill:
                self._kill_one()
            deadline = time.monotonic() + self.chance.uniform(0.5, 1.5)
            while time.monotonic() < deadline:
                if not left_bytes:  # then an ack cannot be recorded either
                    self.told(time.monotonic())
                    await asyncio.to_thread(self._fill, 0)
                await asyncio.sleep(CLOCK_TICK_S)
            if kill:
                await self.all_back()
        finally:
            self._ballast.unlink(missing_ok=True)
        self.told(time.monotonic())

    def _fill(self, left_bytes: int) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while (free := self._free_bytes() - left_bytes) > 0:
                    file.write(bytes(min(free, 1 << 20)))
            except OSError:
                return  # others have taken the rest

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.disk)
        return disk.f_bavail * disk.f_frsize

    async def _without_descriptors(self, pid: int, *, kill: bool = False) -> None:
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        in_use = len(os.listdir(f"/proc/{pid}/fd"))
        few = max(3, in_use + self.chance.choice((-2, 0, 1, 2)))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, before[1]))
        try:
            if kill:
                self._kill_one()
            await asyncio.sleep(self.chance.uniform(0.5, 1.5))
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        await self.all_back()

    async def _stopped(self, pid: int) -> None:
        """For less than the watchdog waits, and now and then for longer than endpoints do."""
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.chance.uniform(0.2, STOP_MAX_S))
        finally:
            os.kill(pid, signal.SIGCONT)

    def set_clock(self, shift_s: float) -> None:
        with self._shift.open("r+b") as file:  # in place: processes have mapped it
            file.write(struct.pack("<q", int(shift_s * 1e9)))

    def _kill_one(self) -> None:
        self.kills += 1
        self.told(time.monotonic())
        os.kill(self.chance.choice(self.server.worker_pids()), signal.SIGKILL)

    # What must be true again

    async def all_back(self) -> None:
        """Every role is there and listens."""
        deadline = time.monotonic() + BACK_MAX_S
        while missing := self.missing():
            assert time.monotonic() < deadline, f"not back in {BACK_MAX_S:.0f} s: {missing}"
            await asyncio.sleep(0.05)

    def missing(self) -> list[str]:
        ports: dict[str, int] = self.server.addresses["ports"]
        pids = self.server.worker_pids()
        silent = [
            name
            for name, port in ports.items()
            if name in LISTENS and not any(listens(pid, port) for pid in pids)
        ]
        return silent if len(pids) == PROCESSES else [*silent, f"{len(pids)} processes"]


LISTENS = ("connect.port", "endpoint.port", "queue.port", "presence.port", "console.port")
