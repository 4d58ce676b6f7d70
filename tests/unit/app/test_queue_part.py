"""How the queue service is put together, where a choice is made."""

import ssl
import sys
from pathlib import Path

import pytest

from waystation.app import queue_part
from waystation.base.settings import SettingsError
from waystation.queue.identity import ensure_identity
from waystation.queue.settings import Queue


def test_tls_asks_for_certificates_only_where_services_may_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = ensure_identity(tmp_path / "keys", host="here", algorithm="ed25519")
    usual = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setattr(queue_part, "tls_context", lambda _identity: usual)

    assert queue_part._tls(Queue(), identity) is usual
    assert callable(queue_part._tls(Queue(service_certificates=True), identity))
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    monkeypatch.delitem(sys.modules, "waystation.queue.server.asking_carrier", raising=False)
    with pytest.raises(SettingsError, match="services"):
        queue_part._tls(Queue(service_certificates=True), identity)
