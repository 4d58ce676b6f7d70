"""How much is kept free for deletes."""

from pathlib import Path

import pytest

from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.free_space import FreeSpace
from waystation.storage.settings import Store

MIB = 1 << 20


@pytest.mark.parametrize(
    "map_mib,reserve_mib",
    [(1, 0.25), (8, 2), (16, 4), (64, 4), (1000, 50), (64 * 1024, 64 * 1024 / 20)],
)
def test_a_large_store_keeps_a_twentieth_and_a_small_one_at_most_a_quarter(
    map_mib: int, reserve_mib: float, tmp_path: Path
) -> None:
    settings = Store(map_bytes=map_mib * MIB, sync=False)
    env = Environment.open(tmp_path, form="test/1", tables=("rows",), settings=settings)
    free_space = FreeSpace(env, disk_reserve_bytes=0)
    env.close()

    assert free_space.reserve_bytes == int(reserve_mib * MIB)


def test_the_disk_is_looked_at_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Store(map_bytes=MIB, sync=False)
    env = Environment.open(tmp_path, form="test/1", tables=("rows",), settings=settings)
    free_space = FreeSpace(env, disk_reserve_bytes=100)
    free_bytes = [500, 99, 100]
    monkeypatch.setattr(FreeSpace, "_disk_free_bytes", lambda self: free_bytes.pop(0))
    with env.lmdb.begin(write=True) as txn:
        found = [
            free_space.shortage(txn, mono) is not None for mono in (10.0, 10.9, 11.0, 11.9, 12.0)
        ]
    env.close()

    assert found == [False, False, True, True, False]


def test_pages_that_were_freed_count_as_room(tmp_path: Path) -> None:
    """The file never shrinks, so its size alone says nothing."""
    settings = Store(map_bytes=MIB, sync=False)
    env = Environment.open(tmp_path, form="test/1", tables=("rows",), settings=settings)
    free_space = FreeSpace(env, disk_reserve_bytes=0)
    table = env.tables["rows"]
    full: list[bool] = []
    for n in range(100):
        with env.lmdb.begin(table, write=True) as txn:
            full.append(free_space.shortage(txn, 0.0) is not None)
            if full[-1]:
                break
            txn.put(b"%d" % n, b"x" * 9000)
    for n in range(len(full)):
        with env.lmdb.begin(table, write=True) as txn:
            txn.delete(b"%d" % n)
    size = env.file_bytes()
    with env.lmdb.begin(table, write=True) as txn:
        after = free_space.shortage(txn, 0.0)
    env.close()

    assert full[-1]
    assert len(full) > 50
    assert after is None
    assert size > 0.7 * MIB
