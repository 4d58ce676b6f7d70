"""Addresses of servers and queues, and short links, as `smp://…` text.

Rule 1: a server is identified by the fingerprint of its identity certificate; its hosts only say
        where to connect.
Rule 2: the part after `#` is never sent to a server, so keys are written there.
"""

import re
from typing import cast
from urllib.parse import parse_qs, quote, urlencode

import msgspec

from waystation.base.errors import RejectedError

from .commands import Mode
from .encoding import BadBytesError, from_base64, to_base64
from .hello import FINGERPRINT_BYTES
from .keys import PublicKey, dh_key

DEFAULT_PORT = 5223
CLIENT_VERSIONS = "1-4"  # of the client-to-client protocol inside messages
_SERVER = re.compile(
    r"smp://(?P<print>[A-Za-z0-9_\-]+=*)(?::(?P<password>[^@:/\s]+))?@(?P<where>[^/#\s]+)/?"
)
_HOST = re.compile(r"[A-Za-z0-9._\-]+|\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f:.]+")
_PASSWORD = re.compile(r"[!-~]+")


class AddressError(RejectedError):
    """The text is not an address of a server or of a queue."""

    label = "queue_address"


class ServerAddress(msgspec.Struct, frozen=True):
    fingerprint: bytes
    hosts: tuple[str, ...]
    port: int = DEFAULT_PORT
    password: str = ""  # that a server may require for new queues

    @classmethod
    def parse(cls, text: str) -> "ServerAddress":
        address, rest = _split(text.strip())
        if rest:
            raise AddressError("this is the address of a queue; a server's ends after its port")
        return address

    def __str__(self) -> str:
        password = f":{self.password}" if self.password else ""
        return self._with(password)

    @property
    def without_password(self) -> str:
        """The address without the password, which allows creating queues."""
        return self._with("")

    def _with(self, password: str) -> str:
        hosts = ",".join(self.hosts)
        port = "" if self.port == DEFAULT_PORT else f":{self.port}"
        return f"smp://{to_base64(self.fingerprint)}{password}@{hosts}{port}"


class QueueAddress(msgspec.Struct, frozen=True):
    """The address that a recipient gives to a sender."""

    server: ServerAddress
    sender_id: bytes
    dh: PublicKey  # X25519: the server cannot read what it seals
    mode: Mode | None = None

    @classmethod
    def parse(cls, text: str) -> "QueueAddress":
        server, rest = _split(text.strip())
        path, _, fragment = rest.partition("#")
        try:
            sender_id = from_base64(path)
            fields = parse_qs(fragment.removeprefix("/").removeprefix("?"), max_num_fields=16)
            dh = PublicKey("x25519", dh_key(from_base64(fields["dh"][0])))
        except (BadBytesError, KeyError, ValueError) as exc:
            raise AddressError(
                "a queue's address is smp://FINGERPRINT@HOST/SENDER_ID#/?v=…&dh=…"
            ) from exc
        if not sender_id:
            raise AddressError("this is the address of a server, without the sender id of a queue")
        mode = {"m": "M", "c": "C"}.get(fields.get("q", [""])[0])
        if mode is None and fields.get("k", [""])[0] == "s":
            mode = "M"  # addresses from before queues had modes
        return cls(server, sender_id, dh, cast("Mode | None", mode))

    def __str__(self) -> str:
        fields = {"v": CLIENT_VERSIONS, "dh": to_base64(self.dh.der)}
        if self.mode is not None:
            fields["q"] = self.mode.lower()
        sender_id = quote(to_base64(self.sender_id), safe="=")
        return f"{self.server.without_password}/{sender_id}#/?{urlencode(fields)}"


class LinkAddress(msgspec.Struct, frozen=True):
    """A short link: the id of an encrypted address on the server, and its key. A contact's id
    follows from the key, so it is not written."""

    server: ServerAddress
    link_key: bytes
    link_id: bytes = b""  # empty: a contact's

    @property
    def contact(self) -> bool:
        return not self.link_id

    @classmethod
    def parse(cls, text: str) -> "LinkAddress":
        server, rest = _split(text.strip())
        kind, _, fragment = rest.partition("#")
        first, _, second = fragment.partition("/")
        try:
            if kind == "i" and first and second:
                return cls(server, _key(second), from_base64(first))
            if kind == "c" and first and not second:
                return cls(server, _key(first))
        except BadBytesError as exc:
            raise AddressError("the key of this short link is damaged") from exc
        raise AddressError("a short link is smp://FINGERPRINT@HOST/i#ID/KEY or …/c#KEY")

    def __str__(self) -> str:
        key = to_base64(self.link_key).rstrip("=")
        server = self.server.without_password
        return (
            f"{server}/c#{key}" if self.contact else f"{server}/i#{to_base64(self.link_id)}/{key}"
        )


def is_link(text: str) -> bool:
    return re.match(r"smp://[^/]+/[ic]#", text.strip()) is not None


def _key(text: str) -> bytes:
    key = from_base64(text)
    if len(key) != 32:
        raise BadBytesError("a link's key has 32 bytes")
    return key


def _split(text: str) -> tuple[ServerAddress, str]:
    """The server's address and the rest."""
    found = _SERVER.match(text)
    if found is None:
        raise AddressError("an address begins with smp://FINGERPRINT@HOST")
    try:
        fingerprint = from_base64(found["print"])
    except BadBytesError as exc:
        raise AddressError("the fingerprint in the address is not base64url") from exc
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise AddressError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
    password = found["password"] or ""
    if password and not _PASSWORD.fullmatch(password):
        raise AddressError("the password in the address has invalid characters")
    hosts, port = _hosts(found["where"])
    return ServerAddress(fingerprint, hosts, port, password), text[found.end() :]


def _hosts(where: str) -> tuple[tuple[str, ...], int]:
    *others, last = where.split(",")
    host, colon, port_text = last.rpartition(":")
    # A bare IPv6 address has colons of its own, and then there is no port.
    if not colon or (":" in host and not host.endswith("]")) or port_text.endswith("]"):
        host, port_text = last, ""
    hosts = (*others, host)
    if not all(map(_HOST.fullmatch, hosts)):
        raise AddressError("the address has no valid host")
    if host == last:
        return hosts, DEFAULT_PORT
    if not port_text.isascii() or not port_text.isdecimal() or not 0 < int(port_text) < 65_536:
        raise AddressError("the port in the address is not a number from 1 to 65535")
    return hosts, int(port_text)
