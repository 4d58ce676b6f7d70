"""Restarts, kills and expiry of queues and messages (queues §7, 103 to 108)."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.platform import BIN, clean_environment
from tests.e2e.queue.peer import ClosedError, Mailbox, Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Code
from waystation.queue.model import LinkData, MessageId, QueueMode, sender_id_from
from waystation.queue.wire.commands import Ack, Del, Key, Lget, NewLink, Nkey, Nsub, Send
from waystation.queue.wire.responses import Err, Lnk, Msg, Nid, Ok, Sok

DAY_S = 86_400.0


def test_a_restart_keeps_queues_keys_notifiers_links_and_order(data_dir: Path) -> None:
    """Q-103 and Q-105"""
    data = LinkData(b"fixed", b"user")
    key, notifier_key, corr_id = Signer(), Signer(), b"c" * 24
    with QueueServer(data_dir, queue_quota=3) as server:
        with Peer(server) as owner, Peer(server) as sender:
            box = owner.create(
                mode=QueueMode.CONTACT,
                corr_id=corr_id,
                link=NewLink(sender_id_from(corr_id), data, b"l" * 24),  # pyright: ignore[reportArgumentType]
            )
            gone = owner.create()
            owner.ask(Key(key.public), box.recipient_id, box.signer)
            assert owner.server_key is not None
            nkey = Nkey(notifier_key.public, owner.server_key)
            nid = owner.ask(nkey, box.recipient_id, box.signer)
            assert isinstance(nid, Nid)
            for n in range(3):
                sender.send(box, b"%d" % n, signer=key)
            assert sender.fault(Send(False, b"3"), box.sender_id, key) is Code.QUOTA
            first = owner.received(box)
            assert box.open(owner.ack(box, first)).body == b"1"
            assert isinstance(owner.ask(Del(), gone.recipient_id, gone.signer), Ok)
        assert server.stop() == 0
        server.start()
        with Peer(server) as owner, Peer(server) as other:
            assert other.fault(Send(False, b""), gone.sender_id) is Code.AUTH
            assert other.ask(Lget(), b"l" * 24) == Lnk(box.sender_id, data)
            assert isinstance(other.ask(Nsub(), nid.notifier_id, notifier_key), Sok)
            assert other.fault(Send(False, b""), box.sender_id) is Code.AUTH
            assert other.fault(Send(False, b""), box.sender_id, key) is Code.QUOTA
            owner.subscribe(box)
            message = owner.received(box)
            bodies = []
            while True:
                bodies.append(message.body)
                answer = owner.ack(box, message)
                if not isinstance(answer, Msg):
                    break
                message = box.open(answer)

            assert bodies == [b"1", b"2", None]
            assert isinstance(answer, Ok)
            other.send(box, b"4", signer=key)


def test_old_messages_go_on_a_send_at_a_start_and_by_interval(data_dir: Path) -> None:
    """Q-106 and Q-107: nothing but time makes a message old, hence the sleeps."""
    with QueueServer(
        data_dir, expire_messages_days=1 / DAY_S, expire_on_send=True, expire_interval_s=1000
    ) as server:
        with Peer(server) as owner:
            sent_to, kept = owner.create(subscribe=False), owner.create(subscribe=False)
            owner.send(sent_to, b"old")
            owner.send(kept, b"old")
            time.sleep(2.2)
            owner.send(sent_to, b"new")
            assert sent_to.open(owner.get(sent_to)).body == b"new"
            assert kept.open(owner.get(kept)).body == b"old"  # no interval has passed
        server.stop()
        server.change(expire_interval_s=0.1)
        server.start()
        with Peer(server) as owner:
            assert isinstance(owner.get(kept), Ok)
            owner.send(kept, b"soon old")
            deadline = time.monotonic() + 30
            while isinstance(owner.get(kept), Msg):
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_young_messages_stay(data_dir: Path) -> None:
    """Q-107"""
    with QueueServer(data_dir, expire_interval_s=0.05) as server:
        with Peer(server) as owner:
            box = owner.create(subscribe=False)
            owner.send(box, b"young")
        server.kill()
        server.start()
        with Peer(server) as owner:
            assert box.open(owner.get(box)).body == b"young"


class _Burst(threading.Thread):
    """Sends as fast as it can until the server is gone; remembers what was answered OK."""

    def __init__(self, server: QueueServer, box: Mailbox, name: bytes) -> None:
        super().__init__(daemon=True)
        self._peer = Peer(server)
        self._box = box
        self._name = name
        self.accepted: list[bytes] = []

    def run(self) -> None:
        for n in range(100_000):
            body = b"%b-%d" % (self._name, n)
            try:
                if self._peer.ask(Send(False, body), self._box.sender_id) != Ok():
                    return
            except (ClosedError, OSError):
                break
            self.accepted.append(body)
        self._peer.close()


def test_nothing_that_was_answered_ok_is_lost_by_a_kill(data_dir: Path) -> None:
    """Q-108"""
    with QueueServer(data_dir, queue_quota=60_000) as server:
        with Peer(server) as owner:
            boxes = [owner.create(subscribe=False) for _ in range(3)]
        bursts = [_Burst(server, box, b"%d" % n) for n, box in enumerate(boxes)]
        for burst in bursts:
            burst.start()
        deadline = time.monotonic() + 60
        while min(len(burst.accepted) for burst in bursts) < 40:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        for burst in bursts:
            burst.join(30)
            assert not burst.is_alive()
        server.start()
        with Peer(server) as owner:
            for box, burst in zip(boxes, bursts, strict=True):
                bodies: list[bytes | None] = []
                while isinstance(answer := owner.get(box), Msg):
                    bodies.append(box.open(answer).body)
                    assert isinstance(
                        owner.ask(Ack(answer.message_id), box.recipient_id, box.signer), Ok
                    )

                # At most one more: it was stored, and the answer did not get out.
                assert bodies[: len(burst.accepted)] == burst.accepted
                assert len(bodies) <= len(burst.accepted) + 1


def test_an_ack_that_was_answered_is_never_followed_by_another_delivery(data_dir: Path) -> None:
    with QueueServer(data_dir) as server:
        owner = Peer(server)
        box = owner.create()
        for n in range(5):
            owner.send(box, b"%d" % n)
        message = owner.received(box)
        for _ in range(3):
            message = box.open(owner.ack(box, message))
        server.kill()
        owner.close()
        server.start()
        with Peer(server) as owner:
            owner.subscribe(box)

            assert owner.received(box) == message
            assert message.body == b"3"


def test_a_stop_answers_running_commands_and_closes(data_dir: Path) -> None:
    with QueueServer(data_dir) as server, Peer(server) as peer:
        box = peer.create()
        said = [peer.transmission(Send(False, b"%d" % n), box.sender_id) for n in range(20)]
        for one, _ in said:
            peer.write(one)
        first = peer.answer_to(said[0][1])
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        answered = 1
        with suppress(ClosedError):
            while True:
                answered += bool(peer.next().corr_id)
        stopping.join(30)
        server.start()
        with Peer(server) as later:
            stored = 0
            while isinstance(answer := later.get(box), Msg):
                later.ask(Ack(MessageId(answer.message_id)), box.recipient_id, box.signer)
                stored += 1

            assert first == Ok()
            assert stored == answered
            assert later.ask(Ack(MessageId(b"")), box.recipient_id, box.signer) == Err(Code.NO_MSG)


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address"])
def test_no_more_connections_come_in_than_may(data_dir: Path, limit: str) -> None:
    with QueueServer(data_dir, store_url="memory:", **{limit: 3}) as server:
        peers = [Peer(server) for _ in range(3)]
        with suppress(ClosedError, OSError):
            Peer(server).close()
            raise AssertionError("a fourth connection was served")
        peers.pop().close()
        deadline = time.monotonic() + 20
        while len(peers) < 3:  # until the server has seen that one left
            assert time.monotonic() < deadline
            with suppress(ClosedError, OSError):
                peers.append(Peer(server))
        for peer in peers:
            peer.close()

        assert len(peers) == 3


def store_command(word: str, *arguments: str, data_dir: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(BIN / "waystation"), "store", word, *arguments, "--data-dir", str(data_dir)],
        env={**clean_environment(), "WAYSTATION_STORE__MAP_BYTES": str(1 << 30)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_queues_come_back_from_a_backup_that_was_made_beside_the_server(
    data_dir: Path, tmp_path: Path
) -> None:
    """An operator who backs the platform up has the queues in it, and what waits in them."""
    saved = tmp_path / "saved"
    with QueueServer(data_dir) as server:
        with Peer(server) as owner, Peer(server) as sender:
            box = owner.create()
            for number in range(3):
                sender.send(box, b"%d" % number)
            checked = store_command("check", data_dir=data_dir)
            made = store_command("backup", str(saved), data_dir=data_dir)
            sender.send(box, b"after the backup")
        assert server.stop() == 0
        restored = store_command("restore", "--force", str(saved), data_dir=data_dir)
        server.start()
        with Peer(server) as owner:
            owner.subscribe(box)
            got = [owner.received(box)]
            while isinstance(response := owner.ack(box, got[-1]), Msg):
                got.append(box.open(response))

    for done in (checked, made, restored):
        assert done.returncode == 0, done.stderr
    assert "no problems" in checked.stdout
    assert [message.body for message in got] == [b"0", b"1", b"2"]
