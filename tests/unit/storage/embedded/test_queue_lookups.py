"""What a look-up of a queue does must not tell whether there is one (queues §5.9, Q-110)."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waystation.queue.store import Party
from waystation.storage.embedded import queue_layout
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_samples import new_link, new_notifier, new_queue


class Counted:
    """A read transaction that notes its reads."""

    def __init__(self, txn: Any, done: list[str]) -> None:
        self._txn = txn
        self._done = done

    def __enter__(self) -> "Counted":
        self._txn.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._txn.__exit__(*raised)

    def get(self, *args: Any, **kwargs: Any) -> bytes | None:
        self._done.append("read")
        return self._txn.get(*args, **kwargs)


def noted(name: str, done: list[str], step: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        done.append(name)
        return step(*args)

    return called


async def test_an_unknown_id_costs_the_reads_and_the_decoding_of_a_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=Store(map_bytes=1 << 24))
    plain = new_queue()
    whole = new_queue(link=new_link(), notifier=new_notifier())
    for queue in (plain, whole):
        assert await store.create(queue)
    assert whole.notifier is not None
    known = {
        Party.RECIPIENT: [plain.recipient_id, whole.recipient_id],
        Party.SENDER: [plain.sender_id, whole.sender_id],
        Party.NOTIFIER: [whole.notifier.notifier_id],
    }
    done: list[str] = []
    begin = store.env.lmdb.begin
    monkeypatch.setattr(store, "_begin", lambda *args: Counted(begin(*args), done))
    for name in ("decode_queue", "link_id_of"):
        step = getattr(queue_layout, name)
        monkeypatch.setattr(queue_layout, name, noted(name, done, step))

    costs: dict[Party, set[tuple[str, ...]]] = {party: set() for party in known}
    for party, ids in known.items():
        # An id of another party is as unknown as one that nobody has.
        for entity_id in (*ids, secrets.token_bytes(24), plain.recipient_id, plain.sender_id):
            found = await store.find(party, entity_id)
            assert (found is not None) == (entity_id in ids)
            costs[party].add(tuple(done))
            done.clear()
    await store.close()

    assert [len(ways) for ways in costs.values()] == [1, 1, 1]
