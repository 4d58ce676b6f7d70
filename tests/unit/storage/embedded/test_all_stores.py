"""One backup for all embedded stores: what comes back, what is left alone, what a check finds."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.storage.embedded.test_check import ROWS, SETTINGS, fill
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.queue.cluster.slot_map import SlotMap
from waystation.queue.model import NotifierId, Queue, RecipientId, Slot
from waystation.queue.model import SessionId as TlsId
from waystation.queue.store import Party, PendingNotification, Ref, RefKind
from waystation.storage.embedded import backup_file, queue_layout
from waystation.storage.embedded.backup import PARTS, backup_stores, restore_stores
from waystation.storage.embedded.check import Report, open_environment
from waystation.storage.embedded.cluster_store import EmbeddedClusterStore
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.presence import EmbeddedPresenceStore
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.testing.conformance.queue_samples import (
    drained,
    new_link,
    new_message,
    new_notifier,
    new_queue,
    send,
)
from waystation.testing.conformance.queue_services import new_fingerprint, new_service


async def queue_store(path: Path) -> EmbeddedQueueStore:
    return await EmbeddedQueueStore.open(path, settings=SETTINGS)


async def fill_queues(store: EmbeddedQueueStore) -> list[Queue]:
    service, notifier = new_service(), new_notifier()
    await store.register_service(new_fingerprint(), service, limit=9)
    queues = [
        new_queue(),
        new_queue(notifier=notifier, link=new_link(), service_id=service.service_id),
        new_queue(),
    ]
    for queue in queues:
        assert await store.create(queue)
        for n in range(5):
            await send(store, queue, new_message(b"%d" % n))
        head = await store.head(queue.recipient_id)
        assert head is not None
        await store.acknowledge(queue.recipient_id, head.message_id)
    await store.set_notifier_service(
        queues[1].recipient_id, notifier.notifier_id, service.service_id
    )
    await store.set_ref(RefKind.SENDER, b"r" * 24, Ref(Slot(7), b"t" * 16))
    await store.set_grant(queues[0].recipient_id, TlsId(b"s" * 32))
    await store.save_pending([PendingNotification(NotifierId(b"n" * 24), b"o" * 24, b"m", 1)])
    return queues


def opened(name: str, path: Path) -> Environment:
    part = PARTS[name]
    return open_environment(path, SETTINGS, form=part.form, tables=part.tables)


def rows(name: str, path: Path) -> dict[tuple[str, bytes], bytes]:
    env = opened(name, path)
    found = {(table, key): value for table, key, value in PARTS[name].rows(env)}
    env.close()
    return found


def saved(folder: Path, *names: str) -> dict[str, Report]:
    envs = [(name, opened(name, folder / name)) for name in names]
    reports = backup_stores(envs, folder / "saved")
    for _, env in envs:
        env.close()
    return reports


async def made(folder: Path) -> list[Queue]:
    """All four stores with something in them."""
    push = await EmbeddedPushStore.open(folder / "push", settings=SETTINGS, clock=ManualClock())
    await fill(push, ManualClock())
    await push.close()
    queues = await queue_store(folder / "queue")
    filled = await fill_queues(queues)
    await queues.close()
    env = Environment.open(
        folder / "presence",
        form=PARTS["presence"].form,
        tables=PARTS["presence"].tables,
        settings=SETTINGS,
    )
    _fill_presence(env)
    env.close()
    cluster = await EmbeddedClusterStore.open(folder / "cluster", settings=SETTINGS)
    assert await cluster.commit(SlotMap(epoch=1))
    await cluster.renew(1)  # pyright: ignore[reportArgumentType]
    await cluster.lead("somebody", 5.0)
    await cluster.close()
    return filled


def _fill_presence(env: Environment) -> None:
    """Two parties as their rows are, of which one has a session and a cursor."""
    encode = msgspec.msgpack.encode
    key = struct.pack(">QQQ", 1, 2, 3)
    session = [True, "n", 1, 1, 1, 1, 0, 1000, 0, b"", b"", 0, 0, 0, 0, 0, 0]
    entry = [1, 2, 3, 0, 1, 1, 0, b"hello"]
    with env.lmdb.begin(write=True) as txn:
        for party in (1, 2):
            row = encode([1, 1, 1, 1, 0])
            txn.put(struct.pack(">Q", party), row, db=env.tables["parties"])
        txn.put(key, encode(session), db=env.tables["sessions"])
        txn.put(struct.pack(">QQ", 1, 1), encode(entry), db=env.tables["log"])
        txn.put(key, struct.pack(">QQ", 1, 1), db=env.tables["cursors"])


async def test_all_of_it_comes_back(tmp_path: Path) -> None:
    queues = await made(tmp_path)
    before = {name: rows(name, tmp_path / name) for name in ("queue", "presence", "cluster")}
    reports = saved(tmp_path, *PARTS)
    assert reports["queue"].rows["messages"] == 12
    places = {name: tmp_path / "back" / name for name in PARTS}
    restored = restore_stores(tmp_path / "saved", places, settings=SETTINGS)

    assert [report.problems for report in restored.values()] == [[]] * 4
    assert restored["push"].rows == ROWS
    for name, held in before.items():
        assert rows(name, places[name]) == held
    store = await queue_store(places["queue"])
    for queue in queues:
        found = await store.find(Party.SENDER, queue.sender_id)
        assert found is not None
        assert found.recipient_keys == queue.recipient_keys
        assert [one.body for one in await drained(store, queue)] == [b"1", b"2", b"3", None]
    assert await store.get_ref(RefKind.SENDER, b"r" * 24) == Ref(Slot(7), b"t" * 16)
    assert len(await store.take_pending()) == 1
    assert (await store.counts()).service_notifiers == 1
    await store.close()
    cluster = await EmbeddedClusterStore.open(places["cluster"], settings=SETTINGS)
    assert (await cluster.read()).epoch == 1
    assert await cluster.ages() == {}
    assert await cluster.lead("somebody else", 5.0)
    await cluster.close()


async def test_a_presence_store_opens_on_what_came_back(tmp_path: Path) -> None:
    await made(tmp_path)
    saved(tmp_path, "presence")
    restore_stores(tmp_path / "saved", {"presence": tmp_path / "back"}, settings=SETTINGS)
    env = opened("presence", tmp_path / "back")

    report = PARTS["presence"].check(env)
    assert (report.problems, report.rows["sessions"]) == ([], 1)
    env.close()
    store = await EmbeddedPresenceStore.open(
        tmp_path / "back",
        settings=SETTINGS,
        clock=ManualClock(),
        log_max=10,
        linger_s=1.0,
        restart_ttl_min_s=1.0,
    )
    await store.close()
    assert len(rows("presence", tmp_path / "back")) == 5


async def test_stores_that_a_backup_does_not_have_stay_as_they_are(tmp_path: Path) -> None:
    await made(tmp_path)
    saved(tmp_path, "queue")
    places = {name: tmp_path / name for name in PARTS}
    before = rows("presence", places["presence"])
    with pytest.raises(StoreUnavailableError, match="--force"):
        restore_stores(tmp_path / "saved", places, settings=SETTINGS)
    restored = restore_stores(tmp_path / "saved", places, settings=SETTINGS, force=True)

    assert list(restored) == ["queue"]
    assert rows("presence", places["presence"]) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*PARTS, "saved"])


async def test_a_store_that_lives_elsewhere_now_is_not_restored(tmp_path: Path) -> None:
    await made(tmp_path)
    saved(tmp_path, "push", "queue")
    places = {"push": tmp_path / "back"}

    with pytest.raises(StoreUnavailableError, match="contains queue"):
        restore_stores(tmp_path / "saved", places, settings=SETTINGS)
    assert not (tmp_path / "back").exists()


async def test_a_backup_of_the_first_kind_is_still_read(tmp_path: Path) -> None:
    """It had push alone and named no store."""
    await made(tmp_path)
    saved(tmp_path, "push")
    whole = (tmp_path / "saved").read_bytes()
    frame = struct.Struct(">BHI")
    start = len(b"waystation backup 2\n") + frame.size + len(b"push")
    old = b"waystation backup 1\n" + whole[start : -frame.size - 32]
    old += frame.pack(255, 0, 32) + hashlib.sha256(old).digest()
    (tmp_path / "old").write_bytes(old)
    restored = restore_stores(tmp_path / "old", {"push": tmp_path / "back"}, settings=SETTINGS)

    assert restored["push"].rows == ROWS
    with pytest.raises(StoreUnavailableError, match="unknown store"):
        list(backup_file.read_archive(tmp_path / "saved", {}))


def _without(table: str) -> Callable[[Environment], None]:
    def change(env: Environment) -> None:
        with env.lmdb.begin(write=True) as txn, txn.cursor(env.tables[table]) as cursor:
            assert cursor.first()
            cursor.delete()

    return change


def _with(table: str, key: bytes, value: bytes) -> Callable[[Environment], None]:
    def change(env: Environment) -> None:
        with env.lmdb.begin(write=True) as txn:
            txn.put(key, value, db=env.tables[table])

    return change


_NOBODY = RecipientId(b"x" * 24)


_BROKEN = (
    (_without("messages"), "has a gap"),
    (_without("lines"), "outside its queue's range"),
    (_without("senders"), "no row in senders"),
    (_without("notifiers"), "no row in notifiers"),
    (_without("links"), "no row in links"),
    (_without("service_queues"), "no row in service_queues"),
    (_without("service_notifiers"), "no row in service_notifiers"),
    (_with("senders", b"y" * 24, _NOBODY), "refers to no queue"),
    (_with("notifiers", b"y" * 24, _NOBODY), "refers to no queue"),
    (_with("links", b"y" * 24, _NOBODY + bytes(4)), "without this link"),
    (_with("grants", _NOBODY, b"s"), "has no queue"),
    (
        _with("lines", _NOBODY, queue_layout.encode_line(queue_layout.MessageRange(1, 1))),
        "is empty",
    ),
    (_with("refs", b"y" * 25, b"\xff\xff"), "invalid slot"),
    (_with("services", b"f", b"\xc1"), "does not decode"),
    (_with("pending", b"p", b"\xc1"), "does not decode"),
    (_with("queues", _NOBODY, b"short"), "does not decode"),
    (_with("service_queues", b"y" * 48, _NOBODY), "refers to no queue"),
    (_with("service_notifiers", b"y" * 48, _NOBODY), "refers to no queue"),
)


@pytest.mark.parametrize("change, says", _BROKEN, ids=map(str, range(len(_BROKEN))))
async def test_a_check_finds_what_is_wrong_with_queues(
    tmp_path: Path, change: Callable[[Environment], None], says: str
) -> None:
    store = await queue_store(tmp_path)
    await fill_queues(store)
    await store.close()
    env = opened("queue", tmp_path)
    whole = PARTS["queue"].check(env)
    change(env)
    broken = PARTS["queue"].check(env)
    env.close()

    assert whole.problems == []
    assert any(says in problem for problem in broken.problems), broken.problems
    assert not any("x" * 24 in problem for problem in broken.problems)


async def test_a_check_finds_what_is_wrong_with_parties_and_maps(tmp_path: Path) -> None:
    await made(tmp_path)
    presence, cluster = (
        opened("presence", tmp_path / "presence"),
        opened("cluster", tmp_path / "cluster"),
    )
    assert PARTS["presence"].check(presence).problems == []
    assert PARTS["cluster"].check(cluster).problems == []
    _with("log", struct.pack(">QQ", 9, 1), b"\xc1")(presence)
    _with("sessions", struct.pack(">QQQ", 2, 1, 1), b"\x90")(presence)
    _with("cursors", struct.pack(">QQQ", 9, 1, 1), bytes(16))(presence)
    _with("cursors", struct.pack(">QQQ", 2, 1, 2), bytes(16))(presence)
    _with("cluster", b"epoch", bytes(8))(cluster)

    found = PARTS["presence"].check(presence)
    assert found.problems_found == 3
    assert found.orphaned == 1
    assert "another epoch" in PARTS["cluster"].check(cluster).problems[0]
    _with("cluster", b"map", b"no map")(cluster)
    assert "does not decode" in PARTS["cluster"].check(cluster).problems[0]
    presence.close()
    cluster.close()
