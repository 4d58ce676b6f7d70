"""Operators: blocking, the control port, the ops port (queues §7, 109 and 112)."""

import base64
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.e2e.queue.conftest import ADMIN, USER, Connect
from tests.e2e.queue.peer import Mailbox, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Blocked, Code
from waystation.queue.identity import renew_leaf
from waystation.queue.model import Blocking, BlockReason, Notice
from waystation.queue.wire.commands import Off, Ping, Send, Skey, Sub
from waystation.queue.wire.responses import Deld, Err, Ok, Pong, Sok


class Control:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.greeting = stream.readline()

    def say(self, line: str, lines: int = 1) -> str:
        self._stream.write(line + "\n")
        self._stream.flush()
        return "".join(self._stream.readline() for _ in range(lines)).strip()


@contextmanager
def control(server: QueueServer, password: str = "") -> Iterator[Control]:
    with (
        socket.create_connection(("127.0.0.1", server.control_port), timeout=20) as sock,
        sock.makefile("rw") as stream,
    ):
        session = Control(stream)
        if password:
            assert session.say(f"auth {password}").startswith("Current role is")
        yield session


def named(box: Mailbox) -> str:
    return base64.urlsafe_b64encode(box.sender_id).decode()


def test_a_blocked_queue_says_so_and_comes_back(
    connect: Connect, queue_server: QueueServer
) -> None:
    """Q-109"""
    owner, sender = connect(), connect()
    versions = {version: connect(version=version) for version in (11, 17)}
    box = owner.create()
    with control(queue_server, USER) as session:
        assert session.say(f"status {named(box)}") == "active"
        blocked = session.say(f'block {named(box)} reason=spam,notice={{"ttl":3600}}')
        assert blocked == "ok"
        assert session.say(f"status {named(box)}") == "blocked,reason=spam"
        fault = Blocked(Blocking(BlockReason.SPAM, Notice(ttl=3600)))
        assert owner.event(Err, box.recipient_id) == Err(fault)
        key = Signer()
        assert owner.fault(Sub(), box.recipient_id, box.signer) == fault
        assert owner.fault(Sub(), box.recipient_id, Signer()) is Code.AUTH
        assert sender.fault(Send(False, b""), box.sender_id) == fault
        assert sender.fault(Skey(key.public), box.sender_id, key) == fault
        assert versions[11].fault(Send(False, b""), box.sender_id) is Code.AUTH
        without_notice = Blocked(Blocking(BlockReason.SPAM))
        assert versions[17].fault(Send(False, b""), box.sender_id) == without_notice
        assert session.say(f"unblock {named(box)}") == "ok"
        assert session.say(f"unblock {named(box)}").startswith("error")
    assert isinstance(owner.ask(Sub(), box.recipient_id, box.signer), Sok)
    sender.send(box, b"again")
    assert owner.take(box) == b"again"


def test_only_so_many_queues_are_blocked_in_a_day(
    connect: Connect, queue_server: QueueServer
) -> None:
    """Q-109: three there, of which the test before may have used one."""
    owner = connect()
    boxes = [owner.create() for _ in range(4)]
    with control(queue_server, USER) as session:
        answers = [session.say(f"block {named(box)} reason=content") for box in boxes]

    assert answers[0] == "ok"
    assert answers[3].startswith("error: the limit of queues blocked in a day")
    assert isinstance(owner.ask(Off(), boxes[0].recipient_id, boxes[0].signer), Ok)


def test_the_control_port_asks_for_a_role_once(connect: Connect, queue_server: QueueServer) -> None:
    """Q-112"""
    owner = connect()
    box = owner.create()
    with control(queue_server) as session:
        assert "control port" in session.greeting
        for line in ("stats", "clients", f"status {named(box)}", f"delete {named(box)}", "save"):
            assert session.say(line) == "AUTH"
        assert session.say("auth wrong") == "AUTH"
        assert session.say("auth") == "AUTH"
        assert session.say(f"auth {USER}") == "Current role is user"
        assert session.say(f"auth {ADMIN}") == "Current role is user"
        assert session.say(f"delete {named(box)}") == "AUTH"
        assert session.say("save") == "AUTH"
        assert session.say("clients", 2).startswith("accepted,")
        assert session.say("nonsense").startswith("error: unknown command")
        assert session.say("status !").startswith("error")
        assert session.say("quit") == "bye"


def test_an_admin_deletes_a_queue_and_its_owner_learns_of_it(
    connect: Connect, queue_server: QueueServer
) -> None:
    owner = connect()
    box = owner.create()
    with control(queue_server, ADMIN) as session:
        assert session.say(f"delete {named(box)}") == "ok"
        assert session.say(f"delete {named(box)}").startswith("error: no queue")
        assert session.say("save") == "ok"

    owner.event(Deld, box.recipient_id)
    assert owner.fault(Send(False, b""), box.sender_id) is Code.AUTH


def test_a_page_in_a_browser_cannot_use_the_control_port(
    connect: Connect, queue_server: QueueServer
) -> None:
    """What `fetch("http://127.0.0.1:5224", {method: "POST", body: …})` sends, and the end of it."""
    owner = connect()
    box = owner.create()
    lines = f"auth {ADMIN}\ndelete {named(box)}\n"
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(lines)}\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", queue_server.control_port), timeout=20) as sock,
        sock.makefile("r") as stream,
    ):
        sock.sendall((head + lines).encode())
        answered: list[str] = []
        with suppress(ConnectionResetError):  # what it did not read, it will not read
            answered.extend(stream)

    assert not [line for line in answered if "role" in line or line == "ok\n"]
    assert isinstance(owner.ask(Sub(), box.recipient_id, box.signer), Sok)


def test_the_control_port_listens_on_loopback_only(queue_server: QueueServer) -> None:
    """Q-112, as the kernel has it."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    port = f":{queue_server.control_port:04X}"
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(port)]

    assert listening == ["0100007F" + port]


def test_the_ops_port_has_health_metrics_and_the_information_page(
    queue_server: QueueServer,
) -> None:
    base = f"http://127.0.0.1:{queue_server.ops_port}"
    fingerprint = (queue_server.data_dir / "keys" / "queue" / "fingerprint").read_text()

    def read(path: str) -> str:
        with urlopen(base + path, timeout=20) as answer:
            return answer.read().decode()

    assert read("/__lbheartbeat__") == ""
    assert json.loads(read("/__heartbeat__"))["status"] == "OK"
    assert "version" in json.loads(read("/__version__"))
    assert "waystation_" in read("/metrics")
    assert f"smp://{fingerprint.strip()}@" in read("/")
    with pytest.raises(HTTPError) as refused:
        urlopen(base + "/nothing", timeout=20)
    refused.value.close()
    assert refused.value.code == 404


def test_nothing_a_client_does_reaches_the_log(connect: Connect, queue_server: QueueServer) -> None:
    owner, sender = connect(), connect()
    box = owner.create()
    sender.send(box, b"a secret")
    owner.take(box)
    owner.fault(Sub(), bytes(24), Signer())
    lines = "\n".join(queue_server.err)

    for secret in (named(box), box.sender_id.hex(), "127.0.0.1", "a secret", "SUB", "SEND"):
        assert secret not in lines


def test_a_new_leaf_is_shown_after_a_hangup_signal_and_the_address_stays(
    connect: Connect, impatient_queue_server: QueueServer
) -> None:
    server = impatient_queue_server
    established = connect(server)
    before = server.identity
    renew_leaf(server.data_dir / "keys" / "queue", host="localhost")
    os.kill(server.pid, signal.SIGHUP)
    deadline = time.monotonic() + 20
    while (shown := connect(server).server_hello.chain) == before.chain:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    assert shown == server.identity.chain
    assert server.identity.fingerprint == before.fingerprint
    assert isinstance(established.ask(Ping()), Pong)
