"""Acks are batched, for a limited time."""

from waystation.client.party.acks import ACK_IDS_MAX, AckBatch


def test_an_ack_waits_a_quarter_of_a_second() -> None:
    acks = AckBatch(delay_s=0.25, batch=32)
    acks.add(5, 10.0)
    acks.add(6, 10.2)

    assert acks.due_at == 10.25
    assert acks.take() == [5, 6]
    assert acks.due_at is None


def test_a_full_batch_leaves_at_once() -> None:
    acks = AckBatch(delay_s=0.25, batch=3)
    for number in range(3):
        acks.add(number, 10.0)

    assert acks.due_at == 10.0


def test_a_message_carries_no_more_than_it_may() -> None:
    acks = AckBatch(delay_s=0.25, batch=32)
    for number in range(ACK_IDS_MAX + 5):
        acks.add(number, 1.0)

    assert len(acks.take()) == ACK_IDS_MAX
    assert acks.due_at is not None
    assert len(acks.take()) == 5


def test_an_id_that_comes_twice_is_acknowledged_once_a_batch() -> None:
    acks = AckBatch(delay_s=0.25, batch=32)
    acks.add(5, 1.0)
    acks.add(5, 1.1)

    assert acks.take() == [5]
