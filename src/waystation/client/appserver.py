"""An app server: encrypts, signs and posts notifications, and says plainly what became of them.

    async with AppServer(VapidKey.load_or_create(Path("vapid.pem"))) as app_server:
        receipt = await app_server.send(endpoint, keys, b"hello", ttl_s=3600)

Rule 1: what the push service answers becomes a `Receipt` or exactly one of four errors, by what the
        sender should do next: delete the subscription, mend the request, come back later, or look.
Rule 2: a post is repeated only when asked (`attempts`), only after Busy and Unavailable, and never
        sooner than the push service's Retry-After.
Rule 3: a token the push service refuses is signed anew next time, not remembered.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urljoin

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.errors import BusyError, GoneError, RejectedError, UnavailableError

from .encryption import Encoding, PublicKeys, encrypt
from .http import HttpClient, Response
from .vapid import VapidKey, VapidSigner

Urgency = Literal["very-low", "low", "normal", "high"]


class _Answered(msgspec.Struct, frozen=True):
    """What an error answer said."""

    status: int
    errno: int | None
    message: str


class PostGoneError(GoneError):
    """404 or 410: delete the subscription and never use it again."""

    label = "post_gone"

    def __init__(self, answer: _Answered) -> None:
        super().__init__(_describe(answer))
        self.status = answer.status
        self.errno = answer.errno


class PostRejectedError(RejectedError):
    """Another 4xx: the request must be mended first."""

    label = "post_rejected"

    def __init__(self, answer: _Answered) -> None:
        super().__init__(_describe(answer))
        self.status = answer.status
        self.errno = answer.errno


class PostBusyError(BusyError):
    """429, 502 or 503: the same post may succeed later."""

    label = "post_busy"

    def __init__(self, answer: _Answered, *, retry_after_s: float | None) -> None:
        super().__init__(_describe(answer), retry_after_s=retry_after_s)
        self.status = answer.status
        self.errno = answer.errno


class PostFailedError(UnavailableError):
    """Any other answer; the push service has a problem of its own."""

    label = "post_failed"

    def __init__(self, answer: _Answered) -> None:
        super().__init__(_describe(answer))
        self.status = answer.status
        self.errno = answer.errno


class Receipt(msgspec.Struct, frozen=True):
    """The push service has taken a notification and will keep it for `ttl_s`."""

    status: int
    location: str  # the message's own URL: delete it, ask for its status
    ttl_s: int | None


class AppServer:
    def __init__(
        self,
        vapid: VapidKey | VapidSigner | None = None,
        *,
        http: HttpClient | None = None,
        subject: str = "",
        backoff_base_s: float = 0.5,
        backoff_max_s: float = 60.0,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """Without `vapid` nothing is signed; endpoints bound to a key will refuse that."""
        self._signer = VapidSigner(vapid, subject=subject) if isinstance(vapid, VapidKey) else vapid
        self._http = http or HttpClient()
        self._backoff_base_s = backoff_base_s
        self._backoff_max_s = backoff_max_s
        self._rng = rng or random.Random()
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    async def send(
        self,
        endpoint_url: str,
        keys: PublicKeys | None = None,
        payload: bytes | str = b"",
        *,
        ttl_s: int,
        topic: str | None = None,
        urgency: Urgency | None = None,
        encoding: Encoding = "aes128gcm",
        attempts: int = 1,
    ) -> Receipt:
        """An empty payload needs no keys: the user agent learns only that something happened."""
        assert attempts >= 1
        text = payload.encode() if isinstance(payload, str) else payload
        headers = {"TTL": str(ttl_s)}
        if topic is not None:
            headers["Topic"] = topic
        if urgency is not None:
            headers["Urgency"] = urgency
        body = b""
        if text:
            if keys is None:
                raise ValueError("a payload needs the subscription's keys")
            # A CPU-bound millisecond at most; each attempt posts the same ciphertext.
            sealed = encrypt(text, keys, encoding=encoding)
            body = sealed.body
            headers |= sealed.headers
        for attempt in range(1, attempts + 1):
            try:
                return await self._post(endpoint_url, headers, body)
            except (BusyError, UnavailableError) as error:
                if attempt == attempts:
                    raise
                await self._sleep(self._pause_s(attempt, error))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def delete(self, location: str) -> None:
        """Withdraws a notification that is still stored; one already handed over stays there."""
        response = await self._http.request("DELETE", location)
        if response.status != 204:
            raise _error_of(response)

    async def status(self, location: str) -> dict[str, Any]:
        """What the push service tells about a message that we signed: its milestones so far."""
        response = await self._http.request(
            "GET", location + "/status", headers=self._authorization(location)
        )
        if response.status != 200:
            raise _error_of(response)
        try:
            return msgspec.json.decode(response.body, type=dict[str, Any])
        except DECODE_ERRORS as exc:
            raise PostFailedError(_Answered(200, None, "the status is not JSON")) from exc

    async def _post(self, endpoint_url: str, headers: dict[str, str], body: bytes) -> Receipt:
        response = await self._http.request(
            "POST", endpoint_url, headers=headers | self._authorization(endpoint_url), body=body
        )
        if not 200 <= response.status < 300:
            if response.status == 401 and self._signer is not None:
                self._signer.forget(endpoint_url)
            raise _error_of(response)
        ttl = response.headers.get("ttl", "")
        return Receipt(
            response.status,
            urljoin(endpoint_url, response.headers.get("location", "")),
            int(ttl) if ttl.isdecimal() else None,
        )

    def _authorization(self, url: str) -> dict[str, str]:
        return {} if self._signer is None else {"Authorization": self._signer.authorization(url)}

    def _pause_s(self, attempt: int, error: Exception) -> float:
        ceiling_s = min(self._backoff_base_s * 2 ** (attempt - 1), self._backoff_max_s)
        pause_s = self._rng.uniform(ceiling_s / 2, ceiling_s)
        if isinstance(error, BusyError) and error.retry_after_s is not None:
            return error.retry_after_s + pause_s  # jitter on top: others were told the same moment
        return pause_s


class _ErrorBody(msgspec.Struct):
    errno: int | None = None
    message: str = ""


def _error_of(
    response: Response,
) -> PostGoneError | PostRejectedError | PostBusyError | PostFailedError:
    try:
        body = msgspec.json.decode(response.body, type=_ErrorBody)
    except DECODE_ERRORS:
        body = _ErrorBody()  # a proxy in front may answer in its own words
    answer = _Answered(response.status, body.errno, body.message[:500])
    if response.status in {404, 410}:
        return PostGoneError(answer)
    if response.status in {429, 502, 503}:
        return PostBusyError(
            answer, retry_after_s=_retry_after_s(response.headers.get("retry-after", ""))
        )
    if 400 <= response.status < 500:
        return PostRejectedError(answer)
    return PostFailedError(answer)


def _retry_after_s(value: str) -> float | None:
    """Seconds or a date (RFC 9110 §10.2.3); anything else counts as absent."""
    if value.isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _describe(answer: _Answered) -> str:
    errno = "" if answer.errno is None else f", errno {answer.errno}"
    message = f": {answer.message}" if answer.message else ""
    return f"HTTP {answer.status}{errno}{message}"
