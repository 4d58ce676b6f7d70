"""The servers of parties that are measured: bare gRPC, and ours."""

import contextlib
import datetime
import ipaddress
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from .process_tree import Usage, usage

KINDS = ("bare", "ours")
_ROOT = Path(__file__).resolve().parents[1]
# No limit of ours may be what is measured.
UNLIMITED = {
    "RATE_PER_S": "1e9",
    "RATE_BURST": "1000000000",
    "JOIN_RATE_PER_MIN": "1e9",
    "JOIN_BURST": "1000000000",
    "SIGNAL_ENABLED": "true",
    "MAX_INFLIGHT": "100000",
}


class PartyServer(msgspec.Struct, frozen=True):
    kind: str
    port: int
    pid: int
    tls: ssl.SSLContext | None = None
    count: Callable[[Iterable[int]], Usage] = usage

    def look(self) -> Usage:
        return self.count((self.pid,))


class Certificate:
    """For as long as the measurement."""

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        signed = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.cert.write_bytes(signed.public_bytes(Encoding.PEM))
        self.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.cert))
        context.set_alpn_protocols(["h2"])
        return context


@contextlib.contextmanager
def party_server(kind: str, *, tls: bool = False, store: str = "memory:") -> Iterator[PartyServer]:
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as where:
        certificate = Certificate(Path(where)) if tls else None
        port = 0
        env = dict(os.environ)
        if kind == "bare":
            files = [str(certificate.cert), str(certificate.key)] if certificate else []
            command = [sys.executable, "-m", "benchmarks.presence_bare", *files]
        else:
            port = _free_port()
            command = [sys.executable, "-m", "benchmarks.presence_node"]
            settings = {
                "DATA_DIR": str(Path(where) / "data"),
                "LOG__LEVEL": "warning",
                "PRESENCE__STORE": store,
                "PRESENCE__PORT": str(port),
                "PRESENCE__PEER_PORT": "0",
                "PRESENCE__OPS_PORT": "0",
                **{f"PRESENCE__{name}": value for name, value in UNLIMITED.items()},
            }
            if certificate:
                settings |= {"TLS__CERT": str(certificate.cert), "TLS__KEY": str(certificate.key)}
            env |= {f"WAYSTATION_{name}": value for name, value in settings.items()}
        child = subprocess.Popen(command, cwd=_ROOT, env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            line = child.stdout.readline().strip()
            assert line, f"{kind} did not start"
            context = None if certificate is None else certificate.client()
            yield PartyServer(kind, port or int(line), child.pid, context)
        finally:
            child.kill()
            child.communicate()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
