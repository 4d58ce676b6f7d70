"""App servers written by others, each through to a user agent that decrypts what they sent.

Decrypted with `http_ece`, by keys of the test's own: our library has no part in it.
"""

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import http_ece
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from py_vapid import Vapid02
from pywebpush import WebPushException, webpush, webpush_async
from requests import Response

from tests.authority import issue
from tests.e2e.platform import Serve
from tests.e2e.wire_clients import Message, UserAgent, Vapid, b64url, from_b64url

pytestmark = pytest.mark.e2e

SENDERS = Path(__file__).parent / "senders"
SUBJECT = "mailto:ops@example.org"
TEXT = "Grüße an alle, die unterwegs sind 🚉"
ENCODINGS = ["aes128gcm", "aesgcm"]


class Receiver:
    """The keys of one subscription, as a browser keeps them."""

    def __init__(self) -> None:
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._auth = os.urandom(16)
        self.public = self._private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )

    def subscription(self, endpoint: str) -> dict[str, Any]:
        return {
            "endpoint": endpoint,
            "expirationTime": None,
            "keys": {"p256dh": b64url(self.public), "auth": b64url(self._auth)},
        }

    def decrypt(self, message: Message) -> str:
        headers = message["headers"]
        salt = dh = None
        if headers["encoding"] == "aesgcm":
            salt = from_b64url(item(headers["encryption"], "salt"))
            dh = from_b64url(item(headers["crypto_key"], "dh"))
        return http_ece.decrypt(
            from_b64url(message["data"]),
            salt=salt,
            dh=dh,
            private_key=self._private,
            auth_secret=self._auth,
            version=headers["encoding"],
        ).decode()


def item(header: str, name: str) -> str:
    """A value of `a=1;b=2,c=3`."""
    pairs = (part.partition("=") for part in header.replace(";", ",").split(","))
    return next(value for key, _, value in pairs if key.strip() == name)


class Secure(NamedTuple):
    """A server with TLS on its public ports, and whom to trust for that."""

    server: Serve
    ca: Path
    trust: ssl.SSLContext


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """npm's senders post to https only."""
    made = issue(tmp_path_factory.mktemp("authority"))
    with Serve(
        tmp_path_factory.mktemp("secure"), workers=2, tls__cert=made.cert, tls__key=made.key
    ) as server:
        yield Secure(server, made.ca, ssl.create_default_context(cafile=str(made.ca)))


def by_node(secure: Secure, sender: str, vapid: Vapid, **fields: Any) -> dict[str, Any]:
    numbers = vapid.private.private_numbers()
    secret = b64url(numbers.private_value.to_bytes(32, "big"))
    jwk = {
        "kty": "EC",
        "crv": "P-256",
        "x": b64url(numbers.public_numbers.x.to_bytes(32, "big")),
        "y": b64url(numbers.public_numbers.y.to_bytes(32, "big")),
        "d": secret,
    }
    order = {
        "sender": sender,
        "text": TEXT,
        "vapid": {
            "subject": SUBJECT,
            "publicKey": vapid.key,
            "privateKey": secret,
            **({"jwk": jwk} if sender == "@pushforge/builder" else {}),
        },
        "encoding": "aes128gcm",
        "ttl": 600,
        **fields,
    }
    done = subprocess.run(
        ["node", "send.mjs", json.dumps(order)],
        cwd=SENDERS,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(secure.ca)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("stored", [False, True])
async def test_pywebpush(server: Serve, encoding: str, stored: bool) -> None:
    sender, receiver = Vapid(), Receiver()
    async with UserAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(key=sender.key)
        if stored:
            await agent.leave()
        answer = await asyncio.to_thread(
            webpush,
            receiver.subscription(endpoint),
            TEXT,
            vapid_private_key=Vapid02(sender.private),
            vapid_claims={"sub": SUBJECT},
            content_encoding=encoding,
            ttl=600 if stored else 0,  # its default is 0
        )
        if stored:
            await agent.connect()
        message = await agent.notification(ack=True)

        assert isinstance(answer, Response)
        assert answer.status_code == 201
        assert answer.headers["Location"].endswith(message["version"])
        assert message["headers"]["encoding"] == encoding
        assert receiver.decrypt(message) == TEXT


async def test_pywebpush_in_its_asynchronous_form(server: Serve) -> None:
    sender, receiver = Vapid(), Receiver()
    async with UserAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(key=sender.key)
        await webpush_async(
            receiver.subscription(endpoint),
            TEXT,
            vapid_private_key=Vapid02(sender.private),
            vapid_claims={"sub": SUBJECT},
        )

        assert receiver.decrypt(await agent.notification(ack=True)) == TEXT


async def test_pywebpush_is_told_why_it_was_refused(server: Serve) -> None:
    """With another key than the one that was subscribed with"""
    receiver = Receiver()
    async with UserAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(key=Vapid().key)
        with pytest.raises(WebPushException, match="VAPID public key mismatch") as refused:
            await asyncio.to_thread(
                webpush,
                receiver.subscription(endpoint),
                TEXT,
                vapid_private_key=Vapid02(Vapid().private),
                vapid_claims={"sub": SUBJECT},
            )

        assert refused.value.response is not None
        assert refused.value.response.status_code == 401


@pytest.mark.node
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_web_push(secure: Secure, encoding: str) -> None:
    """With aesgcm it signs the way of the drafts: `WebPush`, and its key in Crypto-Key."""
    sender, receiver = Vapid(), Receiver()
    async with UserAgent(secure.server.ws_url, tls=secure.trust) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(key=sender.key)
        answer = await asyncio.to_thread(
            by_node,
            secure,
            "web-push",
            sender,
            subscription=receiver.subscription(endpoint),
            encoding=encoding,
            ttl=None,  # its default is 28 days
        )
        message = await agent.notification(ack=True)

        scheme = "vapid " if encoding == "aes128gcm" else "WebPush "
        assert endpoint.startswith("https://")
        assert answer["status"] == 201
        assert answer["location"].endswith(message["version"])
        assert answer["sent"]["ttl"] == "2419200"
        assert answer["sent"]["authorization"].startswith(scheme)
        assert message["headers"]["encoding"] == encoding
        assert receiver.decrypt(message) == TEXT


@pytest.mark.node
@pytest.mark.parametrize("package", ["@pushforge/builder", "@block65/webcrypto-web-push"])
async def test_builders_of_requests(secure: Secure, package: str) -> None:
    """They make the request and leave the sending to `fetch`; the text arrives as JSON."""
    sender, receiver = Vapid(), Receiver()
    async with UserAgent(secure.server.ws_url, tls=secure.trust) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(key=sender.key)
        await agent.leave()
        answer = await asyncio.to_thread(
            by_node, secure, package, sender, subscription=receiver.subscription(endpoint)
        )
        await agent.connect()
        message = await agent.notification(ack=True)

        assert answer["status"] == 201
        assert answer["location"].endswith(message["version"])
        assert answer["sent"]["ttl"] == "600"
        assert message["headers"]["encoding"] == answer["sent"]["content-encoding"]
        assert receiver.decrypt(message) in (TEXT, json.dumps(TEXT, ensure_ascii=False))


async def test_a_user_agent_without_trust_does_not_connect(secure: Secure) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await UserAgent(secure.server.ws_url, tls=ssl.create_default_context()).open()
