"""Whom a node answers at its peer port, and what it tells of a session."""

import datetime
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.conformance.presence.kit import (
    PARTY,
    PEER_TOKEN,
    Node,
    PresenceClient,
    TlsFiles,
    open_store,
    until,
)
from waystation.base.clock import SystemClock
from waystation.presence.cluster.peer_clients import PeerClients
from waystation.presence.errors import PeerError
from waystation.presence.model import ClientId, PartyId, SessionId, SessionKey
from waystation.presence.session.session import State
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceNode
from waystation.presence.wire import presence_cluster_pb2 as pb

HOUR = datetime.timedelta(hours=1)


class ClusterAuthority:
    """Signs the certificates of one cluster's nodes."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        folder.mkdir()
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        root = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.ca = self._write("ca.pem", root.public_bytes(Encoding.PEM))

    def node(self, name: str) -> TlsFiles:
        """The files of one node that asks for certificates of this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        cert = self._sign(subject, key.public_key(), is_authority=False)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return TlsFiles(
            cert=self._write(f"{name}.pem", cert.public_bytes(Encoding.PEM)),
            key=self._write(f"{name}.key", private),
            client_ca=self.ca,
        )

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR)
            .not_valid_after(now + HOUR)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)


def shown(trusts: str, pair: TlsFiles | None) -> grpc.ChannelCredentials:
    """What a node comes with: whom it trusts, and its own certificate if it has one."""
    root = Path(trusts).read_bytes()
    if pair is None:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(
        root, Path(pair.key).read_bytes(), Path(pair.cert).read_bytes()
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = Presence(tick_s=0.02)
    store = await open_store("memory", settings, tmp_path, SystemClock())
    node = await Node(settings, store).start()
    yield node
    await node.stop()
    await store.close()


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterAuthority:
    return ClusterAuthority(tmp_path / "cluster", "our cluster")


@pytest.fixture
async def guarded(node: Node, cluster: ClusterAuthority) -> AsyncIterator[PresenceNode]:
    """The node's services behind mutual TLS, as the worker opens them."""
    port = node.serve_peers(tls=cluster.node("server").context())
    port.start()
    yield PresenceNode(node_id="node.1", incarnation=0, peer_endpoint=f"127.0.0.1:{port.number}")
    await port.close()


def asking(client: int, session: int, fence: int = 0) -> pb.ProbeRequest:
    key = pb.SessionKey(party_id=PARTY, client_id=client, session_id=session)
    return pb.ProbeRequest(key=key, fence=fence)


async def answer(peer_clients: PeerClients, node: PresenceNode) -> pb.ProbeReply:
    try:
        return await peer_clients.probe(node, asking(1, 1))
    finally:
        await peer_clients.close()


async def test_a_node_with_a_certificate_of_the_cluster_is_answered(
    guarded: PresenceNode, cluster: ClusterAuthority
) -> None:
    mine = PeerClients(PEER_TOKEN, shown(cluster.ca, cluster.node("other")))

    assert await answer(mine, guarded) == pb.ProbeReply()


async def test_a_node_without_a_certificate_is_refused(
    guarded: PresenceNode, cluster: ClusterAuthority
) -> None:
    """The cluster's token alone is not enough."""
    bare = PeerClients(PEER_TOKEN, shown(cluster.ca, None))

    with pytest.raises(PeerError, match="unavailable"):
        await answer(bare, guarded)


async def test_a_node_with_a_foreign_certificate_is_refused(
    guarded: PresenceNode, cluster: ClusterAuthority, tmp_path: Path
) -> None:
    """Of another authority, though of the same name."""
    foreign = ClusterAuthority(tmp_path / "foreign", "our cluster").node("other")
    stranger = PeerClients(PEER_TOKEN, shown(cluster.ca, foreign))

    with pytest.raises(PeerError, match="unavailable"):
        await answer(stranger, guarded)


async def test_a_certificate_does_not_stand_for_the_token(
    guarded: PresenceNode, cluster: ClusterAuthority
) -> None:
    mine = PeerClients("of another cluster", shown(cluster.ca, cluster.node("other")))

    with pytest.raises(PeerError, match="unauthenticated"):
        await answer(mine, guarded)


async def test_a_node_does_not_speak_to_a_peer_of_a_foreign_authority(
    guarded: PresenceNode, cluster: ClusterAuthority, tmp_path: Path
) -> None:
    """Its token would be in the hands of whoever answers."""
    other = ClusterAuthority(tmp_path / "foreign", "another cluster")
    mine = PeerClients(PEER_TOKEN, shown(other.ca, cluster.node("other")))

    with pytest.raises(PeerError, match="unavailable"):
        await answer(mine, guarded)


async def test_a_peer_learns_whether_a_session_has_its_stream(node: Node) -> None:
    """ProbeSession: with a stream, without it, with another fence, and of nobody."""
    peer = PresenceNode(node_id="node.1", incarnation=0, peer_endpoint=node.peer_target)
    peer_clients = PeerClients(PEER_TOKEN)
    presence_client = await PresenceClient(node.target, 7).join()
    await presence_client.welcomed()
    session = node.broker.registry.sessions[
        SessionKey(PartyId(PARTY), ClientId(7), SessionId(presence_client.session))
    ]
    began_ms = SystemClock().now_ms()
    await presence_client.ping()
    await until(lambda: session.messages_in > 0)
    try:
        alive = await peer_clients.probe(peer, asking(7, presence_client.session))
        same = await peer_clients.probe(peer, asking(7, presence_client.session, session.fence))
        later = await peer_clients.probe(
            peer, asking(7, presence_client.session, session.fence + 1)
        )
        nobody = await peer_clients.probe(peer, asking(8, presence_client.session))
        await presence_client.cut()
        await until(lambda: session.state is State.DETACHED)
        cut_off = await peer_clients.probe(peer, asking(7, presence_client.session))
    finally:
        await presence_client.disconnect()
        await peer_clients.close()

    assert alive.stream_alive
    assert same.stream_alive
    # Two clocks are read, one after the other.
    assert began_ms - 50 <= alive.last_message_ms <= SystemClock().now_ms() + 50
    assert later == nobody == pb.ProbeReply()
    assert not cut_off.stream_alive
    assert cut_off.last_message_ms > 0


async def test_nobody_probes_without_the_token(node: Node) -> None:
    peer = PresenceNode(node_id="node.1", incarnation=0, peer_endpoint=node.peer_target)

    with pytest.raises(PeerError, match="unauthenticated"):
        await answer(PeerClients("a guess"), peer)
