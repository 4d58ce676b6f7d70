"""Membership of a cluster: a private CA, a certificate for each member, one token.

    keys/cluster/ca.crt          the CA that members trust
    keys/cluster/member.crt|key  this member's certificate; common name `node-7` or `edge-…`
    keys/cluster/member.json     its number, and the URL of the shared store

    keys/cluster/ca.key          where the cluster was made: for further tokens

Rule 1: a token holds the CA's key and the store's URL, so its holder can add members: keep it like
        a password. A token for edges also holds the identity that clients know, without its CA's
        key. Only the directory in which the cluster was made can make tokens.
Rule 2: a link is TLS 1.3 with certificates on both sides. A name that the map does not know is
        refused, whatever certificate it has.
"""

import base64
import datetime
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from waystation.base.settings import SettingsError
from waystation.queue.identity import pem, private_pem

from .slot_map import NOBODY, NodeId

FOLDER = "cluster"  # below keys/
ALPN = "smpc/1"
_LIFETIME = datetime.timedelta(days=36_500)
_SKEW = datetime.timedelta(days=1)
_TOKEN_MARK = "wsc1."
_CA_KEY = "ca.key"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """member.json"""

    node_id: NodeId  # NOBODY: an edge, which owns no slots
    name: str
    store_url: str


class Membership(msgspec.Struct, frozen=True):
    """A member and the directory of its certificates."""

    member: Member
    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "member.crt"


class Invitation(msgspec.Struct, frozen=True):
    """The contents of a token."""

    store_url: str
    ca_crt: bytes
    ca_key: bytes
    identity: Mapping[str, bytes] = {}  # for an edge: files of the address that clients know

    def token(self) -> str:
        return _TOKEN_MARK + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()


def read_token(token: str) -> Invitation:
    text = token.strip()
    try:
        if not text.startswith(_TOKEN_MARK):
            raise ValueError("it does not begin with " + _TOKEN_MARK)
        data = base64.urlsafe_b64decode(text.removeprefix(_TOKEN_MARK))
        return msgspec.msgpack.decode(data, type=Invitation)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise SettingsError([f"this is no token of a cluster: {exc}"]) from exc


def new_invitation(store_url: str) -> Invitation:
    """For a new cluster, with a new CA that is stored nowhere else."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Waystation cluster")])
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _builder(name, name, key).add_extension(constraints, critical=True)
    return Invitation(store_url, pem(certificate.sign(key, None)), private_pem(key))


def kept_invitation(membership: Membership) -> Invitation:
    """For a further member, from the directory in which the cluster was made."""
    ca_key = membership.directory / _CA_KEY
    try:
        ca_crt = (membership.directory / "ca.crt").read_bytes()
        return Invitation(membership.member.store_url, ca_crt, ca_key.read_bytes())
    except FileNotFoundError:
        raise SettingsError(
            [
                f"{ca_key} is missing, so this directory cannot make tokens. Run this in the data"
                " directory of `waystation cluster init`. For a cluster that is older than that"
                " file, use the token that `cluster init` printed"
            ]
        ) from None
    except OSError as exc:
        raise SettingsError([f"{ca_key} cannot be read: {exc.strerror}"]) from exc


def enrol(
    keys: Path,
    invitation: Invitation,
    *,
    node_id: NodeId,
    name: str = "",
    keeps_ca: bool = False,
) -> Membership:
    """Issues and writes this member's certificate; refused if there is one."""
    directory = keys / FOLDER
    if (directory / "member.json").exists():
        raise SettingsError(
            [f"{directory} belongs to a member already; leave that cluster first, or use another"]
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca = x509.load_pem_x509_certificate(invitation.ca_crt)
    ca_key = serialization.load_pem_private_key(invitation.ca_key, None)
    assert isinstance(ca_key, Ed25519PrivateKey)
    key = Ed25519PrivateKey.generate()
    member = Member(
        node_id=node_id,
        name=name or (f"node-{node_id}" if node_id != NOBODY else f"edge-{os.urandom(4).hex()}"),
        store_url=invitation.store_url,
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, member.name)])
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    builder = _builder(subject, ca.subject, key).add_extension(constraints, critical=True)
    _write(directory / "ca.crt", invitation.ca_crt)
    if keeps_ca:
        _write(directory / _CA_KEY, invitation.ca_key)
    _write(directory / "member.key", private_pem(key))
    _write(directory / "member.crt", pem(builder.sign(ca_key, None)))
    _write(directory / "member.json", msgspec.json.encode(member))
    return Membership(member, directory)


def load_membership(keys: Path) -> Membership | None:
    """None: this data directory is in no cluster."""
    path = keys / FOLDER / "member.json"
    if not path.exists():
        return None
    try:
        return Membership(msgspec.json.decode(path.read_bytes(), type=Member), path.parent)
    except (OSError, msgspec.MsgspecError) as exc:
        raise SettingsError([f"{path} cannot be read: {exc}"]) from exc


def required_membership(keys: Path) -> Membership:
    membership = load_membership(keys)
    if membership is None:
        raise SettingsError(
            [
                f"{keys.parent} is in no cluster: make one with `waystation cluster init`, or"
                " join one with `waystation cluster join --token-file FILE`"
            ]
        )
    return membership


def link_context(membership: Membership, *, server_side: bool) -> ssl.SSLContext:
    """For either end of a link."""
    purpose = ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # members are identified by the name in their certificate
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([ALPN])
    context.load_verify_locations(str(membership.directory / "ca.crt"))
    context.load_cert_chain(str(membership.certificate), str(membership.directory / "member.key"))
    return context


def name_of_peer(chain: Sequence[bytes]) -> str:
    """The common name in the peer's leaf certificate, which TLS has verified."""
    if not chain:
        return ""
    names = x509.load_der_x509_certificate(chain[0]).subject.get_attributes_for_oid(
        NameOID.COMMON_NAME
    )
    return str(names[0].value) if names else ""


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFETIME)
    )


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
