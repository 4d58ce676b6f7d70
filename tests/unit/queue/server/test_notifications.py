"""Waiting notifications and their limits."""

import secrets

from waystation.queue.model import NotifierId
from waystation.queue.server.notifications import Notifications
from waystation.queue.store import PendingNotification

ONE, TWO = NotifierId(b"1" * 24), NotifierId(b"2" * 24)


def waiting(notifier_id: NotifierId, at_s: int = 100) -> PendingNotification:
    return PendingNotification(notifier_id, secrets.token_bytes(24), bytes(144), at_s)


def test_what_is_taken_is_forgotten_and_what_is_refused_stays() -> None:
    notifications = Notifications(total_max=10, per_notifier_max=10)
    first, second, other = waiting(ONE), waiting(ONE), waiting(TWO)
    for one in (first, second, other):
        notifications.add(one)
    taken: list[PendingNotification] = []

    def deliver(one: PendingNotification) -> bool:
        taken.append(one)
        return len(taken) < 2

    assert notifications.hand_over(deliver, [ONE]) == 1
    assert taken == [first, second]
    assert notifications.all() == [second, other]
    assert notifications.count == 2


def test_the_oldest_make_room() -> None:
    notifications = Notifications(total_max=3, per_notifier_max=2)
    sent = [waiting(ONE), waiting(ONE), waiting(ONE), waiting(TWO), waiting(TWO)]
    for one in sent:
        notifications.add(one)

    assert notifications.all() == sent[2:]
    assert notifications.count == 3
    assert notifications.lost == 2


def test_age_and_a_lost_notifier_end_them() -> None:
    notifications = Notifications(total_max=10, per_notifier_max=10)
    for one in (waiting(ONE, 1), waiting(ONE, 50), waiting(TWO, 1)):
        notifications.add(one)

    assert notifications.expire(before_s=10) == 2
    assert notifications.notifier_ids() == [ONE]
    notifications.forget(ONE)
    notifications.forget(ONE)
    assert notifications.count == 0
    assert notifications.all() == []
