"""Several processes on one embedded store, and processes that are killed in the middle."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waystation.base.clock import SystemClock
from waystation.push.model import ChannelId, Uaid, UserAgent
from waystation.storage.embedded import writer
from waystation.storage.embedded.check import check_store
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import fetch_all

KILLS = 5
SETTINGS = Store(map_bytes=256 << 20)
UAIDS = [Uaid(bytes([n]) * 16) for n in range(20)]
CHANNEL = ChannelId(b"c" * 16)

# Saves and forgets as fast as it can. Tells what it is about to forget before it does, and what is
# saved after it is: whatever line came through is true.
WRITER = """
import asyncio, json, os, sys
from pathlib import Path
from waystation.base.clock import SystemClock
from waystation.push.model import ChannelId, Uaid
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import timed_notification

def tell(*words):
    os.write(1, (json.dumps(words) + "\\n").encode())

async def main():
    path, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    clock = SystemClock()
    store = await EmbeddedPushStore.open(
        path, settings=Store(map_bytes=256 << 20), clock=clock)
    uaids = [Uaid(bytes([n]) * 16) for n in range(20)]
    channel = ChannelId(b"c" * 16)

    async def work(k):
        uaid = uaids[k % 20]
        for n in range(rounds):
            row = timed_notification(channel, accepted_at_ms=clock.now_ms(), n=f"{name}-{k}-{n}",
                                     ttl_s=3600, data="x" * 1400)
            await store.save(uaid, row)
            tell("saved", k % 20, row.sort_key)
            if n % 3 == 0:
                tell("forgetting", k % 20, row.sort_key)
                await store.forget(uaid, [(row.sort_key, row.message_id)])
            await store.fetch(uaid, now_ms=clock.now_ms(), after=None, limit=5)

    tell("started")
    await asyncio.gather(*(work(k) for k in range(40)))
    await store.close()

asyncio.run(main())
"""


def start_writer(path: Path, name: str, rounds: int) -> "subprocess.Popen[bytes]":
    """Its words go to a file: a full pipe would hold it up."""
    with told_by(path, name).open("wb") as told:
        return subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name, str(rounds)], stdout=told
        )


def told_by(path: Path, name: str) -> Path:
    return path.with_name(f"{name}.told")


def lines(output: bytes) -> list[list[str]]:
    """Whole lines only: the last one may have been cut by the kill."""
    whole, _, _ = output.rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def owed(told: list[list[str]]) -> set[tuple[int, str]]:
    """What must be there: saved, and not about to be forgotten."""
    saved = {(int(line[1]), line[2]) for line in told if line[0] == "saved"}
    return saved - {(int(line[1]), line[2]) for line in told if line[0] == "forgetting"}


async def open_store(path: Path) -> EmbeddedPushStore:
    return await EmbeddedPushStore.open(path, settings=SETTINGS, clock=SystemClock())


async def prepare(path: Path) -> None:
    store = await open_store(path)
    for uaid in UAIDS:
        await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=1))
        await store.add_channel(uaid, CHANNEL, channels_max=10)
    await store.close()


async def stored(store: EmbeddedPushStore) -> set[tuple[int, str]]:
    now_ms = SystemClock().now_ms()
    return {
        (n, row.sort_key)
        for n, uaid in enumerate(UAIDS)
        for row in await fetch_all(store, uaid, now_ms=now_ms, limit=500)
    }


async def test_a_process_killed_at_any_moment_loses_nothing_it_acknowledged(
    tmp_path: Path,
) -> None:
    """Promise 1, on the store alone: five kills, the store is sound after each."""
    path = tmp_path / "push"
    await prepare(path)
    chance = random.Random(20)
    expected: set[tuple[int, str]] = set()
    for kill in range(KILLS):
        child = start_writer(path, f"k{kill}", rounds=1_000_000)
        deadline = time.monotonic() + 60
        while not told_by(path, f"k{kill}").stat().st_size:
            assert time.monotonic() < deadline, "the writer did not start"
            time.sleep(0.01)
        # A moment later its first commits are under way.
        time.sleep(0.05 + chance.random() * 0.4)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
        told = lines(told_by(path, f"k{kill}").read_bytes())
        expected |= owed(told)
        store = await open_store(path)
        report = check_store(store.env)
        there = await stored(store)
        await store.close()

        assert report.problems == [], f"kill {kill}"
        assert expected - there == set(), f"kill {kill}"
        assert child.returncode == -signal.SIGKILL

    assert len(expected) > 100


async def test_two_processes_write_to_one_store_while_a_third_reads(tmp_path: Path) -> None:
    path = tmp_path / "push"
    await prepare(path)
    store = await open_store(path)
    children = [start_writer(path, name, rounds=6) for name in ("a", "b")]
    ends = [asyncio.create_task(asyncio.to_thread(child.wait, 100)) for child in children]
    looks = 0
    while not all(task.done() for task in ends):
        assert await store.get_user_agent(UAIDS[looks % 20]) is not None
        await store.publish_broadcast("test/beside", str(looks))
        looks += 1
        await asyncio.sleep(0.005)
    outputs = [told_by(path, name).read_bytes() for name in ("a", "b")]

    assert [await task for task in ends] == [0, 0]
    expected = set[tuple[int, str]]().union(*(owed(lines(output)) for output in outputs))
    assert len(expected) == 2 * 40 * 4
    assert await stored(store) == expected
    assert check_store(store.env).problems == []
    assert looks > 3
    await store.close()


CLAIMER = """
import asyncio, json, sys
from pathlib import Path
from waystation.base.clock import SystemClock
from waystation.push.model import UserAgent
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store

async def main():
    store = await EmbeddedPushStore.open(
        Path(sys.argv[1]), settings=Store(map_bytes=256 << 20), clock=SystemClock())
    print("ready", flush=True)
    sys.stdin.readline()
    won = [
        await store.claim_route(
            UserAgent(uaid=n.to_bytes(16, "big"), connected_at_ms=5, node_id=sys.argv[2]))
        for n in range(60)
    ]
    await store.close()
    print(json.dumps(won))

asyncio.run(main())
"""


async def test_of_two_processes_that_claim_a_user_agent_in_one_millisecond_one_wins(
    tmp_path: Path,
) -> None:
    path = tmp_path / "push"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, str(path), f"http://{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    results: list[list[bool]] = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        output, _ = child.communicate(timeout=60)
        results.append(json.loads(output))
    store = await open_store(path)

    for n in range(60):
        record = await store.get_user_agent(Uaid(n.to_bytes(16, "big")))
        assert record is not None
        assert [result[n] for result in results] == [
            record.node_id == "http://a",
            record.node_id == "http://b",
        ]
    await store.close()


HOLDER = """
import lmdb, sys, time
env = lmdb.open(sys.argv[1], map_size=1 << 28, max_dbs=20)
txn = env.begin()
txn.get(b"x")
print("holding", flush=True)
time.sleep(60)
"""

OPENER = """
import sys
from pathlib import Path
from waystation.storage.embedded.check import open_environment
from waystation.storage.settings import Store
open_environment(Path(sys.argv[1]), Store(map_bytes=256 << 20)).close()
"""


def killed_reader(path: Path) -> str:
    """The process id of one that was killed in the middle of a read."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"holding\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate(timeout=30)
    return str(holder.pid)


async def test_what_a_killed_reader_held_is_free_again_when_somebody_opens_the_store(
    tmp_path: Path,
) -> None:
    """Otherwise no page freed since could ever be used again."""
    await prepare(tmp_path / "push")
    store = await open_store(tmp_path / "push")
    pid = killed_reader(tmp_path / "push")
    before = store.env.lmdb.readers()
    subprocess.run([sys.executable, "-c", OPENER, str(tmp_path / "push")], timeout=60, check=True)
    after = store.env.lmdb.readers()
    await store.close()

    assert pid in before
    assert pid not in after


async def test_what_a_killed_reader_held_is_free_again_after_a_while_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(tmp_path / "push")
    store = await open_store(tmp_path / "push")
    pid = killed_reader(tmp_path / "push")
    await store.publish_broadcast("test/soon", "v1")
    before = store.env.lmdb.readers()
    monkeypatch.setattr(writer, "_READER_CHECK_INTERVAL_S", 0.0)
    for n in range(2):  # the writer looks after each commit, so before the second one answers
        await store.publish_broadcast("test/later", f"v{n}")
    after = store.env.lmdb.readers()
    await store.close()

    assert pid in before
    assert pid not in after
