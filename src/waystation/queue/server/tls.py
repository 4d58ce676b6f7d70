"""TLS settings of the queue service's port (§2.1 to §2.3, §2.8).

`openssl.cnf` sets the suite and the groups (1.3, ChaCha20, X448 and X25519), because Python has no
call for them. `OPENSSL_CONF` must name it before the process starts.
"""

import ssl
from pathlib import Path
from typing import Final

from waystation.base.settings import SettingsError
from waystation.net.tls import Secure, Tls
from waystation.queue.identity import Identity

ALPN: Final = "smp/1"
OPENSSL_CONF: Final = Path(__file__).with_name("openssl.cnf")
_SUITE: Final = "TLS_CHACHA20_POLY1305_SHA256"


def tls_context(identity: Identity) -> ssl.SSLContext:
    """Raises `SettingsError` if OpenSSL runs without that configuration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    suites = [suite["name"] for suite in context.get_ciphers() if suite["protocol"] == "TLSv1.3"]
    if suites != [_SUITE]:
        raise SettingsError(
            [
                f"TLS of the queue service needs OPENSSL_CONF={OPENSSL_CONF} in the environment"
                " of its process; `waystation serve` sets it"
            ]
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a resumed session would have another session id (§2.3)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([ALPN])
    context.load_cert_chain(identity.chain_file, identity.key_file)
    return context


def queue_tls(identity: Identity, *, asks: bool) -> Tls:
    """`asks`: clients are asked for a certificate, for services (§2.8)."""
    context = tls_context(identity)  # also checks the configuration
    return asking_tls(identity) if asks else context


def asking_tls(identity: Identity) -> Secure:
    try:
        from waystation.net.openssl import asking  # noqa: PLC0415 few servers have this extra
    except ImportError as exc:
        raise SettingsError(
            ["queue.service_certificates: install the extra: pip install 'waystation[services]'"]
        ) from exc
    return asking(identity.chain_file, identity.key_file, protocol=ALPN, suite=_SUITE)
