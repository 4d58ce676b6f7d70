"""Moving a user agent to a new month: what the session asks for, and in which order."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.unit.push.connect.house import House
from tests.unit.push.connect.talk import (
    CHANNEL,
    NOW_MS,
    OTHER_CHANNEL,
    UAID,
    Talk,
    ack,
    notification,
    of,
    record,
    returned,
    said,
    update,
)
from tests.unit.waiting import until
from waystation.base.ids import dashed
from waystation.push.connect import effects as do
from waystation.push.connect.effects import Effect
from waystation.push.connect.month_switch import MonthSwitch, Stage
from waystation.push.connect.session_states import State
from waystation.push.model import SIMPLEPUSH, UserAgent

REGISTER = {"messageType": "register", "channelID": dashed(OTHER_CHANNEL)}
BEHIND = record(behind=True)


def behind(**settings: Any) -> tuple[Talk, list[Effect]]:
    return returned(found=BEHIND, **settings)


def moving() -> Talk:
    """A user agent with nothing to read, which the store is moving."""
    talk, _ = behind()
    assert of(do.SwitchMonth, talk.session.fetched([]))
    return talk


class TestSwitching:
    def test_who_is_on_the_current_month_is_not_moved(self) -> None:
        talk, _ = returned()

        assert talk.session.fetched([]) == []

    def test_with_nothing_stored_the_move_follows_the_hello(self) -> None:
        """C-141"""
        talk, effects = behind()

        assert of(do.Fetch, effects)
        assert talk.session.fetched([]) == [do.SwitchMonth(NOW_MS)]

    def test_it_begins_when_all_of_the_old_month_is_read_and_acked(self) -> None:
        """C-139"""
        talk, _ = behind()
        row = notification(1)

        assert not of(do.SwitchMonth, talk.session.fetched([row]))
        assert of(do.Forget, talk.say(ack(row)))
        assert of(do.Fetch, talk.session.forgotten(1)), "there may be more"
        assert talk.session.fetched([]) == [do.SwitchMonth(NOW_MS)]

    def test_it_waits_for_direct_notifications_and_takes_no_more_until_then(self) -> None:
        talk, _ = behind()
        direct = notification(1)
        assert talk.session.direct(direct) is do.Direct.SENT

        assert talk.session.fetched([]) == []
        assert talk.session.direct(notification(2)) is do.Direct.REFUSED, "it must come to an end"
        assert of(do.Fetch, talk.say(ack(direct)))
        assert talk.session.fetched([]) == [do.SwitchMonth(NOW_MS)]

    def test_who_leaves_before_all_is_acked_is_not_moved(self) -> None:
        """C-142"""
        talk, _ = behind()
        talk.session.fetched([notification(1)])
        talk.session.closed()

        assert talk.session.forgotten(1) == []
        assert talk.session.fetched([]) == []

    def test_nothing_is_fetched_while_the_store_moves_it_and_all_after_it(self) -> None:
        """C-143: what was stored meanwhile, wherever, is looked for once more."""
        talk = moving()

        assert talk.session.check_stored() == (True, [])
        assert of(do.Fetch, talk.session.switched(True))

    def test_direct_notifications_arrive_while_the_store_moves_it(self) -> None:
        talk = moving()

        assert talk.session.direct(notification(1)) is do.Direct.SENT

    def test_after_the_move_everything_is_as_ever(self) -> None:
        talk = moving()
        talk.session.switched(True)
        assert talk.session.fetched([]) == []

        assert of(do.Subscribe, talk.say(REGISTER))

    def test_a_move_that_another_connection_makes_changes_nothing_here(self) -> None:
        talk = moving()

        assert of(do.Fetch, talk.session.switched(False))
        assert not talk.session.busy

    def test_an_old_record_is_reset_and_not_moved(self) -> None:
        talk, _ = returned(found=record(behind=True, record_version=None))

        assert talk.session.fetched([]) == [do.DropUserAgent("old_record_version")]

    def test_answers_that_come_after_the_end_are_passed_over(self) -> None:
        talk = moving()
        talk.session.closed()

        assert talk.session.switched(True) == []
        assert talk.session.switch_due() == []
        assert talk.session.failed(do.SwitchMonth(NOW_MS)) == []

    def test_simplepush_is_moved_when_its_versions_are_acked(self) -> None:
        talk, _ = returned(
            found=record(behind=True, router_type=SIMPLEPUSH), hello={"use_webpush": False}
        )

        assert not of(do.SwitchMonth, talk.session.fetched_updates([update(5)]))
        assert of(do.ForgetUpdate, talk.say(ack(update(5))))
        assert of(do.FetchUpdates, talk.session.forgotten(1))
        assert talk.session.fetched_updates([]) == [do.SwitchMonth(NOW_MS)]


class TestCommandsMeanwhile:
    def test_a_registration_waits_and_is_taken_up_after_the_move(self) -> None:
        """C-144"""
        talk, _ = behind()
        row = notification(1)
        talk.session.fetched([row])

        assert talk.say(REGISTER) == []
        assert of(do.Forget, talk.say(ack(row))), "acks do not wait, or it would never end"
        talk.session.forgotten(1)
        talk.session.fetched([])
        assert talk.session.busy
        (taken,) = of(do.ReceiveHeld, talk.session.switched(True))
        assert [msgspec.json.decode(text) for text in taken.texts] == [REGISTER]
        assert of(do.Subscribe, talk.say(taken.texts[0]))

    def test_unregistering_waits_too_and_the_order_stays(self) -> None:
        talk, _ = behind()
        unregister = {"messageType": "unregister", "channelID": dashed(CHANNEL)}
        for message in (REGISTER, unregister):
            assert talk.say(message) == []
        talk.session.fetched([])

        (taken,) = of(do.ReceiveHeld, talk.session.switched(True))
        assert [msgspec.json.decode(text) for text in taken.texts] == [REGISTER, unregister]

    def test_other_messages_do_not_wait(self) -> None:
        talk, _ = behind()

        assert said(talk.say({"messageType": "ping"})) == [{}]

    def test_more_than_can_wait_closes_the_connection(self) -> None:
        talk, _ = behind(max_commands=2)
        for _ in range(2):
            assert talk.say(REGISTER) == []

        assert talk.say(REGISTER) == [do.Close(1011, "SM")]

    def test_what_was_sent_wrongly_is_still_refused(self) -> None:
        talk, _ = behind()

        assert talk.say(b"{") == [do.Close(1011, "Json")]


class TestAStoreThatCannot:
    def postponed(self) -> tuple[Talk, list[Effect]]:
        talk = moving()
        return talk, talk.session.failed(do.SwitchMonth(NOW_MS))

    def test_it_is_asked_again_after_a_while_that_chance_decides(self) -> None:
        waits: list[float] = []
        for _ in range(200):
            _, effects = self.postponed()
            (later,) = of(do.SwitchLater, effects)
            waits.append(later.after_s)

        assert 1 <= min(waits) < 200
        assert 1600 < max(waits) <= 1800

    def test_meanwhile_nothing_waits_and_the_connection_stays(self) -> None:
        talk, effects = self.postponed()

        assert not of(do.Close, effects)
        assert of(do.Subscribe, talk.say(REGISTER))
        talk.session.subscribed(True)
        assert talk.session.direct(notification(1)) is do.Direct.SENT

    def test_what_waited_goes_on_in_the_old_month(self) -> None:
        talk, _ = behind()
        talk.say(REGISTER)
        talk.session.fetched([])

        (taken,) = of(do.ReceiveHeld, talk.session.failed(do.SwitchMonth(NOW_MS)))
        assert len(taken.texts) == 1

    def test_when_it_is_due_the_old_month_is_read_once_more_first(self) -> None:
        talk, _ = self.postponed()

        assert of(do.Fetch, talk.session.switch_due())
        assert talk.session.fetched([]) == [do.SwitchMonth(NOW_MS)]

    def test_a_command_that_is_under_way_then_is_waited_for(self) -> None:
        talk, _ = self.postponed()
        talk.say(REGISTER)
        talk.session.switch_due()

        assert talk.session.fetched([]) == []
        assert of(do.Fetch, talk.session.subscribed(True))
        assert talk.session.fetched([]) == [do.SwitchMonth(NOW_MS)]

    @pytest.mark.parametrize("kind", ["register", "unregister"])
    def test_a_command_that_fails_then_is_waited_for_as_well(self, kind: str) -> None:
        talk, _ = self.postponed()
        (asked,) = talk.say({"messageType": kind, "channelID": dashed(OTHER_CHANNEL)})
        talk.session.switch_due()
        talk.session.fetched([])

        assert of(do.Fetch, talk.session.failed(asked))


class TestMonthSwitch:
    def test_it_is_held_only_while_the_old_month_is_read(self) -> None:
        switch = MonthSwitch(held_max=1)
        assert switch.hold(b"one")
        assert not switch.hold(b"two")
        switch.move()

        with pytest.raises(AssertionError):
            switch.hold(b"three")
        assert switch.release() == [b"one"]
        assert switch.release() == []

    def test_it_goes_round_until_the_store_can(self) -> None:
        switch = MonthSwitch(held_max=1)
        for _ in range(3):
            switch.move()
            switch.postpone()
            assert switch.stage is Stage.POSTPONED
            switch.drain()

        with pytest.raises(AssertionError):
            switch.drain()


class RotatingHouse(House):
    """A worker on a store that moves user agents when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[int] = []
        self.driver._rotating = self

    async def switch_month(self, uaid: bytes, *, connected_at_ms: int) -> bool:
        assert uaid == UAID
        await self.store.check()
        self.moved.append(connected_at_ms)
        return True


class TestInADriver:
    @pytest.fixture
    async def house(self) -> AsyncIterator[RotatingHouse]:
        house = RotatingHouse()
        await house.store.inner.add_user_agent(
            UserAgent(uaid=UAID, connected_at_ms=NOW_MS - 1000, behind=True)
        )
        await house.store.inner.add_channel(UAID, CHANNEL, channels_max=10)
        yield house
        await house.close()
        assert house.failures == []

    async def test_a_registration_is_answered_after_the_move(self, house: RotatingHouse) -> None:
        """C-144"""
        gate = house.store.hold("check")
        peer = house.greeted()
        peer.register(OTHER_CHANNEL)
        peer.say({"messageType": "ping"})
        await house.settle()
        assert peer.heard() == []
        assert house.moved == []
        gate.set()
        await house.settle()

        heard = peer.heard()
        assert [message.get("messageType") for message in heard] == ["register", None]
        assert house.moved == [house.clock.now_ms()]
        assert await house.store.inner.get_channels(UAID) == {CHANNEL, OTHER_CHANNEL}

    async def test_a_store_that_cannot_is_asked_again(
        self, house: RotatingHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(house.driver._context, "switch_after_s", lambda: 0.0)
        house.store.failing.add("check")
        peer = house.greeted()
        await house.settle()
        assert house.moved == []
        assert peer.ended is None
        house.store.failing.clear()
        await until(lambda: bool(house.moved))

        peer.register(OTHER_CHANNEL)
        await house.settle()
        assert peer.heard()[-1]["status"] == 200

    async def test_who_leaves_during_the_move_ends_as_ever(self, house: RotatingHouse) -> None:
        gate = house.store.hold("check")
        peer = house.greeted()
        peer.vanish()
        gate.set()
        await house.settle()

        assert house.driver.connected == 0
        assert house.moved


def test_a_session_that_is_moved_is_identified_all_the_time() -> None:
    talk = moving()

    assert talk.session.state is State.IDENTIFIED
