"""Membership of a cluster: tokens, certificates, and refusals."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from waystation.base.settings import SettingsError
from waystation.queue.cluster.membership import (
    Membership,
    enrol,
    link_context,
    load_membership,
    name_of_peer,
    new_invitation,
    read_token,
)
from waystation.queue.cluster.slot_map import NOBODY, NodeId


def shown(link: ssl.SSLSocket) -> list[bytes]:
    certificate = link.getpeercert(binary_form=True)
    return [] if certificate is None else [certificate]


def meet(server: Membership, client: Membership) -> tuple[str, str]:
    """Names that both ends of a link learn of each other."""
    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def accept() -> None:
        context = link_context(server, server_side=True)
        with context.wrap_socket(theirs, server_side=True) as link:
            seen.append(name_of_peer(shown(link)))
            assert link.selected_alpn_protocol() == "smpc/1"
            link.sendall(b"x")

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with link_context(client, server_side=False).wrap_socket(ours) as link:
            assert link.version() == "TLSv1.3"
            assert link.recv(1) == b"x"
            return name_of_peer(shown(link)), seen[0]
    finally:
        thread.join(10)


def test_members_of_a_cluster_know_each_other_by_name(tmp_path: Path) -> None:
    invitation = new_invitation("embedded:./shared")
    token = invitation.token()
    server = enrol(tmp_path / "one", read_token(token), node_id=NodeId(7))
    edge = enrol(tmp_path / "two", read_token(token), node_id=NOBODY, name="edge-a")

    assert meet(server, edge) == ("node-7", "edge-a")
    assert load_membership(tmp_path / "one") == server
    assert server.member.store_url == "embedded:./shared"


def test_a_member_of_another_cluster_is_refused(tmp_path: Path) -> None:
    server = enrol(tmp_path / "one", new_invitation("memory:"), node_id=NodeId(1))
    stranger = enrol(tmp_path / "two", new_invitation("memory:"), node_id=NodeId(2))
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_serve_quietly, args=(server, theirs))
    thread.start()
    context = link_context(stranger, server_side=False)
    with ours, theirs:
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate|unknown ca"):
            context.wrap_socket(ours)
        thread.join(10)


def _serve_quietly(server: Membership, sock: socket.socket) -> None:
    try:
        link_context(server, server_side=True).wrap_socket(sock, server_side=True).close()
    except OSError:
        sock.close()


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    made = enrol(tmp_path, new_invitation("memory:"), node_id=NodeId(1))

    assert {path.stat().st_mode & 0o777 for path in made.directory.iterdir()} == {0o600}


def test_a_member_is_not_enrolled_over(tmp_path: Path) -> None:
    enrol(tmp_path, new_invitation("memory:"), node_id=NodeId(1))

    with pytest.raises(SettingsError, match="belongs to a member already"):
        enrol(tmp_path, new_invitation("memory:"), node_id=NodeId(2))


@pytest.mark.parametrize("token", ["", "wsc1.", "wsc1.AAAA", "wsc2.abc", "wsc1.%%%"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="no token of a cluster"):
        read_token(token)


def test_a_directory_without_a_member_is_in_no_cluster(tmp_path: Path) -> None:
    assert load_membership(tmp_path) is None
