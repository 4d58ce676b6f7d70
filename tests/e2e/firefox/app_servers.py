"""App servers written by others, pywebpush and npm's web-push, and what ours tell of a message."""

import asyncio
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from py_vapid import Vapid02
from pywebpush import webpush
from requests import Response, Session

from tests.e2e.wire_clients import Answer, Vapid, b64url, http, post

WEB_PUSH = Path(__file__).parent.parent / "senders" / "node_modules" / "web-push" / "src" / "cli.js"
SUBJECT = "mailto:ops@example.org"
SEND_TIMEOUT_S = 15.0

Subscription = Mapping[str, Any]  # what a page gets from toJSON()


class Sent(NamedTuple):
    status: int
    location: str

    @property
    def version(self) -> str:
        return self.location.rpartition("/m/")[2]


class AppServer:
    """A key pair, and pywebpush."""

    def __init__(self, *, ca: Path | None = None) -> None:
        self.vapid = Vapid()
        self._ca = ca
        self._tls = ssl.create_default_context(cafile=str(ca)) if ca else None

    def send(
        self,
        subscription: Subscription,
        text: str,
        *,
        encoding: str = "aes128gcm",
        topic: str | None = None,
        ttl: int = 300,
    ) -> Sent:
        with Session() as session:
            session.trust_env = False
            session.verify = str(self._ca) if self._ca else True
            answer = webpush(
                dict(subscription),
                text,
                vapid_private_key=Vapid02(self.vapid.private),
                vapid_claims={"sub": SUBJECT},
                content_encoding=encoding,
                ttl=ttl,
                headers={"Topic": topic} if topic else None,
                timeout=SEND_TIMEOUT_S,
                requests_session=session,
            )
        assert isinstance(answer, Response)
        return Sent(answer.status_code, answer.headers.get("Location", ""))

    def post(self, subscription: Subscription, body: bytes, **options: Any) -> Answer:
        """Any bytes, encrypted or not."""
        return asyncio.run(post(subscription["endpoint"], body, vapid=self.vapid, **options))

    def state(self, sent: Sent) -> str:
        """What became of it: the last milestone."""
        url = f"{sent.location}/status"
        answer = asyncio.run(http("GET", url, self.vapid.vapid(sent.location), tls=self._tls))
        return answer.json["state"] if answer.status == 200 else f"{answer.status}"


class NodeAppServer:
    """npm's web-push; it posts to https only."""

    def __init__(self, ca: Path) -> None:
        self.vapid = Vapid()
        self._ca = ca

    def send(
        self, subscription: Subscription, text: str, *, encoding: str = "aes128gcm"
    ) -> subprocess.CompletedProcess[str]:
        secret = self.vapid.private.private_numbers().private_value.to_bytes(32, "big")
        return subprocess.run(
            [
                "node",
                str(WEB_PUSH),
                "send-notification",
                f"--endpoint={subscription['endpoint']}",
                f"--key={subscription['keys']['p256dh']}",
                f"--auth={subscription['keys']['auth']}",
                f"--vapid-subject={SUBJECT}",
                f"--vapid-pubkey={self.vapid.key}",
                f"--vapid-pvtkey={b64url(secret)}",
                f"--payload={text}",
                f"--encoding={encoding}",
            ],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "NODE_EXTRA_CA_CERTS": str(self._ca)},
            capture_output=True,
            text=True,
            timeout=SEND_TIMEOUT_S,
            check=False,
        )
