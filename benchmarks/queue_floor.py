"""The floor of the queue service: TLS that gives every block of 16 KiB back.

The same cipher suite, the same groups, a certificate of the same kind, and nothing but the block in
between: once on uvloop's TLS, once on the carrier of our queue server.
`python -m benchmarks.queue_floor uvloop|carrier` prints its port and serves.
"""

import asyncio
import contextlib
import select
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from waystation.client.queue.block import BLOCK_BYTES
from waystation.client.queue.tls import ALPN, environment
from waystation.queue.server.carrier import Carrier, Step

from .load import ROOT
from .queue_target import QueueTarget


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._waiting = bytearray()

    def data_received(self, data: bytes) -> None:
        if not self._waiting and len(data) == BLOCK_BYTES:
            self._transport.write(data)
            return
        self._waiting += data
        while len(self._waiting) >= BLOCK_BYTES:
            self._transport.write(bytes(self._waiting[:BLOCK_BYTES]))
            del self._waiting[:BLOCK_BYTES]


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = Ed448PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "floor")])
    today = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .sign(key, None)
    )
    chain_file, key_file = folder / "floor.crt", folder / "floor.key"
    chain_file.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return chain_file, key_file


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([ALPN])
    context.num_tickets = 0
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(*_certificate(Path(folder)))
    return context


async def _serve_uvloop() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0, ssl=_context())
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class _CarrierEcho:
    """One epoll for all, a reader of the loop, as our server has it."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._carriers: dict[int, Carrier] = {}
        self._shaking: set[int] = set()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._accept)
        loop.add_reader(self._epoll.fileno(), self._turn)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        carrier = Carrier(sock, self._context)
        self._carriers[carrier.fd] = carrier
        self._shaking.add(carrier.fd)
        self._epoll.register(carrier.fd, select.EPOLLIN)

    def _turn(self) -> None:
        for fd, _ in self._epoll.poll(0, 256):
            carrier = self._carriers[fd]
            try:
                if fd in self._shaking:
                    if carrier.shake() is Step.DONE:
                        self._shaking.discard(fd)
                elif not self._echo(carrier):
                    raise OSError
            except OSError:
                self._shaking.discard(fd)
                del self._carriers[fd]
                carrier.close()

    def _echo(self, carrier: Carrier) -> bool:
        """Whether the peer is still there. One block is under way, so it finds room at once."""
        while (block := carrier.read()) is not None:
            if not block:
                return False
            sent = carrier.write(block)
            assert sent == BLOCK_BYTES
            if not carrier.holds_more:
                break
        return True


async def _serve_carrier() -> None:
    print(_CarrierEcho(_context()).port, flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def queue_floor(kind: str) -> Iterator[QueueTarget]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.queue_floor", kind],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        port = int(child.stdout.readline())
        yield QueueTarget(f"127.0.0.1:{port}", (child.pid,))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def main() -> None:
    import uvloop

    serve = {"uvloop": _serve_uvloop, "carrier": _serve_carrier}[sys.argv[1]]
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        contextlib.suppress(KeyboardInterrupt),
    ):
        runner.run(serve())


if __name__ == "__main__":
    main()
