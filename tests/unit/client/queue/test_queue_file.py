"""The file with a user's queues."""

import stat
import threading
from pathlib import Path

import msgspec
import pytest

from tests.unit.client.queue.peer import SERVER, a_queue
from waystation.client.queue.deliveries import REMEMBERED_MAX
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.links import renewed
from waystation.client.queue.queue_file import (
    QueueFile,
    QueueFileError,
    SavedQueue,
    SavedQueues,
    SavedSender,
)
from waystation.client.queue.queue_secrets import Notifier, SenderQueue

QUEUE = msgspec.structs.replace(
    a_queue(),
    link=renewed(a_queue(), "text"),
    notifier=Notifier(b"n" * 24, PrivateKey.generate("ed448"), b"k" * 32),
)
SENDER = SavedSender(
    a_queue(2).address,
    SenderQueue(a_queue(2).sender_id, PrivateKey.generate()),
    PrivateKey.generate("x25519"),
)


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "deep" / "queues.json")
    with file.changing() as kept:
        kept.queues["inbox"] = SavedQueue(QUEUE, (b"m" * 24,))
        kept.senders["them"] = SENDER
    found = file.load()

    assert found.queue("inbox") == SavedQueue(QUEUE, (b"m" * 24,))
    assert found.senders == {"them": SENDER}
    assert found.sender_to(a_queue(2).address) == "them"
    assert found.sender_to(a_queue(3).address) is None


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queues.json")
    (tmp_path / "queues.json.new").touch(0o644)
    with file.changing() as kept:
        kept.queues["inbox"] = SavedQueue(QUEUE)

    for name in ("queues.json", "queues.json.lock"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queues.json")

    def change() -> None:
        with file.changing() as kept:
            kept.queues["inbox"] = SavedQueue(QUEUE)
            kept.queue("another")

    with pytest.raises(QueueFileError):
        change()
    assert file.load() == SavedQueues()


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queues.json")

    def change(number: int) -> None:
        with file.changing() as kept:
            kept.queues[f"q{number}"] = SavedQueue(QUEUE)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(file.load().queues) == 20


def test_an_invalid_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "queues.json"
    for text in ('{"queues": 5}', "nothing", '{"format": 2}'):
        path.write_text(text)
        with pytest.raises(QueueFileError, match=r"queues\.json"), QueueFile(path).changing():
            raise AssertionError("not reached")
        assert path.read_text() == text


def test_names_are_plain_and_used_once() -> None:
    kept = SavedQueues(queues={"inbox1": SavedQueue(QUEUE)}, senders={"inbox2": SENDER})

    assert kept.free_name("inbox") == "inbox3"
    assert kept.claim("a.b_c-1") == "a.b_c-1"
    for name in ("inbox1", "inbox2", "", "-x", "a b", "x" * 65, "smp://x"):
        with pytest.raises(QueueFileError):
            kept.claim(name)
    with pytest.raises(QueueFileError, match="queues: inbox1"):
        kept.queue("outbox")


def test_only_the_last_handled_messages_are_kept() -> None:
    kept = SavedQueue(QUEUE)
    for number in range(20):
        kept = kept.handled(bytes([number]))

    assert kept.acked == tuple(bytes([number]) for number in range(20 - REMEMBERED_MAX, 20))


def test_a_private_key_does_not_show_itself() -> None:
    assert repr(SENDER.sealing_key) == "PrivateKey('x25519', …)"
    assert SERVER.password not in repr(SENDER) or not SERVER.password
