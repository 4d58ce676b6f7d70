"""Scenarios of the queue benchmarks on a small scale: correct counts, nothing left behind."""

import pytest

from benchmarks.queue_floor import queue_floor
from benchmarks.queue_target import QUEUE_SMOKE, QueueTarget
from benchmarks.scenarios import queue_blocks, queue_idle, queue_messages, queue_refusals
from tests.e2e.queue.process import QueueServer
from waystation.client.queue.address import ServerAddress


@pytest.fixture
def target(queue_server: QueueServer) -> QueueTarget:
    address = ServerAddress(queue_server.identity.fingerprint, ("127.0.0.1",), queue_server.port)
    return QueueTarget(str(address), (queue_server.pid,))


@pytest.mark.parametrize("kind", queue_blocks.FLOORS)
def test_the_floors_give_blocks_back(kind: str) -> None:
    with queue_floor(kind) as target:
        measurement = queue_blocks.run(target, QUEUE_SMOKE, kind)

    assert measurement.operations > 0
    assert measurement.cpu_us is not None


def test_a_block_of_each_kind_is_answered(target: QueueTarget) -> None:
    measured = [queue_blocks.run(target, QUEUE_SMOKE, kind) for kind in ("plain", "stored")]

    assert all(one.operations > 0 and one.p50_ms for one in measured)


def test_every_message_arrives(target: QueueTarget) -> None:
    measurement = queue_messages.run(target, QUEUE_SMOKE)

    assert measurement.operations > 0
    assert measurement.lost == 0


def test_idle_queues_and_connections_are_counted(target: QueueTarget) -> None:
    queues, connections = queue_idle.run(target, QUEUE_SMOKE)

    assert (queues.operations, connections.operations) == (QUEUE_SMOKE.queues, QUEUE_SMOKE.idle)
    assert connections.kib is not None


def test_refusals_of_every_kind_are_compared(target: QueueTarget) -> None:
    measured = queue_refusals.run(target, QUEUE_SMOKE)

    assert [one.scenario.rpartition(", ")[2] for one in measured] == list(queue_refusals.KINDS)
    assert all("× a wrong key" in one.notes for one in measured)
    assert all(one.operations == 2 * 2 * 3 * (queue_refusals.WARM + 3) for one in measured)
