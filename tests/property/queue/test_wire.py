"""Whatever arrives is a value or a precise refusal, and what we write reads back as it was."""

import itertools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from waystation.queue.errors import (
    BadHelloError,
    Blocked,
    Broker,
    BrokerFault,
    Code,
    Fault,
    RefusedError,
    RelayFault,
    StoreFault,
)
from waystation.queue.model import (
    AuthKey,
    Blocking,
    BlockReason,
    CorrId,
    DhKey,
    Fingerprint,
    KeyKind,
    LinkData,
    LinkId,
    Message,
    MessageId,
    Notice,
    NotifierId,
    QueueMode,
    RecipientId,
    SenderId,
    ServiceId,
    ServiceRole,
    SessionId,
    SubMode,
    VersionRange,
)
from waystation.queue.wire import commands as c
from waystation.queue.wire import responses as r
from waystation.queue.wire.block import BLOCK_BYTES, ChainedBlocks, PlainBlocks
from waystation.queue.wire.boxes import box_key, new_dh_pair
from waystation.queue.wire.delivery import decrypt_message, encrypt_message
from waystation.queue.wire.error_forms import decode_fault, encode_fault
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.forwarding import open_forwarded, open_forwarded_answer
from waystation.queue.wire.handshake import (
    ClientHello,
    ServerHello,
    ServiceHello,
    decode_client_hello,
    decode_server_hello,
    encode_client_hello,
    encode_server_hello,
)
from waystation.queue.wire.transmission import (
    NOT_A_BATCH,
    PROOF_BYTES,
    Answer,
    Dialect,
    Refusal,
    Transmission,
    decode_answer,
    decode_batch,
    decode_transmission,
    encode_answer,
    encode_transmission,
    join_batch,
    pack_batches,
    split_batch,
)

QUICK = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
SESSION_ID = SessionId(b"\xaa" * 32)
VERSIONS = st.integers(6, 18)
DIALECTS = st.builds(Dialect, VERSIONS, st.just(SESSION_ID))
SHORT = st.binary(max_size=40) | st.binary(min_size=250, max_size=255)
LARGE = st.binary(max_size=300)
IDS = st.binary(min_size=1, max_size=32)
DH_KEYS = st.binary(min_size=32, max_size=32).map(DhKey)
AUTH_KEYS = st.one_of(
    *(
        st.builds(AuthKey, st.just(kind), st.binary(min_size=size, max_size=size))
        for kind, size in ((KeyKind.ED25519, 32), (KeyKind.X25519, 32), (KeyKind.ED448, 57))
    )
)
LINK_DATA = st.builds(LinkData, LARGE, LARGE)
PROOFS = st.sampled_from(sorted(PROOF_BYTES)).flatmap(lambda n: st.binary(min_size=n, max_size=n))


@st.composite
def news(draw: st.DrawFn, version: int) -> c.New:
    """A NEW that the version can say."""
    key, dh_key, password = draw(AUTH_KEYS), draw(DH_KEYS), draw(st.none() | SHORT)
    sub_mode = draw(st.sampled_from(SubMode))
    if version < 9:
        return c.New(key, dh_key, password, sub_mode)
    if version < 15:
        return c.New(key, dh_key, password, sub_mode, draw(st.sampled_from(QueueMode)))
    mode, link, notifier = draw(st.none() | st.sampled_from(QueueMode)), None, None
    if mode is not None and draw(st.booleans()):
        link_id = LinkId(draw(SHORT)) if mode is QueueMode.CONTACT else None
        link = c.NewLink(SenderId(draw(SHORT)), draw(LINK_DATA), link_id)
    if version >= 17 and draw(st.booleans()):
        notifier = c.NewNotifier(draw(AUTH_KEYS), draw(DH_KEYS))
    return c.New(key, dh_key, password, sub_mode, mode, link, notifier)


RELAYS = st.builds(
    c.RelayAddress,
    st.lists(SHORT, min_size=1, max_size=4).map(tuple),
    SHORT,
    st.binary(min_size=32, max_size=32).map(Fingerprint),
)
COMMANDS: st.SearchStrategy[c.Command] = st.one_of(
    st.sampled_from(
        [c.Sub(), c.Subs(), c.Ldel(), c.Ndel(), c.Get(), c.Off(), c.Del(), c.Que(), c.Lget()]
    ),
    st.sampled_from([c.Nsub(), c.Nsubs(), c.Ping()]),
    st.builds(c.Key, AUTH_KEYS),
    st.builds(c.Skey, AUTH_KEYS),
    st.builds(c.Lkey, AUTH_KEYS),
    st.builds(c.Rkey, st.lists(AUTH_KEYS, min_size=1, max_size=5).map(tuple)),
    st.builds(c.Lset, SHORT.map(LinkId), LINK_DATA),
    st.builds(c.Nkey, AUTH_KEYS, DH_KEYS),
    st.builds(c.Ack, SHORT.map(MessageId)),
    st.builds(c.Send, st.booleans(), LARGE),
    st.builds(c.Prxy, RELAYS, st.none() | SHORT),
    st.builds(c.Pfwd, st.integers(0, 65535), DH_KEYS, LARGE),
    st.builds(c.Rfwd, LARGE),
)


def understand(data: bytes, version: int) -> c.Command | Code:
    try:
        return c.decode_command(data, version)
    except RefusedError as refused:
        return refused.fault if isinstance(refused.fault, Code) else Code.INTERNAL


@st.composite
def said(draw: st.DrawFn) -> tuple[int, c.Command]:
    version = draw(VERSIONS)
    return version, draw(COMMANDS | news(version))


@QUICK
@given(said())
def test_commands_read_back(pair: tuple[int, c.Command]) -> None:
    version, command = pair

    data = c.encode_command(command, version)

    assert c.decode_command(data, version) == command
    assert c.decode_command(b"before" + data, version, 6) == command


@QUICK
@given(said(), st.binary(min_size=1, max_size=4))
def test_nothing_may_follow_the_last_parameter(pair: tuple[int, c.Command], more: bytes) -> None:
    version, command = pair
    assume(not isinstance(command, c.Send | c.Pfwd | c.Rfwd))  # they end in whatever follows

    decoded = understand(c.encode_command(command, version) + more, version)

    words = {c.Sub(), c.Subs(), c.Nsub(), c.Nsubs()}  # one of them and an S is another
    assert decoded in (Code.CMD_SYNTAX, Code.CMD_UNKNOWN) or {command, decoded} <= words


@QUICK
@given(said(), st.data())
def test_commands_that_end_too_early_are_refused(
    pair: tuple[int, c.Command], data: st.DataObject
) -> None:
    version, command = pair
    whole = c.encode_command(command, version)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]

    assert understand(cut, version) != command


@QUICK
@given(
    st.sampled_from([b"", *(tag + b" " for tag in (b"NEW", b"RKEY", b"LSET", b"PRXY"))]),
    st.binary(max_size=200),
    VERSIONS,
)
def test_any_bytes_are_a_command_or_a_refusal(start: bytes, rest: bytes, version: int) -> None:
    command = understand(start + rest, version)

    if not isinstance(command, Code):
        assert c.decode_command(c.encode_command(command, version), version) == command
    else:
        assert command in (Code.CMD_SYNTAX, Code.CMD_UNKNOWN)


FAULTS: st.SearchStrategy[Fault] = st.recursive(
    st.sampled_from(Code)
    | st.builds(StoreFault, st.text(max_size=20))
    | st.builds(
        Blocked,
        st.builds(
            Blocking,
            st.sampled_from(BlockReason),
            st.none() | st.builds(Notice, st.none() | st.integers(0, 2**40)),
        ),
    )
    | st.builds(
        BrokerFault,
        st.sampled_from(sorted(set(Broker) - {Broker.RESPONSE, Broker.UNEXPECTED}, key=str)),
    )
    | st.builds(BrokerFault, st.sampled_from([Broker.RESPONSE, Broker.UNEXPECTED]), SHORT),
    lambda inner: st.builds(RelayFault, inner),
    max_leaves=2,
)


@QUICK
@given(FAULTS)
def test_faults_read_back(fault: Fault) -> None:
    depth, inner = 0, fault
    while isinstance(inner, RelayFault):
        depth, inner = depth + 1, inner.fault
    assume(depth <= 3)

    assert decode_fault(encode_fault(fault, 18)) == fault


@QUICK
@given(st.sampled_from([b"", b"BLOCKED ", b"PROXY ", b"PROXY BROKER ", b"STORE "]), LARGE)
def test_any_bytes_are_a_fault_or_refused(start: bytes, rest: bytes) -> None:
    try:
        fault = decode_fault(start + rest)
    except FieldError:
        return
    assert decode_fault(encode_fault(fault, 18)) == fault


RESPONSES: st.SearchStrategy[r.Response] = st.one_of(
    st.sampled_from([r.OK, r.END, r.DELETED, r.PONG]),
    st.builds(r.Sok, st.none() | SHORT.map(ServiceId)),
    st.builds(r.Soks, st.integers(-(2**63), 2**63 - 1)),
    st.builds(r.Ends, st.integers(0, 2**63 - 1)),
    st.builds(
        r.Ids,
        IDS.map(RecipientId),
        IDS.map(SenderId),
        DH_KEYS,
        st.none() | st.sampled_from(QueueMode),
        st.none() | SHORT.map(LinkId),
        st.none() | SHORT.map(ServiceId),
        st.none() | st.builds(r.NewNotifierIds, SHORT.map(NotifierId), DH_KEYS),
    ),
    st.builds(r.Msg, SHORT.map(MessageId), LARGE),
    st.builds(r.Nid, SHORT.map(NotifierId), DH_KEYS),
    st.builds(r.Nmsg, st.binary(min_size=24, max_size=24), SHORT),
    st.builds(r.Lnk, SHORT.map(SenderId), LINK_DATA),
    st.builds(r.Info, LARGE),
    st.builds(
        r.Pkey,
        SHORT.map(SessionId),
        st.tuples(st.integers(0, 9), st.integers(9, 20)).map(lambda pair: VersionRange(*pair)),
        st.lists(LARGE, min_size=1, max_size=4).map(tuple),
        LARGE,
    ),
    st.builds(r.Pres, LARGE),
    st.builds(r.Rres, LARGE),
    st.builds(r.Err, FAULTS.filter(lambda fault: not isinstance(fault, RelayFault))),
)


@QUICK
@given(RESPONSES)
def test_responses_read_back(response: r.Response) -> None:
    assert r.decode_response(r.encode_response(response, 18), 18) == response


@QUICK
@given(RESPONSES, VERSIONS)
def test_every_client_gets_a_response_that_it_can_read(response: r.Response, version: int) -> None:
    """What an older client is told may be less, but it is never nonsense to it."""
    encoded = r.encode_response(response, version)

    assert r.encode_response(r.decode_response(encoded, version), version) == encoded


@QUICK
@given(st.binary(max_size=200), VERSIONS)
def test_any_bytes_are_a_response_or_refused(data: bytes, version: int) -> None:
    try:
        response = r.decode_response(data, version)
    except FieldError:
        return
    assert r.decode_response(r.encode_response(response, 18), 18) == response


@QUICK
@given(SHORT, SHORT, said(), PROOFS)
def test_transmissions_read_back_or_say_what_is_missing(
    corr_id: bytes, entity_id: bytes, pair: tuple[int, c.Command], proof: bytes
) -> None:
    version, command = pair
    dialect = Dialect(version, SESSION_ID)
    encoded = c.encode_command(command, version)

    received = decode_transmission(
        encode_transmission(corr_id, entity_id, encoded, dialect, proof), dialect
    )

    assert (received.corr_id, received.entity_id) == (corr_id, entity_id)
    fault = c.misplaced(command, proof, entity_id)
    if fault is not None:
        assert isinstance(received, Refusal)
        assert received.fault is fault
    else:
        assert isinstance(received, Transmission)
        assert (received.command, received.proof) == (command, proof)
        assert bool(received.authorized) is bool(proof)


@QUICK
@given(st.binary(max_size=400), DIALECTS)
def test_any_bytes_are_a_batch_or_a_refusal(content: bytes, dialect: Dialect) -> None:
    received = decode_batch(content, dialect)

    assert received == [NOT_A_BATCH] or len(received) == content[0]
    for item in decode_batch(join_batch([content]), dialect):
        assert isinstance(item, Transmission | Refusal)


@QUICK
@given(st.lists(st.binary(max_size=3000), max_size=40))
def test_batches_keep_every_transmission_in_its_order(items: list[bytes]) -> None:
    batches = pack_batches(items)

    assert [item for content in batches for item in split_batch(content)] == items
    assert all(len(content) <= BLOCK_BYTES - 18 for content in batches)
    for earlier, later in itertools.pairwise(batches):
        assert len(earlier) + len(later) > BLOCK_BYTES - 18  # no two that could be one


@QUICK
@given(SHORT, SHORT, LARGE, DIALECTS)
def test_answers_read_back(
    corr_id: bytes, entity_id: bytes, response: bytes, dialect: Dialect
) -> None:
    data = encode_answer(corr_id, entity_id, response, dialect)

    assert decode_answer(data, dialect) == Answer(CorrId(corr_id), entity_id, response)  # pyright: ignore[reportArgumentType]


@QUICK
@given(st.binary(max_size=200), DIALECTS)
def test_any_bytes_are_an_answer_or_refused(data: bytes, dialect: Dialect) -> None:
    try:
        answer = decode_answer(data, dialect)
    except FieldError:
        return
    assert data.endswith(answer.response)


SERVICES = st.builds(
    ServiceHello, st.sampled_from(ServiceRole), st.lists(LARGE, min_size=1).map(tuple), LARGE
)


@QUICK
@given(VERSIONS, SHORT, st.none() | DH_KEYS, st.booleans(), st.none() | SERVICES)
def test_client_hellos_read_back(
    version: int, key_hash: bytes, key: DhKey | None, is_proxy: bool, service: ServiceHello | None
) -> None:
    hello = ClientHello(
        version,
        key_hash,
        key if version >= 7 else None,
        is_proxy and version >= 14,
        service if version >= 16 else None,
    )

    assert decode_client_hello(encode_client_hello(hello)) == hello


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_are_a_hello_or_refused(data: bytes) -> None:
    for decode in (decode_client_hello, decode_server_hello):
        try:
            hello = decode(data)
        except BadHelloError:
            continue
        assert isinstance(hello, ClientHello | ServerHello)


@QUICK
@given(st.lists(LARGE, min_size=1, max_size=4), LARGE, SHORT)
def test_server_hellos_read_back(chain: list[bytes], key: bytes, session_id: bytes) -> None:
    hello = ServerHello(VersionRange(8, 18), SessionId(session_id), tuple(chain), key)

    assert decode_server_hello(encode_server_hello(hello)) == hello


@QUICK
@given(st.binary(max_size=400), st.binary(min_size=32, max_size=32))
def test_blocks_read_back_and_broken_ones_are_refused(content: bytes, key: bytes) -> None:
    for sender, receiver in (
        (PlainBlocks(), PlainBlocks()),
        (ChainedBlocks(key, key), ChainedBlocks(key, key)),
    ):
        block = sender.seal(content)
        assert len(block) == BLOCK_BYTES
        assert receiver.open(block) == content
    for broken in (content, block[:-1]):
        with pytest.raises(RefusedError):
            ChainedBlocks(key, key).open(broken)


@QUICK
@given(
    st.binary(max_size=16088),
    st.booleans(),
    st.integers(0, 2**40),
    st.binary(min_size=24, max_size=24),
)
def test_bodies_read_back(body: bytes, notify: bool, at_s: int, message_id: bytes) -> None:
    key = box_key(bytes(32))
    message = Message(MessageId(message_id), at_s, notify, body)

    encrypted = encrypt_message(key, message)

    assert len(encrypted) == 16122
    assert decrypt_message(key, message.message_id, encrypted) == message


@QUICK
@given(st.binary(max_size=400), SHORT)
def test_forwarded_bytes_that_nobody_sealed_are_refused(data: bytes, corr_id: bytes) -> None:
    key = box_key(bytes(32))
    _, private = new_dh_pair()

    with pytest.raises(RefusedError) as refused:
        open_forwarded(key, CorrId(corr_id), data, private)

    assert refused.value.fault is Code.CRYPTO
    with pytest.raises(FieldError):
        open_forwarded_answer(key, CorrId(corr_id), data)
