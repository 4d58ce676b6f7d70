"""Messages of a broker to one client, for tests of the client's core."""

import random
from collections.abc import Sequence

from waystation.client.party.effects import Close, Effect, FetchToken, FindNodes, Finish, Open, Send
from waystation.client.party.effects import Notify as TellEffect
from waystation.client.party.model import Event, SessionOptions, StateChanged
from waystation.client.party.session import Session
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

TTL_MS = 120_000
SERVER_BIT = 1 << 63


class Table:
    """A session and the other end of all its streams."""

    def __init__(self, *endpoints: str, **options: object) -> None:
        self.now = 100.0
        self.session = Session(
            SessionOptions(party_id=7, client_id=1, session_id=11, **options),  # type: ignore[arg-type]
            endpoints or ("a:1",),
            chance=random.Random(1),
            now=self.now,
        )
        self.opened: list[tuple[int, str]] = []
        self.closed: list[int] = []
        self.said: dict[int, list[ClientMessage]] = {}
        self.told: list[Event] = []
        self.states: list[str] = []
        self.finished: Finish | None = None
        self.tokens_wanted = 0
        self.searches = 0
        self._ids = SERVER_BIT

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Open(stream, endpoint):
                    self.opened.append((stream, endpoint))
                    self.said[stream] = []
                case Send(stream, message):
                    self.said[stream].append(message)
                case Close(stream):
                    self.closed.append(stream)
                case TellEffect(StateChanged(state)):
                    self.states.append(state.value)
                case TellEffect(event):
                    self.told.append(event)
                case FetchToken():
                    self.tokens_wanted += 1
                case FindNodes():
                    self.searches += 1
                case Finish():
                    self.finished = effect

    def pass_time(self, seconds: float) -> None:
        """Step by step, as a driver would."""
        end = self.now + seconds
        while (at := self.session.wake_at()) is not None and at <= end:
            self.now = max(self.now, at)
            self.take(self.session.wake(self.now))
        self.now = end

    def until_opened(self) -> int:
        """The stream of the next stream."""
        count = len(self.opened)
        for _ in range(200):
            if len(self.opened) > count:
                break
            self.pass_time(0.1)
        return self.opened[-1][0]

    @property
    def stream(self) -> int:
        return self.opened[-1][0]

    def last(self, stream: int | None = None) -> ClientMessage:
        return self.said[self.stream if stream is None else stream][-1]

    def hear(self, stream: int | None = None, **fields: object) -> ClientMessage:
        message = ClientMessage(**fields)  # type: ignore[arg-type]
        if message.message_type not in {pb.ACK, pb.ERROR} and not message.message_id:
            self._ids += 1
            message.message_id = self._ids
        number = self.stream if stream is None else stream
        self.take(self.session.received(number, message, self.now))
        return message

    def ack(self, stream: int | None = None, **fields: object) -> None:
        """Of the last thing that was said there."""
        self.hear(
            stream, message_type=pb.ACK, ack_message_ids=[self.last(stream).message_id], **fields
        )

    def refuse(self, code: int, stream: int | None = None, **fields: object) -> None:
        self.hear(
            stream,
            message_type=pb.ERROR,
            status_code=code,
            ack_message_ids=[self.last(stream).message_id],
            **fields,
        )

    def attach(self, status: int = pb.OK, token: bytes = b"t1", node_id: str = "n1") -> None:
        self.ack(status_code=status, resume_token=token, session_ttl_ms=TTL_MS, node_id=node_id)

    def list(
        self, seq: int, *present: tuple[int, int], status: int = pb.OK, epoch: int = 5
    ) -> None:
        entries: dict[int, list[int]] = {}
        for client_id, session_id in present:
            entries.setdefault(client_id, []).append(session_id)
        self.hear(
            message_type=pb.LIST,
            party_seq=seq,
            party_epoch=5,
            status_code=status,
            participant_client_ids=[
                pb.ClientSessionIdEntry(client_id=client, session_id=ids)
                for client, ids in sorted(entries.items())
            ],
        )

    def announce(
        self,
        kind: int,
        client_id: int,
        session_id: int,
        seq: int,
        stream: int | None = None,
        **fields: object,
    ) -> ClientMessage:
        return self.hear(
            stream,
            message_type=kind,
            client_id=client_id,
            session_id=session_id,
            party_seq=seq,
            party_epoch=5,
            timestamp=1000 + seq,
            **{"message_id": SERVER_BIT | 1 << 40 | seq, **fields},
        )

    def end(self, status: int = 14, stream: int | None = None) -> None:
        number = self.stream if stream is None else stream
        self.take(self.session.ended(number, status, self.now))

    def sit(self, *present: tuple[int, int]) -> None:
        """Opened, joined, listed."""
        self.pass_time(0.0)
        self.attach()
        self.list(1, *present)
        self.told.clear()
