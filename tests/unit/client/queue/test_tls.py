"""The cipher suites that a process offers, and the error without the configuration."""

import subprocess
import sys

import pytest

from waystation.client.queue import tls

PROGRAM = (
    "from waystation.client.queue import tls; c = tls.client_context();"
    "print(sorted(x['name'] for x in c.get_ciphers() if x['protocol'] == 'TLSv1.3'))"
)


def test_a_process_started_with_the_environment_offers_one_suite_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=tls.environment(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "['TLS_CHACHA20_POLY1305_SHA256']"


def test_a_process_without_the_openssl_configuration_gets_instructions() -> None:
    assert not tls.is_set_up()
    with pytest.raises(tls.TlsNotSetUpError, match="OPENSSL_CONF="):
        tls.client_context()


def test_an_application_may_offer_what_its_openssl_offers() -> None:
    context = tls.client_context(any_suite=True)

    assert tls.SUITE in tls._offered(context)
    assert context.minimum_version is tls.ssl.TLSVersion.TLSv1_3


def test_the_environment_keeps_what_was_there() -> None:
    assert tls.environment({"HOME": "/x", "OPENSSL_CONF": "/etc/ssl/openssl.cnf"}) == {
        "HOME": "/x",
        "OPENSSL_CONF": str(tls.CONF),
    }
