import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.push.connect.house import House, Peer
from tests.unit.push.connect.talk import (
    CHANNEL,
    KEY,
    NODE,
    NOW_MS,
    OTHER_CHANNEL,
    UAID,
    ack,
    notification,
    update,
)
from waystation.base.errors import StoreFullError
from waystation.base.ids import dashed, parse_uuid
from waystation.net.connection import PAUSED
from waystation.net.websocket.connection import Ending
from waystation.push.connect.journal import Journal, read_unsettled
from waystation.push.connect.journal_map import JournalMap
from waystation.push.connect.session_timers import TICK_S
from waystation.push.model import HandedBack, Uaid, Update
from waystation.push.wire.relay import Answer

Make = Callable[..., House]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    houses: list[House] = []

    def build(*, journal: bool = False, **settings: Any) -> House:
        houses.append(House(tmp_path if journal else None, **settings))
        return houses[-1]

    yield build
    for house in houses:
        await house.close()
        assert house.failures == []


def versions(peer: Peer) -> list[str]:
    return [message["version"] for message in peer.heard() if "version" in message]


def owed(tmp_path: Path) -> list[object]:
    data = (tmp_path / "0.log").read_bytes()
    return [entry.notification or entry.update for entry in read_unsettled(data)]


class TestSubscribing:
    async def test_a_newcomer_is_stored_when_it_first_subscribes(self, make: Make) -> None:
        """C-001, C-005, C-019"""
        house = make()
        peer = house.connect()
        peer.hello(None)
        (hello,) = peer.heard()
        uaid = Uaid(parse_uuid(hello["uaid"]) or b"")
        assert house.store.calls == []
        peer.register()
        (reply,) = peer.heard()

        assert reply["status"] == 200
        assert reply["pushEndpoint"].startswith("https://push.example/wpush/v1/")
        held = await house.store.inner.look_up(uaid, CHANNEL)
        assert held is not None
        assert held.subscribed
        assert held.user_agent.node_id == NODE

    async def test_a_first_subscription_that_failed_halfway_can_be_tried_again(
        self, make: Make
    ) -> None:
        """C-024: the record was stored, the subscription was not."""
        house = make()
        peer = house.greeted(uaid=None)
        house.store.failing = {"add_channel"}
        peer.register()
        assert peer.heard()[0]["status"] == 500
        house.store.failing = set()
        peer.register()

        assert peer.heard()[0]["status"] == 200
        assert peer.ended is None

    async def test_a_new_uaid_that_somebody_has_is_never_taken_over(self, make: Make) -> None:
        house = make()
        await house.knows()
        house.driver._context.new_uaid = lambda: UAID
        peer = house.greeted(uaid=None)
        peer.register()

        assert peer.heard()[0]["status"] == 500

    async def test_no_more_than_the_limit_are_subscribed(self, make: Make) -> None:
        house = make(max_channels_per_uaid=1)
        await house.knows()
        peer = house.greeted()
        peer.register(OTHER_CHANNEL)
        peer.register(CHANNEL)

        assert [reply["status"] for reply in peer.heard()] == [500, 200]

    async def test_a_key_gives_an_endpoint_of_version_two(self, make: Make) -> None:
        """C-020"""
        house = make()
        await house.knows()
        peer = house.greeted()
        peer.say({"messageType": "register", "channelID": dashed(CHANNEL), "key": KEY})

        assert "/wpush/v2/" in peer.heard()[0]["pushEndpoint"]

    async def test_unsubscribing_ends_the_subscription_and_what_was_owed_of_it(
        self, make: Make, tmp_path: Path
    ) -> None:
        """C-025, C-026"""
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        peer.heard()
        for _ in range(2):
            peer.say({"messageType": "unregister", "channelID": dashed(CHANNEL)})
            assert peer.heard() == [
                {"messageType": "unregister", "channelID": dashed(CHANNEL), "status": 200}
            ]
        peer.vanish()
        await house.settle()

        assert await house.store.inner.get_channels(UAID) == frozenset()
        assert await house.stored() == []
        assert owed(tmp_path) == []


class TestDelivering:
    async def test_a_direct_notification_is_journalled_sent_and_settled_by_its_ack(
        self, make: Make, tmp_path: Path
    ) -> None:
        """C-033, C-041"""
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()

        assert await house.driver.push(UAID, notification(1)) is Answer.TAKEN
        assert owed(tmp_path) == [notification(1)]
        assert versions(peer) == ["m-00001"]
        peer.say(ack(notification(1)))
        await house.settle()
        assert owed(tmp_path) == []
        peer.vanish()
        await house.settle()
        assert await house.stored() == []

    async def test_ttl_zero_is_not_journalled(self, make: Make, tmp_path: Path) -> None:
        """C-039"""
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()

        assert await house.driver.push(UAID, notification(1, ttl_s=0)) is Answer.TAKEN
        assert owed(tmp_path) == []
        assert versions(peer) == ["m-00001"]
        peer.vanish()
        await house.settle()
        assert await house.stored() == []

    async def test_nobody_is_here(self, make: Make) -> None:
        """C-081"""
        driver = make().driver

        assert await driver.push(UAID, notification(1)) is Answer.ABSENT
        assert await driver.check_stored(UAID) is Answer.ABSENT

    async def test_a_user_agent_that_owes_too_much_is_busy_and_then_looked_at(
        self, make: Make
    ) -> None:
        """C-069, C-070"""
        house = make(delivery_window=1)
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        assert await house.driver.push(UAID, notification(2)) is Answer.BUSY
        await house.store.save(UAID, notification(2))
        assert await house.driver.check_stored(UAID) is Answer.FLAGGED
        assert versions(peer) == ["m-00001"]
        peer.say(ack(notification(1)))

        assert versions(peer) == ["m-00002"]

    async def test_an_idle_one_looks_at_once_and_a_busy_one_later(self, make: Make) -> None:
        """C-083"""
        house = make()
        await house.knows()
        peer = house.greeted()
        await house.store.save(UAID, notification(1))

        assert await house.driver.check_stored(UAID) is Answer.TAKEN
        assert versions(peer) == ["m-00001"]
        assert await house.driver.check_stored(UAID) is Answer.FLAGGED

    async def test_a_slow_reader_is_busy(self, make: Make) -> None:
        house = make()
        await house.knows()
        peer = house.greeted()
        peer.connection.out_bytes = 65_536

        assert await house.driver.push(UAID, notification(1)) is Answer.BUSY
        assert versions(peer) == []
        assert await house.driver.push(UAID, notification(2)) is Answer.TAKEN

    async def test_a_full_journal_refuses_before_anything_is_sent(self, make: Make) -> None:
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()
        answers = [await house.driver.push(UAID, notification(n)) for n in range(12)]
        taken = answers.count(Answer.TAKEN)

        assert 0 < taken < 12
        assert answers == [Answer.TAKEN] * taken + [Answer.BUSY] * (12 - taken)
        assert len(versions(peer)) == taken

    async def test_a_journal_that_cannot_be_written_refuses(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has been sent by then; when it comes back from storage its ack is still owed."""
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_append", lambda self, data: False)
            patch.setattr(JournalMap, "append", lambda self, body: False)
            assert await house.driver.push(UAID, notification(1)) is Answer.BUSY
        assert await house.driver.push(UAID, notification(2)) is Answer.BUSY
        await house.store.save(UAID, notification(1))
        await house.driver.check_stored(UAID)

        assert versions(peer) == ["m-00001"]
        peer.say(ack(notification(1)))
        await house.driver.check_stored(UAID)
        assert versions(peer) == ["m-00001"]  # once more from storage, and then it is gone
        peer.say(ack(notification(1)))
        assert await house.stored() == []

    async def test_what_was_sent_directly_and_stored_too_leaves_the_journal(
        self, make: Make, tmp_path: Path
    ) -> None:
        """Its row stands for it: a replay must not bring it back after its ack."""
        house = make(journal=True)
        await house.knows()
        gate = house.store.hold("fetch")
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        await house.store.inner.save(UAID, notification(1))
        gate.set()
        await house.settle()

        assert versions(peer) == ["m-00001"]
        assert owed(tmp_path) == []
        peer.say(ack(notification(1)))
        await house.settle()
        assert await house.stored() == []

    async def test_stored_notifications_come_behind_the_hello(self, make: Make) -> None:
        """C-044, C-045, C-046"""
        house = make()
        await house.knows()
        for n in range(2):
            await house.store.save(UAID, notification(n))
        for _ in range(3):
            house.clock.advance(1)
            peer = house.connect()
            peer.hello()
            hello, *messages = peer.heard()
            assert hello["messageType"] == "hello"
            assert [one["version"] for one in messages] == ["m-00000", "m-00001"]
            peer.vanish()

    async def test_acked_rows_do_not_come_again(self, make: Make) -> None:
        """C-049"""
        house = make()
        await house.knows()
        for n in range(2):
            await house.store.save(UAID, notification(n))
        first = house.greeted()
        first.say(ack(notification(0)))
        first.vanish()
        second = house.connect()
        house.clock.advance(1)
        second.hello()

        assert versions(second)[-1:] == ["m-00001"]
        second.say(ack(notification(1)))
        assert await house.stored() == []

    async def test_an_ack_of_the_old_topic_message_leaves_the_newer(self, make: Make) -> None:
        """C-086"""
        house = make()
        await house.knows()
        await house.store.save(UAID, notification("old", topic="t"))
        peer = house.greeted()
        await house.store.save(UAID, notification("new", topic="t", accepted_at_ms=NOW_MS + 1))
        peer.say(ack(notification("old", topic="t")))

        assert versions(peer) == ["m-new"]


class TestEnding:
    async def test_what_was_not_acked_is_handed_back_and_settled(
        self, make: Make, tmp_path: Path
    ) -> None:
        """C-040"""
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        peer.vanish()
        await house.settle()

        assert await house.stored() == [notification(1)]
        assert owed(tmp_path) == []
        assert house.driver.connected == 0

    async def test_until_it_is_saved_the_journal_keeps_it(self, make: Make, tmp_path: Path) -> None:
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        house.store.failing = {"save_if_newer"}
        peer.vanish()
        await house.settle()

        assert owed(tmp_path) == [notification(1)]

    async def test_ending_twice_hands_back_once(self, make: Make) -> None:
        house = make()
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        peer.vanish()
        peer.vanish()
        await house.settle()

        assert house.store.calls.count("save_if_newer") == 1

    async def test_a_newer_connection_closes_the_older_and_gets_what_that_owed(
        self, make: Make
    ) -> None:
        """C-013, C-080"""
        house = make()
        await house.knows()
        older = house.greeted()
        await house.driver.push(UAID, notification(1))
        newer = house.greeted()
        await house.settle()

        assert older.ended == 1011
        assert newer.ended is None
        assert versions(newer) == ["m-00001"]
        assert house.driver.connected == 1
        assert await house.driver.push(UAID, notification(2)) is Answer.TAKEN
        assert versions(newer) == ["m-00002"]

    async def test_a_displaced_connection_is_closed_only_if_it_is_that_one(
        self, make: Make
    ) -> None:
        """C-084"""
        house = make()
        await house.knows()
        peer = house.greeted()
        connected_at_ms = house.clock.now_ms()

        assert await house.driver.displace(UAID, connected_at_ms - 1) is Answer.ABSENT
        assert peer.ended is None
        assert await house.driver.displace(UAID, connected_at_ms) is Answer.TAKEN
        assert peer.ended == 1011
        assert await house.driver.displace(UAID, connected_at_ms) is Answer.ABSENT

    async def test_a_hello_asks_the_store_three_times(self, make: Make) -> None:
        """A read, a claim, what waits: each is a round trip on every server store."""
        house = make()
        await house.knows()
        house.store.calls.clear()
        house.greeted()

        assert house.store.calls == ["get_user_agent", "claim_route", "fetch"]

    async def test_the_node_where_it_was_before_is_told(self, make: Make) -> None:
        """C-015"""
        house = make()
        await house.knows(node_id="http://elsewhere:8081")
        house.greeted()
        await house.settle()

        assert house.relay.displaced == [("http://elsewhere:8081", UAID, NOW_MS - 1000)]

    async def test_binary_and_broken_input_end_it(self, make: Make) -> None:
        """C-010"""
        house = make()
        await house.knows()
        peer = house.greeted()
        house.driver.binary(peer.connection)
        broken = house.greeted()
        house.driver.broken(broken.connection, 1002, "Protocol")

        assert peer.ended == 1003
        assert house.driver.connected == 0

    async def test_stopping_closes_everybody_and_waits_for_what_they_owed(self, make: Make) -> None:
        """C-090"""
        house = make()
        await house.knows()
        peer = house.greeted()
        other = house.greeted(uaid=None)
        await house.driver.push(UAID, notification(1))
        gate = house.store.hold("save_if_newer")
        draining = asyncio.ensure_future(house.driver.drain(spread_s=0.0))
        await house.settle()
        assert not draining.done()
        gate.set()
        await asyncio.wait_for(draining, 10)

        assert (peer.ended, other.ended) == (1012, 1012)
        assert await house.stored() == [notification(1)]

    async def test_stopping_does_not_wait_for_a_store_that_takes_nothing(self, make: Make) -> None:
        """What was not acked stays in the journal for whoever replays it."""
        house = make(journal=True)
        await house.knows()
        house.greeted()
        await house.driver.push(UAID, notification(1))

        async def full(*_: object) -> HandedBack:
            raise StoreFullError("full")

        house.store.save_if_newer = full  # type: ignore[method-assign]
        await asyncio.wait_for(house.driver.drain(spread_s=0.0), 10)

        assert house.journal is not None
        assert house.journal.unsettled == 1

    async def test_stopping_also_ends_whoever_is_aside_for_a_newcomer(self, make: Make) -> None:
        house = make()
        await house.knows()
        older = house.greeted()
        await house.driver.push(UAID, notification(1))
        house.store.hold("claim_route")
        house.clock.advance(1)
        newer = house.connect()
        newer.hello()
        await asyncio.wait_for(house.driver.drain(spread_s=0.0), 10)

        assert (newer.ended, older.ended) == (1012, 1012)
        assert await house.stored() == [notification(1)]


class TestArriving:
    async def test_while_it_arrives_it_is_here_and_busy(self, make: Make) -> None:
        """C-088b"""
        house = make()
        await house.knows()
        gate = house.store.hold("claim_route")
        peer = house.connect()
        house.clock.advance(1)
        peer.hello()

        assert await house.driver.push(UAID, notification(1)) is Answer.BUSY
        assert await house.driver.check_stored(UAID) is Answer.FLAGGED
        await house.store.inner.save(UAID, notification(1))
        gate.set()
        await house.settle()
        assert versions(peer) == ["m-00001"]

    async def test_if_it_loses_its_claim_the_older_is_found_and_looks_in_storage(
        self, make: Make
    ) -> None:
        """What was refused meanwhile is stored, and nobody else would tell the older one."""
        house = make()
        await house.knows()
        older = house.greeted()
        gate = house.store.hold("claim_route")
        house.clock.advance(1)
        newer = house.connect()
        newer.hello()
        await house.settle()
        assert await house.driver.push(UAID, notification(1)) is Answer.BUSY
        await house.store.inner.save(UAID, notification(1))
        assert await house.driver.check_stored(UAID) is Answer.FLAGGED
        house.store.failing = {"claim_route"}
        gate.set()
        await house.settle()

        assert newer.ended == 1011
        assert older.ended is None
        assert versions(older) == ["m-00001"]
        assert await house.driver.push(UAID, notification(2)) is Answer.TAKEN

    async def test_a_lost_claim_leaves_the_row_as_it_was(self, make: Make) -> None:
        """C-014"""
        house = make()
        await house.knows(connected_at_ms=NOW_MS + 60_000, node_id="http://elsewhere:8081")
        before = await house.store.inner.get_user_agent(UAID)
        peer = house.connect()
        peer.hello()

        assert peer.ended == 1011
        assert peer.heard() == []
        assert await house.store.inner.get_user_agent(UAID) == before
        assert house.driver.connected == 0

    async def test_who_vanishes_while_it_is_looked_up_is_not_greeted(self, make: Make) -> None:
        house = make()
        await house.knows()
        gate = house.store.hold("get_user_agent")
        peer = house.connect()
        peer.hello()
        peer.vanish()
        gate.set()
        await house.settle()

        assert house.driver.connected == 0
        assert "claim_route" not in house.store.calls


class TestWaitingCommands:
    async def test_messages_wait_for_an_earlier_command_and_keep_their_order(
        self, make: Make
    ) -> None:
        house = make()
        await house.knows()
        gate = house.store.hold("get_user_agent")
        house.clock.advance(1)
        peer = house.connect()
        peer.hello()
        peer.register(OTHER_CHANNEL)
        peer.say({})
        peer.say({"messageType": "unregister", "channelID": dashed(OTHER_CHANNEL)})
        assert peer.heard() == []
        gate.set()
        await house.settle()

        kinds = [message.get("messageType") for message in peer.heard()]
        assert kinds == ["hello", "register", None, "unregister"]

    async def test_reading_pauses_at_the_limit_and_goes_on_afterwards(self, make: Make) -> None:
        house = make(max_commands=3)
        await house.knows()
        house.clock.advance(1)
        gate = house.store.hold("get_user_agent")
        peer = house.connect()
        peer.hello()
        for n in range(3):
            assert not peer.connection.flags & PAUSED
            peer.register(bytes([n] * 16))
        assert peer.connection.flags & PAUSED
        gate.set()
        await house.settle()

        assert not peer.connection.flags & PAUSED
        assert peer.server.net.resumed_count == 1
        assert len(peer.heard()) == 4

    async def test_what_waits_behind_a_fatal_message_is_dropped(self, make: Make) -> None:
        house = make()
        await house.knows()
        house.clock.advance(1)
        gate = house.store.hold("get_user_agent")
        peer = house.connect()
        peer.hello()
        peer.say(b"not json")
        peer.register(OTHER_CHANNEL)
        gate.set()
        await house.settle()

        assert peer.ended == 1011
        assert "add_channel" not in house.store.calls


class TestStoreDown:
    @pytest.mark.parametrize("call", ["get_user_agent", "claim_route", "fetch"])
    async def test_hello_is_refused_or_ends_and_the_next_one_begins_anew(
        self, make: Make, call: str
    ) -> None:
        """C-016"""
        house = make()
        await house.knows()
        house.store.failing = {call}
        house.clock.advance(1)
        peer = house.connect()
        peer.hello()

        assert peer.ended == 1011
        assert house.driver.connected == 0
        assert all(message["uaid"] == UAID.hex() for message in peer.heard())
        house.store.failing = set()
        house.greeted()

    @pytest.mark.parametrize("call", ["add_channel", "remove_channel"])
    async def test_subscribing_is_answered_500_and_the_connection_stays(
        self, make: Make, call: str
    ) -> None:
        """C-024"""
        house = make()
        await house.knows()
        peer = house.greeted()
        house.store.failing = {call}
        kind = "register" if call == "add_channel" else "unregister"
        peer.say({"messageType": kind, "channelID": dashed(CHANNEL)})

        assert peer.heard()[0]["status"] == 500
        assert peer.ended is None

    async def test_an_ack_that_cannot_be_recorded_ends_the_connection(self, make: Make) -> None:
        house = make()
        await house.knows()
        await house.store.save(UAID, notification(1))
        peer = house.greeted()
        house.store.failing = {"forget"}
        peer.say(ack(notification(1)))

        assert peer.ended == 1011
        assert await house.stored() == [notification(1)]

    async def test_a_reset_that_fails_ends_the_connection_and_keeps_the_record(
        self, make: Make
    ) -> None:
        house = make(msg_limit=1)
        await house.knows()
        for n in range(2):
            await house.store.save(UAID, notification(n))
        house.store.failing = {"remove_user_agent"}
        peer = house.greeted()

        assert peer.ended == 1011
        assert await house.store.inner.get_user_agent(UAID) is not None

    async def test_a_mistake_of_ours_costs_one_connection_and_is_heard_of(self, make: Make) -> None:
        house = make()
        await house.knows()
        peer, bystander = house.greeted(), house.greeted(uaid=None)
        house.store.broken = {"add_channel"}

        with pytest.raises(LookupError):  # the shell ends the connection for it
            peer.register()
        assert peer.heard()[0]["status"] == 500
        assert bystander.ended is None


class TestClosingBehindAnAck:
    async def test_acks_that_wait_for_an_earlier_command_are_recorded(
        self, make: Make, tmp_path: Path
    ) -> None:
        """A close that follows an ack does not cut it off."""
        house = make(journal=True)
        await house.knows()
        await house.store.inner.save(UAID, notification(1))
        peer = house.greeted()
        await house.driver.push(UAID, notification(2))
        subscribing = house.store.hold("add_channel")
        peer.register()
        peer.say(ack(notification(1)))
        peer.say(ack(notification(2)))
        peer.vanish()
        subscribing.set()
        await house.settle()

        assert await house.stored() == []
        assert owed(tmp_path) == []


class TestResets:
    async def test_too_many_messages_reset_the_user_agent(self, make: Make) -> None:
        """C-066, C-068"""
        house = make(msg_limit=20)
        await house.knows()
        for n in range(21):
            await house.store.save(UAID, notification(n))
        house.clock.advance(1)
        peer = house.connect()
        peer.hello()
        got: list[str] = []
        while fresh := versions(peer):
            got += fresh
            for version in fresh:
                peer.say(ack(version))

        assert len(got) == 20
        assert peer.ended == 1000
        assert await house.store.inner.look_up(UAID, CHANNEL) is None
        again = house.connect()
        again.hello()
        assert again.heard()[0]["uaid"] != UAID.hex()

    async def test_one_who_closes_right_behind_the_last_ack_comes_back_as_a_new_one(
        self, make: Make
    ) -> None:
        """C-066: its hello waits until the record is gone."""
        house = make(msg_limit=20)
        await house.knows()
        for n in range(21):
            await house.store.save(UAID, notification(n))
        house.clock.advance(1)
        peer = house.connect()
        peer.hello()
        got: list[str] = []
        while fresh := versions(peer):
            got += fresh
            for version in fresh[:-1] if len(got) == 20 else fresh:
                peer.say(ack(version))
        forgetting, removing = house.store.hold("forget"), house.store.hold("remove_user_agent")
        peer.say(ack(got[-1]))
        peer.vanish()
        again = house.connect()
        again.hello()
        await house.settle()
        assert again.heard() == []
        forgetting.set()
        removing.set()
        await house.settle()

        assert again.heard()[0]["uaid"] != UAID.hex()
        assert await house.store.inner.get_user_agent(UAID) is None

    async def test_an_old_record_is_reset_after_delivery(self, make: Make) -> None:
        house = make()
        await house.knows(record_version=None)
        peer = house.greeted()

        assert peer.ended == 1000
        assert await house.store.inner.get_user_agent(UAID) is None


class TestTimers:
    async def test_a_hello_that_does_not_come_in_time(self, make: Make) -> None:
        """C-009"""
        house = make(open_handshake_timeout_s=5.0)
        peer = house.connect()
        house.pass_time(4.9)
        assert peer.ended is None
        house.pass_time(0.2)

        assert peer.ended == 1011

    async def test_pings_are_sent_and_a_missing_pong_ends_the_connection(self, make: Make) -> None:
        """C-030"""
        house = make(auto_ping_interval_s=300.0, auto_ping_timeout_s=4.0)
        peer = house.greeted(uaid=None)
        for count in range(1, 4):
            house.pass_time(301)
            assert peer.pings == count
            house.driver.ponged(peer.connection)
        house.pass_time(301)
        house.pass_time(5)

        assert peer.ended == 1011

    async def test_an_interval_shorter_than_the_handshake_is_kept(self, make: Make) -> None:
        """C-030: the timer set for the hello must not stand in the way, nor that of the Pong."""
        house = make(
            auto_ping_interval_s=1.0, auto_ping_timeout_s=30.0, open_handshake_timeout_s=60.0
        )
        peer = house.greeted(uaid=None)
        for count in range(1, 4):
            house.pass_time(1.0 + TICK_S)
            assert peer.pings == count
            house.driver.ponged(peer.connection)

        assert house.driver._timers.fires_at <= house.clock.mono() + 1.0 + TICK_S

    async def test_an_earlier_timer_fires_earlier(self, make: Make) -> None:
        house = make(open_handshake_timeout_s=0.5, auto_ping_interval_s=300.0)
        house.greeted(uaid=None)
        assert house.driver._timers.fires_at > house.clock.mono() + 0.5
        house.connect()

        assert house.driver._timers.fires_at <= house.clock.mono() + 0.51 + TICK_S

    async def test_broadcasts_are_told_at_the_tick(self, make: Make) -> None:
        """C-133"""
        house = make()
        house.broadcasts.update({"a/b": "1"})
        peer = house.greeted(uaid=None, broadcasts={"a/b": "1"})
        house.broadcasts.update({"a/b": "2"})
        house.pass_time(301)

        assert peer.heard() == [{"messageType": "broadcast", "broadcasts": {"a/b": "2"}}]

    async def test_timers_of_those_who_left_ring_for_nobody(self, make: Make) -> None:
        house = make()
        peer = house.greeted(uaid=None)
        peer.vanish()
        house.pass_time(1000)

        assert peer.pings == 0
        assert len(house.driver._timers) == 0


class TestSimplePush:
    async def connected(self, house: House) -> Peer:
        await house.knows(router_type="simplepush")
        return house.greeted(use_webpush=False)

    async def test_a_version_is_delivered_with_its_data_and_acked(
        self, make: Make, tmp_path: Path
    ) -> None:
        """C-147, C-151"""
        house = make(journal=True)
        peer = await self.connected(house)

        assert await house.driver.push(UAID, update(5, data="hi")) is Answer.TAKEN
        assert peer.heard() == [
            {
                "messageType": "notification",
                "updates": [{"channelID": dashed(CHANNEL), "version": 5, "data": "hi"}],
            }
        ]
        assert owed(tmp_path) == [update(5, data="hi")]
        assert await house.driver.push(UAID, update(5)) is Answer.TAKEN
        assert await house.driver.push(UAID, update(6)) is Answer.BUSY
        peer.say(ack(update(5)))
        await house.settle()
        assert owed(tmp_path) == []

    async def test_only_the_newest_stored_version_comes_after_hello(self, make: Make) -> None:
        """C-148"""
        house = make()
        await house.knows(router_type="simplepush")
        for version in (5, 7, 6):
            await house.store.inner.save_update(UAID, Update(CHANNEL, version))
        house.clock.advance(1)
        peer = house.connect()
        peer.hello(use_webpush=False)
        hello, message = peer.heard()

        assert "use_webpush" not in hello
        assert message["updates"] == [{"channelID": dashed(CHANNEL), "version": 7}]

    async def test_an_ack_of_five_leaves_seven(self, make: Make) -> None:
        """C-149"""
        house = make()
        peer = await self.connected(house)
        await house.store.inner.save_update(UAID, Update(CHANNEL, 5))
        await house.driver.check_stored(UAID)
        peer.heard()
        await house.store.inner.save_update(UAID, Update(CHANNEL, 7))
        assert await house.driver.check_stored(UAID) is Answer.FLAGGED
        peer.say(ack(update(5)))

        assert peer.heard()[0]["updates"][0]["version"] == 7

    async def test_what_is_unacked_is_stored_without_its_data(self, make: Make) -> None:
        """C-151"""
        house = make()
        peer = await self.connected(house)
        await house.driver.push(UAID, update(5, data="hi"))
        peer.vanish()
        await house.settle()

        assert await house.store.inner.fetch_updates(UAID, limit=9) == [Update(CHANNEL, 5)]


async def test_how_a_connection_ended_is_told(make: Make) -> None:
    house = make()
    peer = house.greeted(uaid=None)
    peer.say({})
    peer.say({})

    assert peer.ended == 1011
    assert peer.connection.ending is Ending.CLOSED


class TestAskersThatStoppedWaiting:
    async def test_what_was_taken_all_the_same_leaves_storage_with_its_ack(
        self, make: Make, tmp_path: Path
    ) -> None:
        """The endpoint node has stored it, because our answer came too late."""
        house = make(journal=True)
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        await house.store.inner.save(UAID, notification(1))
        house.driver.push_abandoned(UAID, notification(1))
        assert versions(peer) == ["m-00001"]
        peer.say(ack(notification(1)))
        await house.settle()

        assert await house.stored() == []
        assert owed(tmp_path) == []
        assert versions(peer) == []
        await house.driver.push(UAID, notification(2))
        peer.say(ack(notification(2)))
        assert house.store.calls.count("forget") == 1, "of this one nobody stored anything"

    async def test_what_was_taken_and_not_acked_is_handed_back(self, make: Make) -> None:
        """The endpoint node may have failed to store it: we answer for it all the same."""
        house = make()
        await house.knows()
        peer = house.greeted()
        await house.driver.push(UAID, notification(1))
        house.driver.push_abandoned(UAID, notification(1))
        peer.vanish()
        await house.settle()

        assert await house.stored() == [notification(1)]

    async def test_storage_is_looked_at_and_a_cleared_route_is_set_again(self, make: Make) -> None:
        """At once, not with the next ping: others would store all that comes meanwhile."""
        house = make()
        await house.knows()
        peer = house.greeted()
        record = await house.store.inner.get_user_agent(UAID)
        assert record is not None
        assert record.route is not None
        await house.store.inner.clear_route(UAID, record.route)
        await house.store.inner.save(UAID, notification(1))
        house.driver.push_abandoned(UAID, None)
        await house.settle()

        assert versions(peer) == ["m-00001"]
        again = await house.store.inner.get_user_agent(UAID)
        assert again is not None
        assert again.node_id == NODE

    async def test_an_update_of_simplepush_leaves_storage_as_well(self, make: Make) -> None:
        house = make(simplepush="p")
        await house.knows(router_type="simplepush")
        peer = house.greeted(use_webpush=False)
        await house.driver.push(UAID, update(7))
        await house.store.inner.save_update(UAID, update(7))
        house.driver.push_abandoned(UAID, update(7))
        peer.say({"messageType": "ack", "updates": [{"channelID": dashed(CHANNEL), "version": 7}]})
        await house.settle()

        assert await house.store.inner.fetch_updates(UAID, limit=10) == []

    async def test_one_who_is_not_here_is_no_news(self, make: Make) -> None:
        house = make()
        house.driver.push_abandoned(UAID, notification(1))

        assert house.store.calls == []
