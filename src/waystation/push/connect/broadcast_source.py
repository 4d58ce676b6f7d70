"""Polls the source of broadcasts: a Megaphone server, or the broadcasts published in the store.

Rule 1: a source that fails changes nothing. The node keeps its versions, counts the error and polls
        again after the interval. A failing source does not prevent the start of a node.
Rule 2: an answer is `{"broadcasts": {id: version, ...}}` within the limits, or is rejected whole.
"""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http.client import HTTPException
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from waystation.base.errors import WaystationError
from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.store import PushStore, published_broadcasts

ANSWER_BYTES_MAX = 1_048_576
TIMEOUT_S = 10.0

Source = Callable[[], Awaitable[Mapping[str, str]]]


class Answer(msgspec.Struct):
    broadcasts: Annotated[dict[str, str], msgspec.Meta(max_length=10_000)]


_decoder = msgspec.json.Decoder(Answer)


def published_here(store: PushStore) -> Source:
    return partial(published_broadcasts, store)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; sends the token only to the configured origin."""

    def redirect_request(  # noqa: PLR0917 urllib calls it so
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and _origin(newurl) != _origin(req.full_url):
            following.remove_header("Authorization")
        return following


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def megaphone(url: str, token: str = "") -> Source:
    """Polls with urllib in a thread: one GET per interval needs no asynchronous client."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"a Megaphone URL begins with http:// or https://, not {url[:16]!r}")
    headers = {"Authorization": token} if token else {}
    opener = urllib.request.build_opener(_Redirects)

    def read() -> bytes:
        # A new request each time: urllib stores followed redirects in the object.
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 the scheme is checked above
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as exc:
            exc.close()  # the exception holds the connection
            raise

    async def fetch() -> Mapping[str, str]:
        data = await asyncio.to_thread(read)
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f"the Megaphone answer is longer than {ANSWER_BYTES_MAX} bytes")
        return _decoder.decode(data).broadcasts

    return fetch


class BroadcastPoller:
    """Polls the source every `interval_s` and reports each result to `polled`."""

    def __init__(
        self,
        broadcasts: Broadcasts,
        source: Source,
        *,
        interval_s: float,
        polled: Callable[[Exception | None], None],
    ) -> None:
        self._broadcasts = broadcasts
        self._source = source
        self._interval_s = interval_s
        self._polled = polled

    async def poll(self) -> None:
        try:
            versions = await self._source()
        except (OSError, HTTPException, ValueError, msgspec.MsgspecError, WaystationError) as exc:
            self._polled(exc)
            return
        self._broadcasts.update(versions)
        self._polled(None)

    async def run(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(self._interval_s)
