"""A scripted edge of one storage server."""

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

from tests.e2e.queue.peer import Signer
from waystation.base.clock import SystemClock
from waystation.net.loop import NetLoop
from waystation.queue.cluster.link_connection import LinkConnection, Links
from waystation.queue.cluster.membership import Membership, link_context
from waystation.queue.cluster.slot_map import Node, NodeId
from waystation.queue.model import (
    BoxKey,
    CorrId,
    DhKey,
    EntityId,
    QueueMode,
    SessionId,
    Slot,
    SubMode,
)
from waystation.queue.wire.boxes import agree, dh_public, new_dh_pair
from waystation.queue.wire.commands import Command, New, NewLink, encode_command
from waystation.queue.wire.link import (
    REQUESTS_FROM,
    Body,
    ClientTransmission,
    Frame,
    ServerTransmission,
)
from waystation.queue.wire.link_messages import Cok, LinkMessage, Newc, Newq, Newr, Sopen
from waystation.queue.wire.responses import Ids, Response, decode_response
from waystation.queue.wire.transmission import (
    Dialect,
    authorized_bytes,
    decode_answer,
    encode_transmission,
)

WAIT_S = 30.0
W = TypeVar("W")


class EdgeSession:
    """One client's session, as its edge hands it over."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.session_id = SessionId(secrets.token_bytes(32))
        public, self.private = new_dh_pair()
        self.public: DhKey = public
        self.dialect = Dialect(18, self.session_id)

    def transmission(
        self,
        command: Command,
        entity_id: bytes = b"",
        signer: Signer | None = None,
        *,
        corr_id: bytes | None = None,
    ) -> tuple[bytes, CorrId]:
        corr = CorrId(secrets.token_bytes(24) if corr_id is None else corr_id)
        said = encode_command(command, 18)
        proof = b""
        if signer is not None:
            authorized = authorized_bytes(corr, EntityId(entity_id), said, self.dialect)
            proof = signer.prove(authorized, corr, dh_public(self.private))
        return encode_transmission(corr, EntityId(entity_id), said, self.dialect, proof), corr


class Box:
    """A queue made through an edge."""

    def __init__(self, ids: Ids, signer: Signer, box_key: BoxKey, made: Newr) -> None:
        self.ids = ids
        self.signer = signer
        self.box_key = box_key
        self.made = made


class ScriptedEdge:
    """A `LinkHandler`; frames that nobody waits for are kept."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.line: LinkConnection | None = None
        self.net: NetLoop | None = None
        self.is_lost = False
        self._changed = asyncio.Event()
        self._requests = REQUESTS_FROM

    @classmethod
    async def connected(cls, membership: Membership, port: int) -> "ScriptedEdge":
        edge = cls()
        edge.net = NetLoop(clock=SystemClock())
        node = Node(node_id=NodeId(1), host="127.0.0.1", port=port, fingerprint=bytes(32))
        context = link_context(membership, server_side=False)
        await Links(edge.net).connect(edge, node, context)
        await edge.until(lambda: edge.line is not None or edge.is_lost)
        assert not edge.is_lost
        return edge

    def ready(self, line: LinkConnection) -> None:
        self.line = line
        self._changed.set()

    def arrived(self, line: LinkConnection, frame: Frame) -> None:
        self.frames.append(frame)
        self._changed.set()

    def lost(self, line: LinkConnection) -> None:
        self.is_lost = True
        self._changed.set()

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def close(self) -> None:
        if self.net is not None:
            self.net.close()

    def put(self, stream: int, body: Body, epoch: int = 0) -> None:
        assert self.line is not None
        self.line.send_frame(stream, epoch, body)

    async def frame(self, stream: int) -> Frame:
        """The next one of this stream."""
        await self.until(lambda: any(one.stream == stream for one in self.frames) or self.is_lost)
        found = next(one for one in self.frames if one.stream == stream)
        self.frames.remove(found)
        return found

    async def word(self, stream: int, kind: type[W]) -> W:
        body = (await self.frame(stream)).body
        assert isinstance(body, kind), body
        return body

    async def request(self, word: LinkMessage) -> Body:
        """A word about no session, and its answer."""
        self._requests += 1
        self.put(self._requests, word)
        return (await self.frame(self._requests)).body

    def open(self, session: EdgeSession, *, forwarded: bool = False) -> None:
        key = session.private
        self.put(session.stream, Sopen(18, session.session_id, key, forwarded))

    async def said(self, session: EdgeSession) -> tuple[bytes, bytes, Response]:
        """The next answer or event for this client."""
        answer = await self.word(session.stream, ServerTransmission)
        decoded = decode_answer(answer.transmission, session.dialect)
        return decoded.corr_id, decoded.entity_id, decode_response(decoded.response, 18)

    async def ask(
        self,
        session: EdgeSession,
        command: Command,
        entity_id: bytes = b"",
        signer: Signer | None = None,
    ) -> Response:
        said, corr_id = session.transmission(command, entity_id, signer)
        self.put(session.stream, ClientTransmission(said))
        answered, _, response = await self.said(session)
        assert answered == corr_id, response
        return response

    async def ask_for_word(
        self,
        session: EdgeSession,
        command: Command,
        entity_id: bytes,
        signer: Signer | None = None,
    ) -> Body:
        said, _ = session.transmission(command, entity_id, signer)
        self.put(session.stream, ClientTransmission(said))
        return (await self.frame(session.stream)).body

    async def draft(
        self,
        session: EdgeSession,
        home: int,
        tx_id: bytes,
        *,
        mode: QueueMode = QueueMode.MESSAGING,
        link: NewLink | None = None,
        corr_id: bytes | None = None,
    ) -> Box:
        signer = Signer()
        public, private = new_dh_pair()
        command = New(signer.public, public, None, SubMode.SUBSCRIBE, mode, link)
        said, _ = session.transmission(command, b"", signer, corr_id=corr_id)
        self.put(session.stream, Newq(Slot(home), tx_id, said))
        _, _, ids = await self.said(session)
        assert isinstance(ids, Ids), ids
        made = await self.word(session.stream, Newr)
        return Box(ids, signer, agree(ids.dh_key, private), made)

    async def create(self, session: EdgeSession, home: int) -> Box:
        tx_id = secrets.token_bytes(16)
        box = await self.draft(session, home, tx_id)
        assert isinstance(await self.request(Newc(tx_id)), Cok)
        return box
