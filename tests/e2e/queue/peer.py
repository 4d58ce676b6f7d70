"""A client for tests that sends exactly what it is given: blocking sockets, no retries.

It writes with the server's codec, which has tests of its own against known answers; the client
library, written apart from it, is tried in `test_client_*.py`.
"""

import hashlib
import secrets
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.e2e.queue.certificates import longer_chain
from tests.e2e.queue.process import QueueServer
from waystation.queue.auth import authenticator
from waystation.queue.errors import Code, Fault
from waystation.queue.model import (
    AuthKey,
    BoxKey,
    CorrId,
    DhKey,
    DhPrivateKey,
    EntityId,
    KeyKind,
    Message,
    QueueMode,
    RecipientId,
    SenderId,
    ServiceId,
    ServiceRole,
    SessionId,
    SubMode,
)
from waystation.queue.wire import fields
from waystation.queue.wire.block import BLOCK_BYTES, open_plain, seal_plain
from waystation.queue.wire.boxes import agree, dh_public, new_dh_pair
from waystation.queue.wire.certificates import leaf_key
from waystation.queue.wire.commands import (
    Ack,
    Command,
    Get,
    New,
    NewLink,
    NewNotifier,
    Send,
    Sub,
    encode_command,
)
from waystation.queue.wire.delivery import decrypt_message
from waystation.queue.wire.fields import to_spki
from waystation.queue.wire.handshake import (
    Agreement,
    ClientHello,
    ServerHello,
    ServiceHello,
    agreement,
    decode_server_hello,
    encode_client_hello,
)
from waystation.queue.wire.responses import Err, Ids, Msg, Ok, Response, Sok, decode_response
from waystation.queue.wire.signed_key import open_signed_key, sign
from waystation.queue.wire.transmission import (
    Dialect,
    authorized_bytes,
    decode_answer,
    encode_transmission,
    join_batch,
    split_batch,
)

TIMEOUT_S = 20.0
QUIET_S = 0.3
R = TypeVar("R")


class ClosedError(Exception):
    """The server closed the connection."""


class TurnedAwayError(Exception):
    """A service was told that it may not come in."""


class ServiceCard:
    """The certificates of a service, in files as TLS wants them, and the key of its session."""

    def __init__(self, directory: Path, role: ServiceRole, length: int = 1) -> None:
        self.role = role
        self.shows_in_tls = True
        self.session_key = Ed25519PrivateKey.generate()
        self.chain = longer_chain(directory, length)
        self.chain_file, self.key_file = directory / "server.crt", directory / "server.key"
        key = serialization.load_pem_private_key(self.key_file.read_bytes(), None)
        assert isinstance(key, Ed25519PrivateKey)
        self.leaf_key = key

    @property
    def fingerprint(self) -> bytes:
        return hashlib.sha256(self.chain[min(1, len(self.chain) - 1)]).digest()

    def hello(self) -> ServiceHello:
        public = self.session_key.public_key().public_bytes_raw()
        spki = to_spki(AuthKey(KeyKind.ED25519, public))
        return ServiceHello(self.role, self.chain, sign(spki, self.leaf_key))


class Signer:
    """A key pair that proves commands."""

    def __init__(self, kind: KeyKind = KeyKind.ED25519) -> None:
        self.kind = kind
        self._ed25519 = Ed25519PrivateKey.generate()
        self._ed448 = Ed448PrivateKey.generate()
        self._public, self._private = new_dh_pair()

    @property
    def public(self) -> AuthKey:
        match self.kind:
            case KeyKind.ED25519:
                return AuthKey(self.kind, self._ed25519.public_key().public_bytes_raw())
            case KeyKind.ED448:
                return AuthKey(self.kind, self._ed448.public_key().public_bytes_raw())
            case KeyKind.X25519:
                return AuthKey(self.kind, self._public)

    def prove(self, authorized: bytes, corr_id: CorrId, server_key: DhKey | None) -> bytes:
        match self.kind:
            case KeyKind.ED25519:
                return self._ed25519.sign(authorized)
            case KeyKind.ED448:
                return self._ed448.sign(authorized)
            case KeyKind.X25519:
                assert server_key is not None
                return authenticator(server_key, self._private, corr_id, authorized)


class Answer:
    """One transmission of the server."""

    def __init__(self, corr_id: bytes, entity_id: bytes, response: Response, block: int) -> None:
        self.corr_id = corr_id
        self.entity_id = entity_id
        self.response = response
        self.block = block  # the number of the block it came in

    def __repr__(self) -> str:
        return f"Answer({self.corr_id[:4].hex()}, {self.entity_id[:4].hex()}, {self.response})"


class Mailbox:
    """A queue as its owner knows it."""

    def __init__(self, ids: Ids, signer: Signer, box_key: BoxKey) -> None:
        self.ids = ids
        self.signer = signer
        self.box_key = box_key

    @property
    def recipient_id(self) -> RecipientId:
        return self.ids.recipient_id

    @property
    def sender_id(self) -> SenderId:
        return self.ids.sender_id

    def open(self, msg: Response) -> Message:
        assert isinstance(msg, Msg), msg
        return decrypt_message(self.box_key, msg.message_id, msg.encrypted)


class Peer:
    def __init__(
        self,
        server: QueueServer,
        *,
        version: int = 18,
        with_key: bool = True,
        is_proxy: bool = False,
        alpn: tuple[str, ...] = ("smp/1",),
        hello: bool = True,
        key_hash: bytes | None = None,
        behind_hello: bytes = b"",
        service: "ServiceCard | None" = None,
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the fingerprint is compared instead
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if service is not None and service.shows_in_tls:
            context.load_cert_chain(service.chain_file, service.key_file)
        self.service = service
        self.service_id = ServiceId(b"")
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = context.wrap_socket(raw)
        binding = self.sock.get_channel_binding("tls-unique")
        assert binding is not None
        self.session_id = SessionId(binding)
        self.blocks_read = 0
        self._answers: deque[Answer] = deque()
        try:
            self.server_hello: ServerHello = decode_server_hello(open_plain(self.read_block()))
        except BaseException:
            self.sock.close()
            raise
        self.server_key: DhKey | None = None
        if self.server_hello.signed_key:
            verifier = leaf_key(self.server_hello.chain)
            self.server_key = open_signed_key(self.server_hello.signed_key, verifier)
        self.version = version
        self._private: DhPrivateKey = new_dh_pair()[1]
        self._with_key = with_key and version >= 7
        self.is_proxy = is_proxy
        self._agreement: Agreement | None = None
        if hello:
            identity = hashlib.sha256(server.identity.chain[1]).digest()
            self.greet(key_hash or identity, behind_hello)

    def greet(self, key_hash: bytes, behind: bytes = b"") -> None:
        own = dh_public(self._private) if self._with_key else None
        card = self.service
        service = None if card is None else card.hello()
        hello = ClientHello(self.version, key_hash, own, self.is_proxy, service)
        self.write_block(seal_plain(encode_client_hello(hello) + behind))
        # The server's part of the secret is its public key; the roles in `agreement` are swapped.
        self._agreement = agreement(
            version=self.version,
            session_id=self.session_id,
            own=self._private,
            peer=self.server_key if self._with_key else None,
            is_proxy=self.is_proxy,
            is_server=False,
        )
        if card is not None:
            third = open_plain(self.read_block())
            if third[:1] != b"R":
                self.sock.close()
                raise TurnedAwayError(third)
            self.service_id = ServiceId(third[2:])
            assert third[1] == len(self.service_id)

    @property
    def agreement(self) -> Agreement:
        assert self._agreement is not None
        return self._agreement

    @property
    def dialect(self) -> Dialect:
        return self.agreement.dialect

    # Blocks

    def read_block(self, timeout_s: float = TIMEOUT_S) -> bytes:
        self.sock.settimeout(timeout_s)
        block = b""
        while len(block) < BLOCK_BYTES:
            try:
                got = self.sock.recv(BLOCK_BYTES - len(block))
            except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError) as exc:
                raise ClosedError from exc
            if not got:
                raise ClosedError
            block += got
            self.sock.settimeout(TIMEOUT_S)  # what has begun is waited for
        self.blocks_read += 1
        return block

    def write_block(self, block: bytes) -> None:
        self.sock.settimeout(TIMEOUT_S)
        self.sock.sendall(block)

    def write(self, *transmissions: bytes) -> None:
        self.write_block(self.agreement.blocks.seal(join_batch(transmissions)))

    # Transmissions

    def transmission(
        self,
        command: Command | bytes,
        entity_id: bytes = b"",
        signer: Signer | None = None,
        *,
        corr_id: bytes | None = None,
        proof: bytes | None = None,
        session_id: SessionId | None = None,
        as_service: bool = False,
    ) -> tuple[bytes, CorrId]:
        dialect = self.dialect
        if session_id is not None:
            dialect = Dialect(self.version, session_id)
        corr = CorrId(secrets.token_bytes(24) if corr_id is None else corr_id)
        said = command if isinstance(command, bytes) else encode_command(command, self.version)
        if as_service:
            assert self.service is not None
            assert signer is not None
            authorized = authorized_bytes(corr, EntityId(entity_id), said, dialect)
            signed = self.service.fingerprint + authorized
            proofs = fields.short(signer.prove(signed, corr, self.server_key)) + fields.maybe_short(
                self.service.session_key.sign(authorized)
            )
            return proofs + fields.short(corr) + fields.short(entity_id) + said, corr
        if proof is None:
            proof = b""
            if signer is not None:
                authorized = authorized_bytes(corr, EntityId(entity_id), said, dialect)
                proof = signer.prove(authorized, corr, self.server_key)
        return encode_transmission(corr, EntityId(entity_id), said, dialect, proof), corr

    def next(self, timeout_s: float = TIMEOUT_S) -> Answer:
        """The next transmission, whatever it is."""
        while not self._answers:
            content = self.agreement.blocks.open(self.read_block(timeout_s))
            for item in split_batch(content):
                answer = decode_answer(item, self.dialect)
                response = decode_response(answer.response, self.version)
                self._answers.append(
                    Answer(answer.corr_id, answer.entity_id, response, self.blocks_read)
                )
        return self._answers.popleft()

    def event(self, kind: type[R], entity_id: bytes | None = None) -> R:
        """The next transmission, which nobody asked for."""
        answer = self.next()
        assert answer.corr_id == b"", answer
        assert isinstance(answer.response, kind), answer
        if entity_id is not None:
            assert answer.entity_id == entity_id
        return answer.response

    def expect_silence(self, for_s: float = QUIET_S) -> None:
        """Nothing more comes, at least until a PING has come back and a moment longer."""
        try:
            answer = self.next(timeout_s=for_s)
        except TimeoutError:
            return
        raise AssertionError(f"nothing was expected, but {answer} came")

    def ask(
        self,
        command: Command | bytes,
        entity_id: bytes = b"",
        signer: Signer | None = None,
        **how: Any,
    ) -> Response:
        """The answer to this command; events that come before it are kept for later."""
        said, corr_id = self.transmission(command, entity_id, signer, **how)
        self.write(said)
        return self.answer_to(corr_id, entity_id)

    def answer_to(self, corr_id: bytes, entity_id: bytes | None = None) -> Response:
        earlier: list[Answer] = []
        while (answer := self.next()).corr_id != corr_id:
            assert answer.corr_id == b"", f"an answer to something else: {answer}"
            earlier.append(answer)
        self._answers.extendleft(reversed(earlier))
        if entity_id is not None:
            assert answer.entity_id == entity_id
        return answer.response

    def fault(self, *args: Any, **how: Any) -> Fault:
        response = self.ask(*args, **how)
        assert isinstance(response, Err), response
        return response.fault

    # Usual things

    def create(
        self,
        *,
        signer: Signer | None = None,
        mode: QueueMode | None = QueueMode.MESSAGING,
        subscribe: bool = True,
        password: bytes | None = None,
        link: NewLink | None = None,
        notifier: NewNotifier | None = None,
        corr_id: bytes | None = None,
    ) -> Mailbox:
        signer = signer or Signer()
        public, private = new_dh_pair()
        command = New(
            signer.public,
            public,
            password,
            SubMode.SUBSCRIBE if subscribe else SubMode.CREATE,
            mode if self.version >= 9 else None,
            link,
            notifier,
        )
        ids = self.ask(command, b"", signer, corr_id=corr_id)
        assert isinstance(ids, Ids), ids
        return Mailbox(ids, signer, agree(ids.dh_key, private))

    def send(
        self,
        box: Mailbox,
        body: bytes = b"hello",
        *,
        signer: Signer | None = None,
        notify: bool = False,
    ) -> None:
        response = self.ask(Send(notify, body), box.sender_id, signer)
        assert isinstance(response, Ok), response

    def subscribe(self, box: Mailbox) -> None:
        response = self.ask(Sub(), box.recipient_id, box.signer)
        assert isinstance(response, Ok | Sok), response

    def received(self, box: Mailbox) -> Message:
        """The message that comes by itself."""
        return box.open(self.event(Msg, box.recipient_id))

    def ack(self, box: Mailbox, message: Message) -> Response:
        return self.ask(Ack(message.message_id), box.recipient_id, box.signer)

    def take(self, box: Mailbox) -> bytes:
        """Receive one, acknowledge it, and see that nothing follows: its body."""
        message = self.received(box)
        assert isinstance(self.ack(box, message), Ok)
        assert message.body is not None
        return message.body

    def get(self, box: Mailbox) -> Response:
        return self.ask(Get(), box.recipient_id, box.signer)

    def expect_closed(self, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                self.read_block(timeout_s)
        except ClosedError:
            return
        raise AssertionError("the server keeps the connection")

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AUTH = Code.AUTH
