"""A broker on a clock that stands still, and clients that are plain objects: no socket."""

import asyncio
import logging
from collections.abc import Iterable
from itertools import count
from typing import Any

import structlog

from waystation.base.clock import Clock, ManualClock
from waystation.base.tasks import Tasks
from waystation.net.http2.port import Gone, GrpcStatus
from waystation.presence.broker import Broker
from waystation.presence.grants import Authority
from waystation.presence.model import MessageType, Status
from waystation.presence.reports import Reports
from waystation.presence.settings import Presence
from waystation.presence.store import Owner
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.storage.memory.presence import MemoryPresenceStore
from waystation.telemetry.events import RecordedEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

PARTY = 0x7A97
QUIET: Any = structlog.wrap_logger(
    None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
)
START_MS = 1_700_000_000_000


class PlainStream:
    """The transport's end: keeps what was sent."""

    peer = "test"

    def __init__(self, harness: "BrokerHarness", authorization: str | None = None) -> None:
        self.holder: Any = None
        self.authorization = authorization
        self.raw: list[bytes] = []
        self.at: list[float] = []
        self.status: GrpcStatus | None = None
        self.detail = ""
        self.discarded = False
        self.writable = True
        self.reading = True
        self._stage = harness

    def send(self, message: bytes) -> None:
        assert self.status is None, "nothing is sent after the end"
        self.raw.append(message)
        self.at.append(self._stage.clock.mono())

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        assert self.status is None, "a stream ends once"
        self.status, self.detail, self.discarded = status, detail, discard_unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class HarnessClient:
    """A scripted client; `auto` acknowledges all messages that need it."""

    def __init__(
        self, harness: "BrokerHarness", client: int, session: int, party: int = PARTY
    ) -> None:
        self.harness = harness
        self.client, self.session, self.party = client, session, party
        self.ids = count(1)
        self.auto = False
        self.token = b""
        self.stream = PlainStream(harness)
        self.seen: list[ClientMessage] = []
        self._read = 0

    # what it does

    def open(self, authorization: str | None = None) -> "HarnessClient":
        self.stream = PlainStream(self.harness, authorization)
        self._read = 0
        self.harness.broker.opened(self.stream)
        self.harness.participants.append(self)
        return self

    def say(self, kind: int | None, **fields: Any) -> int:
        message = ClientMessage(**fields)
        if kind is not None:
            message.message_type = kind  # pyright: ignore[reportAttributeAccessIssue]
        if "message_id" not in fields and kind != MessageType.ACK:
            message.message_id = next(self.ids)
        self.say_bytes(message.SerializeToString())
        return message.message_id

    def say_bytes(self, data: bytes) -> None:
        self.harness.broker.message(self.stream, data)

    def join(self, *, extended: bool = True, **fields: Any) -> "HarnessClient":
        """Opens a stream and joins; the welcome is read with `take`."""
        self.open(fields.pop("authorization", None))
        if extended:
            fields.setdefault("session_ttl_ms", 120_000)
        self.say(
            MessageType.JOIN,
            session_id=self.session,
            client_id=self.client,
            party_id=self.party,
            **fields,
        )
        return self

    def resume(self, **fields: Any) -> "HarnessClient":
        fields.setdefault("resume_token", self.token)
        return self.join(**fields)

    def ping(self) -> int:
        return self.say(MessageType.PING)

    def leave(self) -> int:
        return self.say(MessageType.LEAVE)

    def ack(self, *ids: int, **fields: Any) -> None:
        self.say(MessageType.ACK, ack_message_ids=ids, **fields)

    def ack_all(self, messages: Iterable[ClientMessage]) -> None:
        ids = [one.message_id for one in messages if needs_ack(one)]
        if ids:
            self.ack(*ids)

    def cut(self, why: Gone = Gone.TRANSPORT) -> None:
        self.harness.broker.closed(self.stream, why)

    # what it gets

    def take(self) -> list[ClientMessage]:
        """Everything since the last call, decoded; acknowledged if `auto`."""
        raw, self._read = self.stream.raw[self._read :], len(self.stream.raw)
        messages = [ClientMessage.FromString(data) for data in raw]
        self.seen.extend(messages)
        for one in messages:
            if one.resume_token:
                self.token = one.resume_token
        if self.auto and self.stream.status is None:
            self.ack_all(messages)
        return messages

    def welcomed(self) -> tuple[ClientMessage, ClientMessage]:
        """The ACK and the LIST of a JOIN, acknowledged."""
        ack, listed, *rest = self.take()
        assert not rest
        assert (ack.message_type, listed.message_type) == (MessageType.ACK, MessageType.LIST)
        if not self.auto:
            self.ack(listed.message_id)
        return ack, listed

    @property
    def status(self) -> GrpcStatus | None:
        return self.stream.status


class BrokerHarness:
    def __init__(self, *, authority: Authority | None = None, **settings: Any) -> None:
        self.clock = ManualClock(now_ms=START_MS)
        self.settings = Presence(**settings)
        self.events = RecordedEvents()
        self.metrics = Metrics()
        self.participants: list[HarnessClient] = []
        self.store = self.make_store(self.clock)
        self.failures: list[str] = []
        self.loop = self.make_loop()
        self.broker = self.new_broker(authority=authority)

    def make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def make_store(self, clock: Clock) -> MemoryPresenceStore:
        settings = self.settings
        return MemoryPresenceStore(
            clock, log_max=settings.party_log, linger_s=settings.party_linger_s
        )

    def new_broker(self, **more: Any) -> Broker:
        self.tasks = Tasks(lambda name, error: self.failures.append(f"{name}: {error!r}"))
        broker = Broker(
            self.settings,
            self.store,
            owner=Owner("node.1", 1),
            clock=self.clock,
            reports=Reports(
                sink=self.events,
                hashes=EventHashes(bytes(32)),
                metrics=self.metrics,
                clock=self.clock,
                log=QUIET,
                ack_sample=self.settings.ack_sample,
            ),
            tasks=self.tasks,
            loop=self.loop,
            **more,
        )
        broker.run("start", broker.start())
        return broker

    def close(self) -> None:
        self.loop.close()

    def participant(
        self, client: int, session: int | None = None, party: int = PARTY
    ) -> HarnessClient:
        return HarnessClient(
            self, client, session if session is not None else client * 100 + 1, party
        )

    def member(self, client: int, *, auto: bool = True, **fields: Any) -> HarnessClient:
        """Somebody who has joined and is quiet."""
        party = fields.pop("party", PARTY)
        session = fields.pop("session", None)
        participant = self.participant(client, session, party)
        participant.auto = auto
        participant.join(**fields)
        participant.welcomed()
        return participant

    def pass_time(self, seconds: float, *, step: float | None = None) -> None:
        """Time passes tick by tick, and whoever acknowledges by itself does."""
        step = step or self.settings.tick_s
        end = self.clock.mono() + seconds
        while self.clock.mono() < end - 1e-9:
            self.clock.advance(min(step, end - self.clock.mono()))
            while self.broker.periodic_work.tick():
                pass
            for participant in self.participants:
                if participant.auto and participant.status is None:
                    participant.take()


def needs_ack(message: ClientMessage) -> bool:
    return message.message_type not in (MessageType.ACK, MessageType.ERROR)


def kinds(messages: Iterable[ClientMessage]) -> list[str]:
    return [MessageType(one.message_type).name for one in messages]


def codes(messages: Iterable[ClientMessage]) -> list[Status]:
    return [Status(one.status_code) for one in messages]


def listed(message: ClientMessage) -> list[tuple[int, list[int]]]:
    return [(entry.client_id, list(entry.session_id)) for entry in message.participant_client_ids]
