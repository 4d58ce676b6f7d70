"""TLS for SMP: version 1.3, one cipher suite, no certificate authorities, no host names.

The server is identified by the fingerprint in its address (see `hello`), so TLS itself checks no
certificate.

Rule 1: only TLS_CHACHA20_POLY1305_SHA256 is offered: a longer hash makes a longer session id, and
        then forwarded commands do not fit into a block. Python has no call for that before 3.15:
        the process must start with OPENSSL_CONF naming our `openssl.cnf` (see `environment`).
        Otherwise no context is made.
Rule 2: an application that cannot be started so may use `any_suite`, which offers OpenSSL's own
        list. Servers of the protocol choose the right suite from it; others are refused.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from waystation.base.errors import RejectedError

CONF = Path(__file__).with_name("openssl.cnf")
SUITE = "TLS_CHACHA20_POLY1305_SHA256"
ALPN = "smp/1"


class TlsNotSetUpError(RejectedError):
    """This process was started without the OpenSSL configuration that SMP needs."""

    label = "queue_tls"


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables for a process of a queue client."""
    return {**(os.environ if base is None else base), "OPENSSL_CONF": str(CONF)}


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # `hello` checks the fingerprint
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


def _offered(context: ssl.SSLContext) -> set[str]:
    return {
        str(cipher["name"]) for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.3"
    }


def is_set_up() -> bool:
    """Whether this process offers exactly what SMP allows."""
    return _offered(_new_context()) == {SUITE}


def client_context(*, any_suite: bool = False) -> ssl.SSLContext:
    context = _new_context()
    if not any_suite and _offered(context) != {SUITE}:
        raise TlsNotSetUpError(
            "this process would offer other cipher suites than SMP allows: start it with"
            f" OPENSSL_CONF={CONF} (waystation.client.queue.tls.environment), or use"
            " client_context(any_suite=True)"
        )
    return context
