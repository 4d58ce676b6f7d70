"""The app server client: receipts, typed errors, repeats, with a scripted HTTP client."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from waystation.base.errors import BusyError, GoneError, RejectedError, UnavailableError
from waystation.client.appserver import (
    AppServer,
    PostBusyError,
    PostFailedError,
    PostGoneError,
    PostRejectedError,
)
from waystation.client.encryption import AgentKeys, decrypt
from waystation.client.http import HttpClient, HttpError, Response
from waystation.client.vapid import VapidKey

ENDPOINT = "http://127.0.0.1:8082/wpush/v1/token"
KEYS = AgentKeys.generate()
CREATED = Response(201, {"location": "http://127.0.0.1:8082/m/id", "ttl": "60"}, b"")


class ScriptedHttp(HttpClient):
    def __init__(self, *answers: Response | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Response:
        self.requests.append((method, url, dict(headers or {}), body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def refusal(status: int, errno: int, message: str = "why", **headers: str) -> Response:
    body = f'{{"code":{status},"errno":{errno},"error":"E","message":"{message}"}}'
    return Response(status, dict(headers), body.encode())


async def test_a_post_is_encrypted_signed_and_answered_with_a_receipt() -> None:
    http = ScriptedHttp(CREATED)
    async with AppServer(VapidKey.generate(), http=http, subject="mailto:a@b.c") as app_server:
        receipt = await app_server.send(
            ENDPOINT, KEYS.public, "grüße", ttl_s=60, topic="Inbox", urgency="high"
        )

    assert receipt.location == "http://127.0.0.1:8082/m/id"
    assert (receipt.status, receipt.ttl_s) == (201, 60)
    ((method, url, headers, body),) = http.requests
    assert (method, url) == ("POST", ENDPOINT)
    assert (headers["TTL"], headers["Topic"], headers["Urgency"]) == ("60", "Inbox", "high")
    assert headers["Authorization"].startswith("vapid t=")
    assert decrypt(body, KEYS) == "grüße".encode()


async def test_the_older_encoding_brings_its_headers() -> None:
    http = ScriptedHttp(CREATED)
    async with AppServer(http=http) as app_server:
        await app_server.send(ENDPOINT, KEYS.public, b"x", ttl_s=0, encoding="aesgcm")

    _, _, headers, body = http.requests[0]
    assert headers["Content-Encoding"] == "aesgcm"
    assert "Authorization" not in headers
    opened = decrypt(
        body,
        KEYS,
        encoding="aesgcm",
        encryption=headers["Encryption"],
        crypto_key=headers["Crypto-Key"],
    )
    assert opened == b"x"


async def test_an_empty_payload_needs_no_keys_and_a_payload_does() -> None:
    http = ScriptedHttp(CREATED)
    async with AppServer(http=http) as app_server:
        await app_server.send(ENDPOINT, ttl_s=5)
        with pytest.raises(ValueError, match="keys"):
            await app_server.send(ENDPOINT, None, b"x", ttl_s=5)

    assert http.requests == [("POST", ENDPOINT, {"TTL": "5"}, b"")]


@pytest.mark.parametrize(
    "answer, error, branch",
    [
        (refusal(410, 106), PostGoneError, GoneError),
        (refusal(404, 102), PostGoneError, GoneError),
        (refusal(400, 111), PostRejectedError, RejectedError),
        (refusal(401, 109), PostRejectedError, RejectedError),
        (refusal(413, 104), PostRejectedError, RejectedError),
        (refusal(503, 201), PostBusyError, BusyError),
        (refusal(429, 201), PostBusyError, BusyError),
        (refusal(500, 999), PostFailedError, UnavailableError),
        (Response(301, {}, b""), PostFailedError, UnavailableError),
        (Response(400, {}, b"<html>"), PostRejectedError, RejectedError),
    ],
)
async def test_every_refusal_is_one_typed_error(
    answer: Response, error: type[PostRejectedError], branch: type[Exception]
) -> None:
    async with AppServer(http=ScriptedHttp(answer)) as app_server:
        with pytest.raises(error) as raised:
            await app_server.send(ENDPOINT, ttl_s=5)

    assert isinstance(raised.value, branch)
    assert raised.value.status == answer.status
    assert raised.value.errno == (None if answer.body in {b"", b"<html>"} else raised.value.errno)
    assert f"HTTP {answer.status}" in str(raised.value)


async def test_an_error_has_errno_and_message() -> None:
    async with AppServer(
        http=ScriptedHttp(refusal(410, 106, "No such subscription"))
    ) as app_server:
        with pytest.raises(
            PostGoneError, match="HTTP 410, errno 106: No such subscription"
        ) as gone:
            await app_server.send(ENDPOINT, ttl_s=5)

    assert gone.value.errno == 106


async def test_busy_is_repeated_when_asked_and_not_before_retry_after() -> None:
    busy = refusal(503, 201, **{"retry-after": "120"})
    http = ScriptedHttp(busy, HttpError("broken"), CREATED)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with AppServer(http=http, sleep=sleep, rng=random.Random(1)) as app_server:
        receipt = await app_server.send(ENDPOINT, KEYS.public, b"x", ttl_s=5, attempts=3)

    assert receipt.status == 201
    assert 120 <= pauses[0] <= 120.5
    assert 0.5 <= pauses[1] <= 1.0
    assert len({body for _, _, _, body in http.requests}) == 1


async def test_attempts_end_with_the_last_error() -> None:
    http = ScriptedHttp(refusal(503, 201), refusal(502, 902))

    async def sleep(seconds: float) -> None:
        assert seconds > 0

    async with AppServer(http=http, sleep=sleep) as app_server:
        with pytest.raises(PostBusyError) as busy:
            await app_server.send(ENDPOINT, ttl_s=5, attempts=2)

    assert busy.value.status == 502


async def test_what_is_gone_or_rejected_is_never_repeated() -> None:
    http = ScriptedHttp(refusal(410, 106), CREATED)
    async with AppServer(http=http) as app_server:
        with pytest.raises(PostGoneError):
            await app_server.send(ENDPOINT, ttl_s=5, attempts=5)

    assert len(http.requests) == 1


@pytest.mark.parametrize(
    "value, low, high",
    [("7", 7, 7), ("in an hour", 3500, 3600), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0)],
)
async def test_retry_after_may_be_seconds_or_a_date(value: str, low: float, high: float) -> None:
    if value == "in an hour":
        value = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    http = ScriptedHttp(refusal(503, 201, **{"retry-after": value}))
    async with AppServer(http=http) as app_server:
        with pytest.raises(PostBusyError) as busy:
            await app_server.send(ENDPOINT, ttl_s=5)

    assert busy.value.retry_after_s is not None
    assert low <= busy.value.retry_after_s <= high


async def test_a_senseless_retry_after_counts_as_none() -> None:
    http = ScriptedHttp(refusal(503, 201, **{"retry-after": "soon"}))
    async with AppServer(http=http) as app_server:
        with pytest.raises(PostBusyError) as busy:
            await app_server.send(ENDPOINT, ttl_s=5)

    assert busy.value.retry_after_s is None


async def test_a_refused_token_is_not_used_again() -> None:
    http = ScriptedHttp(CREATED, refusal(401, 109), CREATED)
    async with AppServer(VapidKey.generate(), http=http) as app_server:
        await app_server.send(ENDPOINT, ttl_s=5)
        with pytest.raises(PostRejectedError):
            await app_server.send(ENDPOINT, ttl_s=5)
        await app_server.send(ENDPOINT, ttl_s=5)

    first, second, third = (headers["Authorization"] for _, _, headers, _ in http.requests)
    assert first == second != third


async def test_delete_withdraws_a_message() -> None:
    http = ScriptedHttp(Response(204, {}, b""), refusal(400, 0, "Invalid message ID"))
    async with AppServer(http=http) as app_server:
        await app_server.delete("http://127.0.0.1:8082/m/id")
        with pytest.raises(PostRejectedError):
            await app_server.delete("http://127.0.0.1:8082/m/bad")

    assert http.requests[0][:2] == ("DELETE", "http://127.0.0.1:8082/m/id")


async def test_status_is_asked_with_our_signature() -> None:
    http = ScriptedHttp(
        Response(200, {}, b'{"milestones":{"received":1}}'), Response(200, {}, b"x")
    )
    async with AppServer(VapidKey.generate(), http=http) as app_server:
        assert await app_server.status("http://127.0.0.1:8082/m/id") == {
            "milestones": {"received": 1}
        }
        with pytest.raises(PostFailedError):
            await app_server.status("http://127.0.0.1:8082/m/id")

    method, url, headers, _ = http.requests[0]
    assert (method, url) == ("GET", "http://127.0.0.1:8082/m/id/status")
    assert "Authorization" in headers
