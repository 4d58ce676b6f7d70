"""Self-test of `waystation doctor`: one notification through a running server.

Subscribes, sends, receives, acks and unsubscribes over the public addresses, as Firefox and an app
server do.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from waystation.base.errors import WaystationError
from waystation.client.appserver import AppServer
from waystation.client.http import HttpClient, HttpError
from waystation.client.push import UserAgent
from waystation.client.vapid import VapidKey, origin_of

from .doctor import SELF_TEST_TIMEOUT_S, Finding, Verdict

TEXT = b"waystation doctor was here"


async def check_server(connect_url: str, endpoint_url: str) -> AsyncIterator[Finding]:
    """Findings about the endpoint first, then about one notification."""
    if endpoint_url:
        yield await _check_endpoint(endpoint_url)
    if not connect_url:
        return
    try:
        async with asyncio.timeout(SELF_TEST_TIMEOUT_S):
            yield await _walk(connect_url, endpoint_url)
    except TimeoutError:
        yield Finding(
            Verdict.FAIL,
            "self-test",
            f"no notification arrived within {SELF_TEST_TIMEOUT_S:.0f} s",
            "see the server's log; if a proxy is in front, it must pass WebSocket upgrades",
        )
    except (WaystationError, OSError) as exc:
        yield Finding(
            Verdict.FAIL,
            "self-test",
            str(exc) or type(exc).__name__,
            _advice(exc, f"is {connect_url} where user agents reach the server?"),
        )


async def _check_endpoint(endpoint_url: str) -> Finding:
    host = urlsplit(endpoint_url).netloc
    try:
        async with HttpClient(timeout_s=SELF_TEST_TIMEOUT_S) as http:
            answer = await http.request("GET", f"{endpoint_url}/__lbheartbeat__")
    except (HttpError, OSError) as exc:
        return Finding(
            Verdict.FAIL,
            "endpoint",
            f"{endpoint_url} cannot be reached from here: {exc}",
            _advice(
                exc,
                f"endpoint.url is what senders post to: check DNS, proxy and firewall for {host}",
            ),
        )
    if answer.status != 200:
        return Finding(
            Verdict.FAIL,
            "endpoint",
            f"{endpoint_url}/__lbheartbeat__ answers {answer.status}",
            "the proxy in front must pass every path unchanged",
        )
    return Finding(
        Verdict.OK, "endpoint", f"{endpoint_url} answers; VAPID aud is {origin_of(endpoint_url)}"
    )


def _advice(problem: Exception, usual: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" not in str(problem):
        return usual
    return "browsers and senders must trust the certificate; for a private CA: SSL_CERT_FILE=FILE"


async def _walk(connect_url: str, endpoint_url: str) -> Finding:
    vapid = VapidKey.generate()
    async with UserAgent(connect_url) as agent, AppServer(vapid) as app_server:
        await agent.connected(SELF_TEST_TIMEOUT_S / 2)  # raises the agent's own reason first
        subscription = await agent.subscribe(vapid.public_text)
        minted = origin_of(subscription.endpoint)
        began = time.monotonic()
        await app_server.send(subscription.endpoint, subscription.public_keys, TEXT, ttl_s=60)
        received = await agent.receive()
        took_ms = (time.monotonic() - began) * 1000
        await agent.unsubscribe(subscription.channel_id)
    if received.payload != TEXT:
        return Finding(
            Verdict.FAIL, "self-test", "the received text differs", "report this as a bug"
        )
    if endpoint_url and minted != origin_of(endpoint_url):
        return Finding(
            Verdict.WARN,
            "self-test",
            f"endpoints are minted for {minted}, but endpoint.url is {endpoint_url}",
            "restart the server so that both roles have the same settings",
        )
    return Finding(
        Verdict.OK, "self-test", f"subscribed, sent, received, acked in {took_ms:.0f} ms"
    )
