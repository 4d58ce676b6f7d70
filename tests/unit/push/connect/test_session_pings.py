import msgspec
import pytest

from tests.unit.push.connect.talk import NODE, Talk, of, record, returned, said, settled_in
from waystation.push.connect import effects as do
from waystation.push.connect.broadcasts import NOT_FOUND, Broadcasts
from waystation.push.model import UserAgent

PONG = [do.Send(b"{}")]


def known(**versions: str) -> Broadcasts:
    broadcasts = Broadcasts()
    broadcasts.update({f"settings/{name}": version for name, version in versions.items()})
    return broadcasts


class TestClientPings:
    @pytest.mark.parametrize("text", [b"{}", b" { } ", b'{"messageType":"ping"}'])
    def test_a_ping_is_answered_with_two_bytes(self, text: bytes) -> None:
        """C-028, C-029"""
        assert settled_in().say(text) == PONG

    def test_a_second_ping_at_once_ends_the_connection(self) -> None:
        """C-028"""
        talk = settled_in()
        talk.say({})

        assert talk.say({}) == [do.Close(1011, "SM")]

    def test_pings_far_enough_apart_are_all_answered(self) -> None:
        talk = settled_in(min_ping_interval_s=30.0)
        for _ in range(3):
            assert talk.say({}) == PONG
            talk.wait(30.0)

    def test_the_close_code_for_too_many_can_be_that_of_the_python_generation(self) -> None:
        talk = settled_in(excessive_ping_code=4774)
        talk.say({})

        assert talk.say({}) == [do.Close(4774, "SM")]

    def test_the_limit_can_be_switched_off(self) -> None:
        talk = settled_in(min_ping_interval_s=0.0)
        talk.say({})

        assert talk.say({}) == PONG


class TestServerPings:
    def test_a_ping_goes_out_every_interval(self) -> None:
        """C-030"""
        talk = settled_in(auto_ping_interval_s=300.0, auto_ping_timeout_s=4.0)
        for _ in range(3):
            talk.wait(299.9)
            assert talk.wake() == []
            talk.wait(0.2)
            assert talk.wake() == [do.SendPing(), do.Confirm()]
            talk.session.ponged(mono=talk.mono)

    def test_without_a_pong_in_time_the_connection_ends(self) -> None:
        """C-030"""
        talk = settled_in(auto_ping_timeout_s=4.0)
        talk.wake_in_time()
        talk.wait(3.9)
        assert talk.wake() == []
        talk.wait(0.2)

        assert talk.wake() == [do.Close(1011, "PongTimeout")]

    def test_a_pong_that_nobody_asked_for_changes_nothing(self) -> None:
        talk = settled_in()
        due = talk.session.wake_at
        talk.wait(100)
        talk.session.ponged(mono=talk.mono)

        assert talk.session.wake_at == due

    def test_a_pong_before_hello_does_not_buy_time(self) -> None:
        talk = Talk()
        due = talk.session.wake_at
        talk.wait(4)
        talk.session.ponged(mono=talk.mono)

        assert talk.session.wake_at == due

    def test_the_first_ping_counts_from_the_greeting(self) -> None:
        """Even if that is sooner than the handshake's own time."""
        talk = settled_in(auto_ping_interval_s=1.0, open_handshake_timeout_s=5.0)

        assert talk.session.wake_at == talk.mono + 1.0


class TestBroadcasts:
    def test_hello_tells_what_is_outdated(self) -> None:
        """C-131"""
        _, effects = returned(
            broadcasts=known(a="1", b="2"),
            hello={"broadcasts": {"settings/a": "1", "settings/b": "0"}},
        )

        assert said(effects)[0]["broadcasts"] == {"settings/b": "2"}

    def test_hello_with_current_versions_tells_nothing(self) -> None:
        """C-131"""
        _, effects = returned(broadcasts=known(a="1"), hello={"broadcasts": {"settings/a": "1"}})

        assert said(effects)[0]["broadcasts"] == {}

    def test_hello_names_ids_that_are_unknown_and_known_ones_are_unaffected(self) -> None:
        """C-132"""
        _, effects = returned(
            broadcasts=known(a="1"), hello={"broadcasts": {"settings/a": "0", "x/y": "1"}}
        )

        assert said(effects)[0]["broadcasts"] == {
            "settings/a": "1",
            "errors": {"x/y": NOT_FOUND},
        }

    def test_a_change_is_told_at_the_next_tick_in_place_of_the_ping(self) -> None:
        """C-133"""
        broadcasts = known(a="1")
        talk = settled_in(broadcasts=broadcasts, hello={"broadcasts": {"settings/a": "1"}})
        broadcasts.update({"settings/a": "2"})
        effects = talk.wake_in_time()

        assert said(effects) == [{"messageType": "broadcast", "broadcasts": {"settings/a": "2"}}]
        assert not of(do.SendPing, effects)
        assert talk.session.wake_at == talk.mono + 300.0
        assert talk.wake_in_time() == [do.SendPing(), do.Confirm()]

    def test_nothing_changed_and_nothing_is_sent_over_two_ticks(self) -> None:
        """C-136"""
        talk = settled_in(broadcasts=known(a="1"), hello={"broadcasts": {"settings/a": "1"}})
        for _ in range(2):
            assert talk.wake_in_time() == [do.SendPing(), do.Confirm()]
            talk.session.ponged(mono=talk.mono)

    def test_who_follows_a_never_hears_of_b(self) -> None:
        """C-138"""
        broadcasts = known(a="1", b="1")
        talk = settled_in(broadcasts=broadcasts, hello={"broadcasts": {"settings/a": "1"}})
        broadcasts.update({"settings/b": "2"})

        assert talk.wake_in_time() == [do.SendPing(), do.Confirm()]

    def test_subscribing_with_an_outdated_version_is_answered_at_once(self) -> None:
        """C-134"""
        talk = settled_in(broadcasts=known(a="1"))
        effects = talk.say(
            {"messageType": "broadcast_subscribe", "broadcasts": {"settings/a": "0"}}
        )

        assert said(effects) == [{"messageType": "broadcast", "broadcasts": {"settings/a": "1"}}]

    def test_subscribing_with_current_versions_is_met_with_silence(self) -> None:
        """C-134"""
        broadcasts = known(a="1")
        talk = settled_in(broadcasts=broadcasts)
        subscribe = {"messageType": "broadcast_subscribe", "broadcasts": {"settings/a": "1"}}
        assert talk.say(subscribe) == []
        broadcasts.update({"settings/a": "2"})

        assert said(talk.wake_in_time())[0]["broadcasts"] == {"settings/a": "2"}

    def test_subscribing_to_an_unknown_id_is_answered_with_an_error(self) -> None:
        """C-135"""
        talk = settled_in(broadcasts=known(a="1"))
        effects = talk.say({"messageType": "broadcast_subscribe", "broadcasts": {"x/y": "1"}})

        assert said(effects) == [
            {"messageType": "broadcast", "broadcasts": {"errors": {"x/y": NOT_FOUND}}}
        ]

    def test_a_subscription_without_broadcasts_is_a_bad_message(self) -> None:
        assert settled_in().say({"messageType": "broadcast_subscribe"}) == [do.Close(1011, "Json")]

    def test_a_simplepush_hello_subscribes_to_nothing(self) -> None:
        """Its reply has no place for the answer."""
        broadcasts = known(a="1")
        talk = Talk(broadcasts=broadcasts)
        talk.hello(use_webpush=False, broadcasts={"settings/a": "0"})
        broadcasts.update({"settings/a": "2"})

        assert talk.wake_in_time() == [do.SendPing()]


class TestRoute:
    """A route that was cleared because we were slow once must not stay cleared until the user
    agent connects again: Firefox keeps a connection for days."""

    def test_a_route_that_is_ours_needs_nothing(self) -> None:
        talk = settled_in()
        ours = record(node_id=NODE, connected_at_ms=talk.session.connected_at_ms)

        assert talk.session.confirmed(ours) == []

    def test_a_cleared_route_is_set_again_and_storage_is_looked_at(self) -> None:
        talk = settled_in()
        cleared = record(node_id=None, connected_at_ms=talk.session.connected_at_ms)

        (again,) = talk.session.confirmed(cleared)
        assert isinstance(again, do.Reclaim)
        assert again.user_agent.node_id == NODE
        assert again.user_agent.connected_at_ms == talk.session.connected_at_ms
        assert len(of(do.Fetch, talk.session.reclaimed(True))) == 1

    def test_whoever_came_meanwhile_keeps_the_route(self) -> None:
        talk = settled_in()

        assert talk.session.reclaimed(False) == []

    @pytest.mark.parametrize("later", [record(node_id=None), record(node_id="http://b"), None])
    def test_a_user_agent_that_is_elsewhere_or_gone_is_let_go(
        self, later: UserAgent | None
    ) -> None:
        talk = settled_in()
        if later is not None:
            later = msgspec.structs.replace(later, connected_at_ms=talk.session.connected_at_ms + 1)

        assert talk.session.confirmed(later) == [do.Close(1011, "Ghosted")]

    def test_a_newcomer_without_subscriptions_has_no_route_to_ask_for(self) -> None:
        talk = Talk()
        talk.say({"messageType": "hello", "use_webpush": True})

        assert talk.wake_in_time() == [do.SendPing()]

    def test_a_store_that_does_not_answer_is_asked_again_at_the_next_tick(self) -> None:
        talk = settled_in()

        assert talk.session.failed(do.Confirm()) == []
        assert talk.session.failed(do.Reclaim(record())) == []
