"""The oracle of the soak notices what a broken broker would do (P-137).

A party is played by a broker of a few lines that makes no mistake; then each mistake is made in
what its clients heard. Mistakes that no client can hear have scenarios of their own: a leaked timer
P-064, a forgotten ack timer P-056, an ignored fence and a wrong resume token P-073.
"""

import copy
from collections.abc import Callable

import pytest

from tests.e2e.presence.oracle import Oracle, SessionRecord, StreamMessage
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

TTL_MS = 4_000
PARTY = 7


class Stage:
    """A broker without mistakes, and its party."""

    def __init__(self) -> None:
        self.records: dict[str, SessionRecord] = {}
        self.present: dict[str, SessionRecord] = {}
        self.log: list[ClientMessage] = []
        self.now_ms = 1_000_000
        self._ids = 0

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def say(self, name: str, kind: int, stream: int = 1) -> ClientMessage:
        self._ids += 1
        message = ClientMessage(message_type=kind, message_id=self._ids)  # type: ignore[arg-type]
        self.records[name].said.append(StreamMessage(self.now_ms, stream, message))
        return message

    def hear(self, name: str, message: ClientMessage, stream: int = 1) -> None:
        self.records[name].heard.append(StreamMessage(self.now_ms, stream, message))

    def answer(self, name: str, asked: ClientMessage, stream: int = 1) -> None:
        ack = ClientMessage(message_type=pb.ACK, ack_message_ids=[asked.message_id])
        self.hear(name, ack, stream)

    def join(self, name: str) -> None:
        number = len(self.records) + 1
        self.records[name] = record = SessionRecord(
            party=PARTY, client=number, session=number * 10, watches=name == "watcher"
        )
        self.answer(name, self.say(name, pb.JOIN))
        self._announce(pb.JOIN, record, pb.OK)
        self.present[name] = record
        self.list(name)

    def list(self, name: str, stream: int = 1) -> None:
        others = [record for one, record in self.present.items() if one != name]
        self._ids += 1
        self.hear(
            name,
            ClientMessage(
                message_type=pb.LIST,
                message_id=1 << 63 | 1 << 62 | self._ids,
                party_seq=len(self.log),
                participant_client_ids=[
                    pb.ClientSessionIdEntry(client_id=one.client, session_id=[one.session])
                    for one in others
                ],
            ),
            stream,
        )

    def ping(self, name: str) -> None:
        self.answer(name, self.say(name, pb.PING))

    def leave(self, name: str) -> None:
        self.answer(name, self.say(name, pb.LEAVE))
        self.end(name, pb.OK)

    def end(self, name: str, code: int) -> None:
        record = self.present.pop(name)
        record.gone = True
        self._announce(pb.LEAVE, record, code)

    def _announce(self, kind: int, about: SessionRecord, code: int) -> None:
        self.now_ms += 1
        message = ClientMessage(
            message_type=kind,  # type: ignore[arg-type]
            client_id=about.client,
            session_id=about.session,
            party_id=PARTY,
            party_seq=len(self.log) + 1,
            message_id=1 << 63 | self.now_ms,
            timestamp=self.now_ms,
            status_code=code,  # type: ignore[arg-type]
        )
        self.log.append(message)
        for name in self.present:
            if self.present[name] is not about:
                self.hear(name, message)


def played() -> Stage:
    stage = Stage()
    for name in ("watcher", "ada", "grace", "alan"):
        stage.join(name)
    stage.ping("ada")
    stage.leave("alan")
    stage.join("edsger")
    stage.ping("edsger")
    stage.records["edsger"].silent_since_ms = stage.now_ms
    stage.pass_ms(TTL_MS)
    stage.end("edsger", pb.CLIENT_TIMEOUT)
    stage.join("barbara")
    # Ada's stream breaks and is resumed: everything again from the second message on.
    stage.records["ada"].cut.add(1)
    stage.answer("ada", stage.say("ada", pb.JOIN, 2), 2)
    stage.list("ada", 2)
    return stage


def violations(stage: Stage) -> list[str]:
    oracle = Oracle(ttl_ms=TTL_MS, late_ms=1_000)
    return oracle.check(list(stage.records.values()))


def test_a_broker_without_mistakes_is_not_blamed() -> None:
    assert violations(played()) == []


def _party_words(stage: Stage, name: str) -> list[StreamMessage]:
    kinds = {pb.JOIN, pb.LEAVE}
    return [word for word in stage.records[name].heard if word.message.message_type in kinds]


def skip_one_recipient(stage: Stage) -> None:
    stage.records["grace"].heard.remove(_party_words(stage, "grace")[1])


def swap_two_sends(stage: Stage) -> None:
    heard = stage.records["grace"].heard
    first, second = (heard.index(word) for word in _party_words(stage, "grace")[:2])
    heard[first], heard[second] = heard[second], heard[first]


def reuse_an_id(stage: Stage) -> None:
    first, second = _party_words(stage, "watcher")[1:3]
    second.message.message_id = first.message.message_id


def expire_early(stage: Stage) -> None:
    for record in stage.records.values():
        for word in record.heard:
            if word.message.status_code == pb.CLIENT_TIMEOUT:
                word.message.timestamp -= 500


def time_out_who_acknowledges(stage: Stage) -> None:
    """Edsger's receipt was read: its PING, said later, is answered."""
    edsger, told = stage.records["edsger"], copy.deepcopy(stage.log[-1])
    told.timestamp = stage.now_ms
    stage.hear("edsger", told)
    receipt = ClientMessage(message_type=pb.ACK, ack_message_ids=[told.message_id])
    edsger.said.insert(-1, StreamMessage(stage.now_ms, 1, receipt))
    edsger.said[-1].at_ms = stage.now_ms
    for record in stage.records.values():
        for word in record.heard:
            if word.message.status_code == pb.CLIENT_TIMEOUT:
                word.message.status_code = pb.ACK_TIMEOUT
                word.message.timestamp = stage.now_ms + 100


def time_out_who_has_just_come_back(stage: Stage) -> None:
    """A resume begins anew: what was not acknowledged before may be acknowledged now."""
    stage.answer("edsger", stage.say("edsger", pb.JOIN, 2), 2)
    for record in stage.records.values():
        for word in record.heard:
            if word.message.status_code == pb.CLIENT_TIMEOUT:
                word.message.status_code = pb.ACK_TIMEOUT
                word.message.timestamp = stage.now_ms + 100


def expire_late(stage: Stage) -> None:
    stage.records["edsger"].silent_since_ms = 1_000_000 - 10_000


def resume_without_redelivery(stage: Stage) -> None:
    """What came while the stream was broken, and the LIST that would have told it, are missing."""
    record = stage.records["ada"]
    del record.heard[-1]
    record.heard.remove(_party_words(stage, "ada")[-1])


def leave_twice(stage: Stage) -> None:
    leave = next(one for one in stage.log if one.message_type == pb.LEAVE)
    again = copy.deepcopy(leave)
    again.party_seq = len(stage.log) + 1
    again.message_id = stage.log[-1].message_id + 1
    again.timestamp = stage.log[-1].timestamp
    for name in stage.present:
        stage.hear(name, again, 2 if name == "ada" else 1)


def lose_the_reason(stage: Stage) -> None:
    for record in stage.records.values():
        for word in record.heard:
            if word.message.status_code == pb.CLIENT_TIMEOUT:
                word.message.status_code = pb.OK


def deliver_across_parties(stage: Stage) -> None:
    foreign = copy.deepcopy(stage.log[2])
    foreign.party_id = PARTY + 1
    stage.hear("grace", foreign)


def announce_twice(stage: Stage) -> None:
    """A resume that looks like a new session."""
    join = copy.deepcopy(stage.log[1])
    join.party_seq = len(stage.log) + 1
    join.message_id = stage.log[-1].message_id + 1
    join.timestamp = stage.log[-1].timestamp
    for name in stage.present:
        if name != "ada":
            stage.hear(name, join)


def forget_an_answer(stage: Stage) -> None:
    record = stage.records["edsger"]
    record.heard.remove(
        next(word for word in reversed(record.heard) if word.message.ack_message_ids)
    )


def list_a_ghost(stage: Stage) -> None:
    heard = stage.records["barbara"].heard
    listed = next(word.message for word in heard if word.message.message_type == pb.LIST)
    listed.participant_client_ids.append(pb.ClientSessionIdEntry(client_id=99, session_id=[990]))


def turn_back_the_clock(stage: Stage) -> None:
    words = _party_words(stage, "watcher")
    words[2].message.timestamp = words[1].message.timestamp - 50


def forget_to_announce_the_end(stage: Stage) -> None:
    stage.records["barbara"].gone = True


def end_somebody_who_is_there(stage: Stage) -> None:
    stage.records["alan"].gone = False


MISTAKES: dict[Callable[[Stage], None], str] = {
    skip_one_recipient: "a",
    swap_two_sends: "a",
    reuse_an_id: "h",
    expire_early: "f",
    expire_late: "f",
    time_out_who_acknowledges: "d",
    time_out_who_has_just_come_back: "d",
    resume_without_redelivery: "b",
    leave_twice: "e",
    lose_the_reason: "d",
    deliver_across_parties: "a",
    announce_twice: "c",
    forget_an_answer: "g",
    list_a_ghost: "b",
    turn_back_the_clock: "i",
    forget_to_announce_the_end: "c",
    end_somebody_who_is_there: "e",
}


def test_whoever_repeats_a_receipt_and_owes_others_is_rightly_sent_away() -> None:
    """6.3: a repeated id has no effect, so it is no progress either."""
    stage = played()
    edsger = stage.records["edsger"]
    late = stage.now_ms - 100
    for at_ms in (edsger.said[0].at_ms + 1, late):
        receipt = ClientMessage(message_type=pb.ACK, ack_message_ids=[stage.log[2].message_id])
        edsger.said.append(StreamMessage(at_ms, 1, receipt))
    edsger.heard.append(StreamMessage(edsger.said[0].at_ms + 1, 1, copy.deepcopy(stage.log[2])))
    stage.answer("edsger", stage.say("edsger", pb.PING))
    for record in stage.records.values():
        for word in record.heard:
            if word.message.status_code == pb.CLIENT_TIMEOUT:
                word.message.status_code = pb.ACK_TIMEOUT

    assert "d" not in {violation[0] for violation in violations(stage)}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_of_the_broker_is_seen(mistake: Callable[[Stage], None]) -> None:
    """P-137"""
    stage = copy.deepcopy(played())
    mistake(stage)

    assert MISTAKES[mistake] in {violation[0] for violation in violations(stage)}
