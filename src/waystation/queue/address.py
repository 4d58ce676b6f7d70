"""The address of a queue server as text and as a QR code.

Separate from `identity`, because showing an address needs no cryptography.
"""

import io
from collections.abc import Sequence
from pathlib import Path

from .settings import Queue

DEFAULT_PORT = 5223
IDENTITY_FOLDER = "queue"  # below the keys of the data directory
FINGERPRINT_FILE = "fingerprint"


def server_address(fingerprint: str, hosts: Sequence[str], port: int, *, password: str = "") -> str:
    """`smp://fingerprint[:password]@host[,host][:port]`; the usual port is left out."""
    secret = f":{password}" if password else ""
    shown = ",".join(f"[{host}]" if ":" in host else host for host in hosts)
    suffix = "" if port == DEFAULT_PORT else f":{port}"
    return f"smp://{fingerprint}{secret}@{shown}{suffix}"


def own_address(keys: Path, settings: Queue, host: str) -> str:
    """Needs resolved settings and an existing identity. The password is left out, because
    addresses are public."""
    fingerprint = (keys / IDENTITY_FOLDER / FINGERPRINT_FILE).read_text().strip()
    port = settings.public_port or settings.port
    return server_address(fingerprint, own_hosts(settings.hosts, host), port)


def own_hosts(hosts: str, host: str) -> list[str]:
    """The host names in our address: `queue.hosts`, or the address we listen on."""
    given = [one.strip() for one in hosts.split(",") if one.strip()]
    if given:
        return given
    return ["127.0.0.1" if host in ("0.0.0.0", "") else "::1" if host == "::" else host]


def address_card(address: str) -> str:
    """The address and its QR code, for a terminal."""
    import segno  # noqa: PLC0415 needed only for terminals

    drawn = io.StringIO()
    segno.make(address, error="m").terminal(drawn, compact=True)
    return f"{address}\n{drawn.getvalue()}"
