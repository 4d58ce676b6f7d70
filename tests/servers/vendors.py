"""Doubles of FCM and APNs: real HTTP/2 servers that verify what they get.

What is wrong with a request is a sentence in `complaints`; a test ends by looking that there are
none. `fault` may answer instead, for one request or for all.
"""

import abc
import base64
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.servers.http2_double import Asked, Fault, Handler, Http2Double, Said

FaultOf = Callable[[Asked], Said | tuple[Fault, Said] | Fault | None]
SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
PAYLOAD_BYTES_MAX = 4096


def pem_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class _Vendor(abc.ABC):
    def __init__(self, answer: Handler, *, streams_max: int = 100) -> None:
        self.complaints: list[str] = []
        self.gone: set[str] = set()  # device tokens that are unknown
        self.taken: list[tuple[str, dict[str, Any]]] = []  # device token, message
        self.fault: FaultOf = lambda _: None
        self.http = Http2Double(answer, streams_max=streams_max)

    @property
    def url(self) -> str:
        return self.http.url

    async def __aenter__(self) -> "Any":
        await self.http.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    def _take_unless_faulty(self, asked: Asked) -> Said | tuple[Fault, Said] | Fault:
        match self.fault(asked):
            case None:
                return self._take(asked)
            case (Fault.GOAWAY_AFTER, _):
                return (Fault.GOAWAY_AFTER, self._take(asked))
            case fault:
                return fault

    @abc.abstractmethod
    def _take(self, asked: Asked) -> Said:
        """Verifies a message, and answers as the vendor does."""

    def expect(self, holds: bool, complaint: str) -> None:
        if not holds:
            self.complaints.append(complaint)


class FcmDouble(_Vendor):
    """FCM and the token service of Google behind one address."""

    EMAIL = "sender@waystation-test.iam.gserviceaccount.com"

    def __init__(self, *, project_id: str = "test-project", streams_max: int = 100) -> None:
        super().__init__(self._answer, streams_max=streams_max)
        self.project_id = project_id
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.access_tokens: list[str] = []  # the newest is last
        self.token_lives_s = 3600
        self.token_fault: FaultOf = lambda _: None

    def credentials(self, *app_ids: str) -> str:
        """`fcm.credentials` for this double; without names, for the app `app`."""
        account = {
            "type": "service_account",
            "client_email": self.EMAIL,
            "private_key": pem_of(self.key),
            "token_uri": f"{self.url}/token",
        }
        credential = {"project_id": self.project_id, "credential": json.dumps(account)}
        return json.dumps(dict.fromkeys(app_ids or ("app",), credential))

    def _answer(self, asked: Asked) -> Said | tuple[Fault, Said] | Fault:
        if asked.path == "/token":
            return self.token_fault(asked) or self._token(asked)
        self.expect(asked.path == f"/v1/projects/{self.project_id}/messages:send", asked.path)
        given = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if not self.access_tokens or given != self.access_tokens[-1]:
            return Said.of(401, {"error": {"code": 401, "status": "UNAUTHENTICATED"}})
        return self._take_unless_faulty(asked)

    def _token(self, asked: Asked) -> Said:
        form = parse_qs(asked.body.decode())
        assertion = form["assertion"][0]
        grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        self.expect(form["grant_type"] == [grant], "grant_type")
        signed, _, signature = assertion.rpartition(".")
        head, claims = (json.loads(_unpadded(part)) for part in signed.split("."))
        try:
            self.key.public_key().verify(
                _unpadded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except InvalidSignature:
            self.complaints.append("the assertion's signature is wrong")
        now = time.time()
        self.expect(head["alg"] == "RS256", "alg")
        self.expect(claims["iss"] == self.EMAIL, "iss")
        self.expect(claims["scope"] == SCOPE, "scope")
        self.expect(claims["aud"] == f"{self.url}/token", "aud")
        self.expect(claims["exp"] - claims["iat"] <= 3600, "the assertion lives too long")
        self.expect(abs(now - claims["iat"]) < 60, "the assertion is old")
        self.access_tokens.append(f"access-{len(self.access_tokens)}")
        return Said.of(
            200, {"access_token": self.access_tokens[-1], "expires_in": self.token_lives_s}
        )

    def _take(self, asked: Asked) -> Said:
        body = json.loads(asked.body)
        message = body["message"]
        if body.get("validate_only"):
            return Said.of(200, {"name": "projects/test/messages/dry-run"})
        android = message["android"]
        seconds = android["ttl"].removesuffix("s")
        self.expect(asked.headers.get("content-type") == "application/json", "content-type")
        self.expect("notification" not in message, "a message that shows itself")
        self.expect(seconds.isdecimal() and 60 <= int(seconds) <= 2_419_200, f"ttl {seconds}")
        size = len(json.dumps(android["data"], separators=(",", ":")))
        self.expect(size <= PAYLOAD_BYTES_MAX, f"{size} bytes")
        self.expect(all(isinstance(v, str) for v in android["data"].values()), "not all strings")
        if message["token"] in self.gone:
            detail = {"errorCode": "UNREGISTERED"}
            return Said.of(
                404, {"error": {"code": 404, "status": "NOT_FOUND", "details": [detail]}}
            )
        self.taken.append((message["token"], android))
        name = f"projects/{self.project_id}/messages/{len(self.taken)}"
        return Said.of(200, {"name": name})


class ApnsDouble(_Vendor):
    TEAM_ID, KEY_ID = "TEAM000001", "KEY0000001"

    def __init__(self, *, topic: str = "com.mozilla.org.release", streams_max: int = 100) -> None:
        super().__init__(self._answer, streams_max=streams_max)
        self.topic = topic
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.proofs: set[str] = set()
        self.expired: set[str] = set()  # proofs that are refused as too old

    def channels(self, *names: str) -> str:
        """`apns.channels` for this double; without names, the channel `release`."""
        channel = {"key": pem_of(self.key), "key_id": self.KEY_ID, "team_id": self.TEAM_ID}
        return json.dumps({name: channel | {"topic": self.topic} for name in names or ("release",)})

    def _answer(self, asked: Asked) -> Said | tuple[Fault, Said] | Fault:
        proof = asked.headers.get("authorization", "").removeprefix("bearer ")
        if not self._proven(proof):
            return Said.of(403, {"reason": "InvalidProviderToken"})
        if proof in self.expired:
            return Said.of(403, {"reason": "ExpiredProviderToken"})
        return self._take_unless_faulty(asked)

    def _proven(self, proof: str) -> bool:
        self.proofs.add(proof)
        signed, _, signature = proof.rpartition(".")
        try:
            head, claims = (json.loads(_unpadded(part)) for part in signed.split("."))
            raw = _unpadded(signature)
            pair = (int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            self.key.public_key().verify(
                encode_dss_signature(*pair), signed.encode(), ec.ECDSA(hashes.SHA256())
            )
        except (ValueError, InvalidSignature):
            return False
        self.expect(head == {"alg": "ES256", "typ": "JWT", "kid": self.KEY_ID}, f"head {head}")
        self.expect(abs(time.time() - claims["iat"]) < 3600, "the provider token is old")
        return claims["iss"] == self.TEAM_ID

    def _take(self, asked: Asked) -> Said:
        head, payload = asked.headers, json.loads(asked.body)
        token = asked.path.removeprefix("/3/device/")
        self.expect(asked.path.startswith("/3/device/"), asked.path)
        if head.get("apns-topic") != self.topic:
            return Said.of(400, {"reason": "TopicDisallowed"})
        if set(token) == {"0"}:
            return Said.of(400, {"reason": "BadDeviceToken"})
        if token in self.gone:
            return Said.of(410, {"reason": "Unregistered", "timestamp": 1})
        if len(asked.body) > PAYLOAD_BYTES_MAX:
            return Said.of(413, {"reason": "PayloadTooLarge"})
        shows = "alert" in payload["aps"]
        self.expect(head["apns-push-type"] == ("alert" if shows else "background"), "push type")
        self.expect(head["apns-priority"] in (("10", "5") if shows else ("5",)), "priority")
        self.expect(head["apns-expiration"].isdecimal(), "expiration")
        self.expect(len(head.get("apns-collapse-id", "")) <= 64, "collapse id")
        self.taken.append((token, payload | {"headers": head}))
        return Said(200)
