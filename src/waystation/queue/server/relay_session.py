"""The proxy's side of one session with a relay: hellos, forwarded commands, their answers.

Rule 1: the relay must be the one that clients asked for: its hello has this TLS session's id, its
        chain has the TLS leaf and the expected fingerprint, and its leaf signed the session key.
Rule 2: a relay before version 14 cannot be told that we are a proxy, and would encrypt blocks from
        version 11 on; so version 10 is the highest that we offer to it.
Rule 3: clients get the relay's versions up to one below the newest, so that a client that was just
        updated does not stand out.
Rule 4: an answer belongs to the command with its correlation id. Unknown and late answers are
        ignored.

A core: no socket and no clock.
"""

import datetime as dt
import secrets
from typing import Final

from waystation.queue.errors import (
    BadHelloError,
    Broker,
    BrokerFault,
    RefusedError,
    RelayFault,
)
from waystation.queue.model import (
    NO_ENTITY,
    BoxKey,
    CorrId,
    DhKey,
    Fingerprint,
    SessionId,
    VersionRange,
)
from waystation.queue.wire.block import seal_plain
from waystation.queue.wire.boxes import NONCE_BYTES, box_key, new_dh_pair
from waystation.queue.wire.certificates import verify_chain
from waystation.queue.wire.commands import Rfwd, encode_command
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.forwarding import Forwarded, open_forwarded_answer, seal_forwarded
from waystation.queue.wire.handshake import (
    PROXY_FLAG_SINCE,
    Agreement,
    ClientHello,
    ServerHello,
    agreement,
    encode_client_hello,
    server_hello_of,
)
from waystation.queue.wire.responses import Err, Pkey, Pres, Rres, decode_response
from waystation.queue.wire.signed_key import open_signed_key
from waystation.queue.wire.transmission import (
    TRANSMISSION_BYTES_MAX,
    Answer,
    decode_answer,
    encode_transmission,
    join_batch,
    split_batch,
)

VERSIONS: Final = VersionRange(8, 18)
VERSIONS_WITHOUT_FLAG: Final = VersionRange(8, 10)  # rule 2
VERSIONS_FOR_CLIENTS: Final = VersionRange(8, 17)  # rule 3
_DETAIL_BYTES_MAX: Final = 64


class RelaySession:
    __slots__ = ("_agreement", "_key", "_pending", "pkey")

    def __init__(self) -> None:
        self._agreement: Agreement | None = None
        self._key: BoxKey | None = None
        self._pending: dict[CorrId, CorrId] = {}  # ours -> the client's
        self.pkey: Pkey | None = None  # for clients; None before the hellos

    # Hellos

    def greet(
        self,
        block: bytes,
        *,
        expected: Fingerprint,
        session_id: SessionId,
        leaf: bytes,
        now: dt.datetime,
    ) -> bytes:
        """Our hello for the relay's. `session_id` and `leaf` come from TLS. Raises `BadHelloError`
        for the wrong relay or without a common version."""
        hello = server_hello_of(block)
        version, shown = _versions(hello)
        relay_key = _relay_key(hello, expected, session_id, leaf, now)
        public, private = new_dh_pair()
        is_proxy = version >= PROXY_FLAG_SINCE
        agreed = agreement(
            version=version,
            session_id=session_id,
            own=private,
            peer=relay_key,
            is_proxy=is_proxy,
            is_server=False,
        )
        assert agreed.secret is not None
        self._agreement = agreed
        self._key = box_key(agreed.secret)
        self.pkey = Pkey(session_id, shown, hello.chain, hello.signed_key)
        return seal_plain(encode_client_hello(ClientHello(version, expected, public, is_proxy)))

    # Commands

    def forward(self, forwarded: Forwarded) -> tuple[CorrId, bytes]:
        """The block that forwards a client's command, and the correlation id of its answer.

        `RefusedError` if the command and its layers do not fit a block.
        """
        agreed, key = self._agreement, self._key
        assert agreed is not None
        assert key is not None
        corr_id = CorrId(secrets.token_bytes(NONCE_BYTES))
        command = encode_command(Rfwd(seal_forwarded(key, corr_id, forwarded)), 0)
        item = encode_transmission(corr_id, NO_ENTITY, command, agreed.dialect)
        if len(item) > TRANSMISSION_BYTES_MAX:
            raise RefusedError(BrokerFault(Broker.TRANSPORT_LARGE_MSG))
        self._pending[corr_id] = forwarded.corr_id
        return corr_id, agreed.blocks.seal(join_batch([item]))

    def forget(self, corr_id: CorrId) -> None:
        """The answer is no longer awaited."""
        self._pending.pop(corr_id, None)

    def receive(self, block: bytes) -> list[tuple[CorrId, Pres | Err]]:
        """Answers to forwarded commands, by our correlation ids."""
        agreed = self._agreement
        assert agreed is not None
        try:
            items = split_batch(agreed.blocks.open(block))
        except (RefusedError, FieldError):
            return []
        answers: list[tuple[CorrId, Pres | Err]] = []
        for item in items:
            try:
                answer = decode_answer(item, agreed.dialect)
            except FieldError:
                continue
            client_corr_id = self._pending.pop(answer.corr_id, None)
            if client_corr_id is not None:
                answers.append((answer.corr_id, self._answer(answer, client_corr_id)))
        return answers

    def _answer(self, answer: Answer, client_corr_id: CorrId) -> Pres | Err:
        agreed, key = self._agreement, self._key
        assert agreed is not None
        assert key is not None
        try:
            response = decode_response(answer.response, agreed.dialect.version)
            if isinstance(response, Rres):
                named, encrypted = open_forwarded_answer(key, answer.corr_id, response.encrypted)
                if named != client_corr_id:
                    return Err(BrokerFault(Broker.RESPONSE, b"another client's answer"))
                return Pres(encrypted)
        except FieldError as error:
            return Err(BrokerFault(Broker.RESPONSE, str(error).encode()[:_DETAIL_BYTES_MAX]))
        if isinstance(response, Err):
            return Err(RelayFault(response.fault))
        return Err(BrokerFault(Broker.UNEXPECTED, type(response).__name__.upper().encode()))


def _versions(hello: ServerHello) -> tuple[int, VersionRange]:
    """The version of the session, and the versions that clients may use inside it."""
    knows_flag = hello.versions.highest >= PROXY_FLAG_SINCE
    common = hello.versions.common(VERSIONS if knows_flag else VERSIONS_WITHOUT_FLAG)
    shown = hello.versions.common(VERSIONS_FOR_CLIENTS)
    if common is None or shown is None:
        raise BadHelloError(Broker.TRANSPORT_VERSION)
    return common.highest, shown


def _relay_key(
    hello: ServerHello,
    expected: Fingerprint,
    session_id: SessionId,
    leaf: bytes,
    now: dt.datetime,
) -> DhKey:
    if hello.session_id != session_id:
        raise BadHelloError(Broker.TRANSPORT_SESSION)
    try:
        if hello.chain[0] != leaf:
            raise FieldError("not the certificate of TLS")
        verifying = verify_chain(hello.chain, expected, now)
    except FieldError as error:
        raise BadHelloError(Broker.HANDSHAKE_IDENTITY) from error
    try:
        return open_signed_key(hello.signed_key, verifying)
    except FieldError as error:
        raise BadHelloError(Broker.HANDSHAKE_BAD_AUTH) from error
