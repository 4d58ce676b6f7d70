"""The numbers of a real server after known traffic: daily row, metrics and events."""

import json
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

from tests.e2e.platform import until
from tests.e2e.queue.peer import Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Code
from waystation.queue.wire.commands import Del, Key, Off, Send, Sub
from waystation.queue.wire.responses import Ok
from waystation.telemetry.segments import sealed_segments

EXPECTED = {
    "qCreated": 3,
    "qSecured": 1,
    "qDeletedAll": 1,
    "qDeletedNew": 1,
    "qSuspended": 1,
    "msgSent": 4,
    "msgSentAuth": 2,
    "msgSentQuota": 1,
    "msgRecv": 2,
    "msgGet": 1,
    "msgRecvGet": 1,
    "qSubAll": 1,
    "qSub": 1,
    "qSubAuth": 1,
    "qSubEnd": 0,
}


def _traffic(server: QueueServer) -> None:
    """What `EXPECTED` says, with a quota of 2."""
    signer = Signer()
    with Peer(server) as peer, Peer(server) as other:
        box, spare, full = peer.create(), peer.create(), peer.create(subscribe=False)
        peer.send(box)
        assert peer.take(box) == b"hello"
        for _ in range(2):
            other.send(full, b"12")
        assert other.fault(Send(False, b"34"), full.sender_id) is Code.QUOTA
        assert isinstance(peer.ask(Key(signer.public), box.recipient_id, box.signer), Ok)
        assert other.fault(Send(False, b"x"), box.sender_id) is Code.AUTH
        assert other.fault(Send(False, b"x"), b"nobody") is Code.AUTH
        other.send(box, signer=signer)
        message = full.open(other.get(full))
        assert isinstance(other.ack(full, message), Ok)
        assert peer.fault(Sub(), spare.recipient_id, signer) is Code.AUTH
        assert isinstance(peer.ask(Off(), spare.recipient_id, spare.signer), Ok)
        assert isinstance(peer.ask(Del(), spare.recipient_id, spare.signer), Ok)
        with Peer(server) as late:
            late.subscribe(full)
            assert late.received(full).body == b"12"


def _counters(server: QueueServer) -> dict[str, str]:
    path = server.data_dir / "queue-statistics" / "counters"
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def _events(server: QueueServer) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for segment in sealed_segments(server.data_dir / "events")
        for line in segment.path.read_text().splitlines()
        if "k" in json.loads(line)
    ]


def _metrics(server: QueueServer) -> str:
    with urlopen(f"http://127.0.0.1:{server.ops_port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def test_sums_equal_the_traffic(tmp_path: Path) -> None:
    """Q-111, and Q-105 for the counters: a restart keeps them."""
    server = QueueServer(tmp_path / "data", queue_quota=2)
    with server:
        _traffic(server)
        until(lambda: 'waystation_queue_messages_total{event="sent"' in _metrics(server))
        server.stop()
        counted = _counters(server)
        told = _events(server)
        server.start()
        server.stop()

        assert _counters(server) == counted
    assert {name: int(counted[name]) for name in EXPECTED} == EXPECTED
    assert len(counted["activeDay"].split(",")) == 2
    totals = Counter[tuple[object, object]]()
    for event in told:
        if isinstance(event["k"], int) and 100 <= event["k"] < 123:
            count = event.get("n", 1)
            assert isinstance(count, int)
            totals[event["k"], event.get("code", 0)] += count
            assert not event.keys() & {"qh", "iph", "uah", "cid"}
    assert totals[100, 0] == EXPECTED["qCreated"]
    assert totals[103, 0] == EXPECTED["msgSent"]
    assert totals[103, 1] == EXPECTED["msgSentAuth"]
    assert totals[103, 2] == EXPECTED["msgSentQuota"]
    assert totals[105, 0] == EXPECTED["msgRecv"]
    assert totals[107, 0] == EXPECTED["qDeletedAll"]
    assert totals[104, 0] == 4  # two acknowledged, one of them got; two more were only delivered
