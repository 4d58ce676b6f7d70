"""Group commit: one flush for many, and everyone gets an answer of their own."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import lmdb
import pytest

from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.free_space import FreeSpace
from waystation.storage.embedded.writer import Operation, Writer, WriteTransaction
from waystation.storage.settings import Store


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    settings = Store(map_bytes=1 << 24, sync=False)
    return Environment.open(tmp_path, form="test/1", tables=("rows",), settings=settings)


@pytest.fixture
async def writer(env: Environment) -> AsyncIterator[Writer]:
    writer = Writer(
        env,
        FreeSpace(env, disk_reserve_bytes=0),
        commit_batch_max=8,
        queue_max=20,
        loop=asyncio.get_running_loop(),
    )
    yield writer
    await writer.close()
    env.close()


def put(env: Environment, key: bytes, answer: object = None) -> Operation[object]:
    def operation(txn: WriteTransaction) -> object:
        txn.put(key, b"v", db=env.tables["rows"])
        return answer

    return operation


def put_then_raise(env: Environment, key: bytes, error: Exception) -> Operation[object]:
    def operation(txn: WriteTransaction) -> object:
        txn.put(key, b"half", db=env.tables["rows"])
        raise error

    return operation


def keys(env: Environment) -> list[bytes]:
    with env.lmdb.begin(env.tables["rows"]) as txn, txn.cursor() as cursor:
        return [key for key, _ in cursor]


async def test_what_arrives_in_one_turn_is_one_commit(env: Environment, writer: Writer) -> None:
    futures = [writer.submit(put(env, b"%d" % n, n), grows=True) for n in range(5)]

    assert await asyncio.gather(*futures) == [0, 1, 2, 3, 4]
    assert writer.stats.commits == 1
    assert writer.stats.operations == 5
    assert writer.stats.group_max == 5
    assert writer.stats.waiting == 0
    assert keys(env) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_commit_takes_at_most_commit_batch_max(env: Environment, writer: Writer) -> None:
    await asyncio.gather(*(writer.submit(put(env, b"%d" % n), grows=True) for n in range(20)))

    assert writer.stats.group_max == 8
    assert writer.stats.commits == 3


async def test_what_arrives_while_a_commit_runs_is_the_next_one(
    env: Environment, writer: Writer
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(txn: WriteTransaction) -> None:
        started.set()
        assert go_on.wait(10)

    first = writer.submit(slow, grows=False)
    await asyncio.to_thread(started.wait, 10)
    later = []
    for n in range(3):
        later.append(writer.submit(put(env, b"%d" % n), grows=True))
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, *later)

    assert writer.stats.commits == 2


async def test_one_that_raises_takes_nobody_with_it_and_leaves_nothing(
    env: Environment, writer: Writer
) -> None:
    good = [writer.submit(put(env, b"a", "a"), grows=True)]
    bad = writer.submit(put_then_raise(env, b"b", ZeroDivisionError("mine")), grows=True)
    worse = writer.submit(put_then_raise(env, b"c", lmdb.CorruptedError("lmdb's")), grows=True)
    good.append(writer.submit(put(env, b"d", "d"), grows=True))

    assert await asyncio.gather(*good) == ["a", "d"]
    with pytest.raises(ZeroDivisionError, match="mine"):
        await bad
    with pytest.raises(StoreUnavailableError, match="lmdb's"):
        await worse
    assert keys(env) == [b"a", b"d"]
    assert writer.stats.groups_run_again == 2
    assert writer.stats.failed == 1


async def test_when_an_operation_finds_no_room_growth_is_refused_and_deletes_go_on(
    env: Environment, writer: Writer
) -> None:
    before = writer.submit(put(env, b"a"), grows=True)
    full = writer.submit(put_then_raise(env, b"b", lmdb.MapFullError("full")), grows=True)
    after = writer.submit(put(env, b"c"), grows=True)
    delete = writer.submit(put(env, b"deleted", "done"), grows=False)

    assert await delete == "done"
    assert await before is None
    for refused in (full, after):
        with pytest.raises(StoreFullError):
            await refused
    assert keys(env) == [b"a", b"deleted"]
    assert writer.stats.refused_full == 2


async def test_a_delete_that_finds_no_room_is_tried_without_growth_and_in_smaller_groups(
    env: Environment, writer: Writer
) -> None:
    alone: list[bool] = []

    def hungry(txn: WriteTransaction) -> str:
        """Fits only into a transaction in which nothing else was written."""
        alone.append(txn.get(b"other", db=env.tables["rows"]) is None)
        if not alone[-1]:
            raise lmdb.MapFullError("full")
        return "done"

    growth = writer.submit(put(env, b"other"), grows=True)
    delete = writer.submit(hungry, grows=False)

    assert await delete == "done"
    assert alone == [False, True]
    with pytest.raises(StoreFullError):
        await growth


async def test_a_delete_that_never_finds_room_says_so(env: Environment, writer: Writer) -> None:
    futures = [
        writer.submit(put(env, b"a", "a"), grows=False),
        writer.submit(put_then_raise(env, b"b", lmdb.MapFullError("full")), grows=False),
        writer.submit(put(env, b"c", "c"), grows=False),
    ]

    results = await asyncio.gather(*futures, return_exceptions=True)
    assert results[0] == "a"
    assert isinstance(results[1], StoreFullError)
    assert results[2] == "c"


async def test_one_more_than_queue_max_is_refused_at_once(env: Environment, writer: Writer) -> None:
    futures = [writer.submit(put(env, b"%d" % n), grows=True) for n in range(20)]

    with pytest.raises(StoreUnavailableError, match=r"store\.queue_max: 20"):
        writer.submit(put(env, b"x"), grows=True)
    await asyncio.gather(*futures)
    assert writer.stats.refused_queue == 1
    assert writer.stats.waiting_max == 20
    await writer.submit(put(env, b"x"), grows=True)
    assert b"x" in keys(env)


async def test_a_caller_who_went_away_disturbs_nobody(env: Environment, writer: Writer) -> None:
    gone = writer.submit(put(env, b"gone"), grows=True)
    other = writer.submit(put(env, b"other", "done"), grows=True)
    gone.cancel()

    assert await other == "done"
    assert keys(env) == [b"gone", b"other"], "what was begun is done"


async def test_closing_writes_what_was_submitted(env: Environment, writer: Writer) -> None:
    futures = [writer.submit(put(env, b"%d" % n), grows=True) for n in range(10)]
    await writer.close()

    assert all(future.done() for future in futures)
    assert len(keys(env)) == 10
    with pytest.raises(StoreUnavailableError, match="closed"):
        writer.submit(put(env, b"late"), grows=True)


class _BrokenCommit:
    """A transaction whose commit fails as a full disk makes it fail."""

    def __init__(self, txn: WriteTransaction, error: lmdb.Error) -> None:
        self._txn = txn
        self._error = error

    def __getattr__(self, name: str) -> object:
        return getattr(self._txn, name)

    def commit(self) -> None:
        self._txn.abort()
        raise self._error


class _BrokenEnvironment:
    """Breaks the commits that `breaks` says, counted from 1."""

    def __init__(
        self, env: lmdb.Environment, breaks: Callable[[int], bool], error: lmdb.Error
    ) -> None:
        self._env = env
        self._breaks = breaks
        self._error = error
        self.begun = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    def begin(self, *args: object, **kwargs: object) -> object:
        txn = self._env.begin(write=True)
        self.begun += 1
        return _BrokenCommit(txn, self._error) if self._breaks(self.begun) else txn


class DiskError(lmdb.Error):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"mdb_txn_commit: {text}")
        setattr(self, "code", code)  # noqa: B010  # declared final, yet set by lmdb after making it


NO_SPACE = DiskError(errno.ENOSPC, "No space left on device")
BROKEN = DiskError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    "error,kind", [(NO_SPACE, StoreFullError), (BROKEN, StoreUnavailableError)]
)
async def test_when_a_commit_fails_growth_is_refused_and_deletes_are_tried_again(
    error: lmdb.Error,
    kind: type[Exception],
    env: Environment,
    writer: Writer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(env, "lmdb", _BrokenEnvironment(env.lmdb, lambda n: n == 1, error))
    grow = writer.submit(put(env, b"a"), grows=True)
    delete = writer.submit(put(env, b"deleted", "done"), grows=False)

    assert await delete == "done"
    with pytest.raises(kind) as caught:
        await grow
    assert type(caught.value) is kind
    monkeypatch.undo()
    assert keys(env) == [b"deleted"]


async def test_when_every_commit_fails_nothing_was_done(
    env: Environment, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "lmdb", _BrokenEnvironment(env.lmdb, lambda n: True, BROKEN))
    futures = [writer.submit(put(env, b"%d" % n), grows=bool(n)) for n in range(3)]

    for future in futures:
        with pytest.raises(StoreUnavailableError, match="Input/output"):
            await future
    monkeypatch.undo()
    assert keys(env) == []


async def test_a_write_that_a_full_disk_took_in_part_counts_as_full(
    env: Environment, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB calls it an input/output error."""
    monkeypatch.setattr(env, "lmdb", _BrokenEnvironment(env.lmdb, lambda n: True, BROKEN))
    monkeypatch.setattr(FreeSpace, "disk_nearly_full", lambda self: True)
    grow = writer.submit(put(env, b"a"), grows=True)

    with pytest.raises(StoreFullError):
        await grow
    monkeypatch.undo()
    assert keys(env) == []


async def test_a_store_whose_directory_is_gone_fails_each_write_and_the_writer_lives_on(
    env: Environment, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> str:
        raise FileNotFoundError("the directory is gone")

    monkeypatch.setattr(FreeSpace, "shortage", gone)
    for future in [writer.submit(put(env, b"%d" % n), grows=bool(n)) for n in range(2)]:
        with pytest.raises(StoreUnavailableError, match="directory is gone"):
            await future
    monkeypatch.undo()

    assert await writer.submit(put(env, b"later", "done"), grows=True) == "done"
    assert writer.stats.waiting == 0
