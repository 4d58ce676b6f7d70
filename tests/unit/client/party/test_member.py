"""A participant over real gRPC, against a small broker."""

import asyncio

import pytest

from tests.unit.client.party.small_broker import SmallBroker
from tests.unit.waiting import until
from waystation.client.party.member import PartyMember
from waystation.client.party.model import (
    Event,
    Joined,
    Left,
    Participant,
    PartyRefusedError,
    PartyUnreachableError,
    Resynced,
    Snapshot,
    State,
)
from waystation.presence.wire import party_presence_pb2 as pb


async def test_two_members_see_each_other_come_and_go() -> None:
    async with SmallBroker() as broker:
        told: list[Event] = []
        async with PartyMember(
            broker.address, party_id=7, client_id=1, session_id=11, on_event=told.append
        ) as ada:
            await ada.joined()
            async with PartyMember(broker.address, party_id=7, client_id=2, session_id=22) as grace:
                await grace.joined()
                await until(lambda: grace.participants == (Participant(1, 11),))
                await until(lambda: ada.participants == (Participant(2, 22),))
                assert ada.state is State.SINGLE
            await until(lambda: ada.participants == ())

        kinds = [type(event) for event in told if isinstance(event, Snapshot | Joined | Left)]
        assert kinds == [Snapshot, Joined, Left]
        assert ada.state is State.CLOSED
        assert broker.leaves == 2


async def test_events_are_iterated_until_the_session_ends() -> None:
    async with SmallBroker() as broker:
        member = PartyMember(broker.address, party_id=7, client_id=1)
        member.start()
        await member.joined()
        await member.leave()
        events = [type(event).__name__ async for event in member]
        await member.close()

        assert events[0] == "StateChanged"
        assert "Snapshot" in events


async def test_acks_reach_the_broker_in_batches() -> None:
    async with SmallBroker() as broker, PartyMember(broker.address, party_id=7, client_id=1) as one:
        await one.joined()
        for number in range(5):
            broker._announce(pb.JOIN, 50 + number, 500 + number)
        await until(lambda: broker.acks)

        assert len(broker.acks[0]) == 6


async def test_a_cut_connection_is_resumed_unseen() -> None:
    async with (
        SmallBroker() as broker,
        PartyMember(broker.address, party_id=7, client_id=1, backoff_min_s=0.01) as one,
        PartyMember(broker.address, party_id=7, client_id=2) as other,
    ):
        await one.joined()
        await other.joined()
        await until(lambda: other.participants)
        for _ in range(3):
            before = one.resumes
            one.drop_connections()
            await until(lambda before=before: one.resumes > before)
        assert one.resumes >= 3
        assert broker.joins[-1].resume_token == b"token"
        assert len(other.participants) == 1


async def test_a_refusal_is_raised_with_its_code() -> None:
    async with SmallBroker() as broker:
        broker.refuse_with = pb.PARTY_FULL
        member = PartyMember(broker.address, party_id=7, client_id=1)
        member.start()
        with pytest.raises(PartyRefusedError, match="PARTY_FULL") as caught:
            await member.joined()
        with pytest.raises(PartyRefusedError):
            _ = [event async for event in member]
        await member.close()

        assert caught.value.code == pb.PARTY_FULL


async def test_an_unreachable_broker_is_raised_in_time() -> None:
    member = PartyMember("127.0.0.1:1", party_id=7, client_id=1)
    member.start()
    with pytest.raises(PartyUnreachableError, match=r"127\.0\.0\.1:1"):
        await member.joined(0.3)
    await member.close()


async def test_the_token_travels_with_the_stream_and_is_renewed_inside_it() -> None:
    async with SmallBroker() as broker:
        broker.token = "first"
        tokens = iter(["first", "second"])

        async def token() -> str:
            return next(tokens)

        async with PartyMember(
            broker.address, party_id=7, client_id=1, session_id=11, token=token
        ) as one:
            await one.joined()
            broker.say(11, message_type=pb.AUTH, status_code=pb.TOKEN_EXPIRING)
            await until(lambda: broker.auths)

        assert broker.auths == ["second"]


async def test_without_a_token_there_is_an_end() -> None:
    async with SmallBroker() as broker:
        broker.token = "secret"
        member = PartyMember(broker.address, party_id=7, client_id=1, backoff_min_s=0.01)
        member.start()
        with pytest.raises(PartyRefusedError, match="UNAUTHENTICATED"):
            await member.joined()
        await member.close()


async def test_a_slow_reader_gets_the_present_state() -> None:
    async with (
        SmallBroker() as broker,
        PartyMember(broker.address, party_id=7, client_id=1, inbox_max=10) as one,
    ):
        await one.joined()
        for number in range(50):
            broker._announce(pb.JOIN, 50 + number, 500 + number)
        await until(lambda: len(one.participants) == 50)

        assert len(one._inbox) <= 10
        resyncs = [event for event in one._inbox if isinstance(event, Resynced)]
        assert resyncs


async def test_closing_without_a_leave_ends_every_task() -> None:
    async with SmallBroker() as broker:
        member = PartyMember(broker.address, party_id=7, client_id=1)
        member.start()
        await member.joined()
        before = asyncio.all_tasks()
        await member.close()

        assert broker.leaves == 0
        assert not [task for task in asyncio.all_tasks() & before if "_carry" in repr(task)]


async def test_an_unavailable_token_is_fetched_again() -> None:
    """A file that is written anew may be missing for a moment."""
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise OSError("the file is not there")
        return "a token"

    async with (
        SmallBroker() as broker,
        PartyMember(
            broker.address, party_id=7, client_id=1, token=token, backoff_min_s=0.01
        ) as one,
    ):
        await one.joined()
        assert asked == 3
        assert one.last_problem == "the file is not there"
        asked = 0
        await one.renew_token()

        assert asked == 1
        assert one.state is State.SINGLE
