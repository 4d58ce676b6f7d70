"""`waystation demo`: shows delivery, storage and crash recovery in the terminal.

Starts a private server in a temporary directory and measures each step. With `--url` it uses a
running server and omits the step that kills the server.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .listen import check_url
from .terminal import give_up

if TYPE_CHECKING:
    from rich.console import Console

    from waystation.client.appserver import Receipt
    from waystation.client.local_server import LocalServer
    from waystation.client.push import UserAgent
    from waystation.client.subscriptions import Subscription

WAIT_S = 15.0  # longer than anything here takes on a slow machine
TTL_S = 600


def demo(
    *,
    url: Annotated[
        str, typer.Option(help="Use this server (ws://…) instead of starting one.")
    ] = "",
) -> None:
    """Show delivery: subscribe, direct, stored, replaced, server killed, nothing lost."""
    from rich.console import Console

    from waystation.base.errors import WaystationError

    console = Console(highlight=False, soft_wrap=True)
    try:
        if url:
            check_url(url)
            asyncio.run(_walk(Walk(console, url)))
            return
        from waystation.client.local_server import LocalServer

        with tempfile.TemporaryDirectory(prefix="waystation-demo-") as directory:
            server = LocalServer(
                Path(directory) / "data",
                roles=("connect", "endpoint"),
                options=("--workers", "1"),
            )
            try:
                took_s = server.start()
                walk = Walk(console, server.ws_url, server)
                walk.tell("serve", f"a server of our own, ready after {_ms(took_s)}")
                asyncio.run(_walk(walk))
            finally:
                server.close()
    except (WaystationError, OSError, TimeoutError) as exc:
        give_up(f"the demonstration ended early: {exc or type(exc).__name__}")


async def _walk(walk: "Walk") -> None:
    async with walk.app_server:
        await subscribe(walk)
        await direct(walk)
        await stored(walk)
        await replaced(walk)
        if walk.server is not None:
            await killed(walk, walk.server)
    walk.console.print()
    walk.console.print("Every notification that was answered 201 arrived. Next: waystation serve")


class Walk:
    """State of the steps: user agent, app server, and output."""

    def __init__(self, console: "Console", url: str, server: "LocalServer | None" = None) -> None:
        from waystation.client.appserver import AppServer
        from waystation.client.subscriptions import AgentState
        from waystation.client.vapid import VapidKey

        self.console = console
        self.url = url
        self.server = server
        self.vapid = VapidKey.generate()
        self.app_server: AppServer = AppServer(self.vapid)
        self.state: AgentState = AgentState()

    def tell(self, step: str, text: str, *hops: tuple[str, float]) -> None:
        times = "   ".join(f"{name} [bold]{_ms(took_s)}[/]" for name, took_s in hops)
        self.console.print(f"[green]✓[/] {step:<10}{text}{'   ' if hops else ''}{times}")

    @property
    def subscription(self) -> "Subscription":
        return next(iter(self.state.subscriptions.values()))

    @contextlib.asynccontextmanager
    async def online(self, *, auto_ack: bool = True) -> "AsyncGenerator[UserAgent]":
        """The user agent after a restart: with its identity, without other state."""
        from waystation.client.push import UserAgent

        async with UserAgent(self.url, state=self.state, auto_ack=auto_ack) as agent:
            await agent.connected(WAIT_S)
            yield agent

    async def post(self, text: str, *, topic: str | None = None) -> "Receipt":
        return await self.app_server.send(
            self.subscription.endpoint,
            self.subscription.public_keys,
            text,
            ttl_s=TTL_S,
            topic=topic,
            attempts=3,
        )

    async def expect(self, agent: "UserAgent", texts: Sequence[str]) -> float:
        """Waits until exactly these have arrived, in any order; how long it took."""
        began = time.perf_counter()
        missing = list(texts)
        async with asyncio.timeout(WAIT_S):
            while missing:
                text = (await agent.receive()).text
                if text not in missing:
                    raise OSError(f"{text!r} arrived, which was not expected")
                missing.remove(text)
        return time.perf_counter() - began


async def subscribe(walk: Walk) -> None:
    from waystation.client.push import UserAgent

    began = time.perf_counter()
    async with UserAgent(walk.url, state=walk.state) as agent:
        await agent.connected(WAIT_S)
        hello_s = time.perf_counter() - began
        began = time.perf_counter()
        await agent.subscribe(walk.vapid.public_text)
        register_s = time.perf_counter() - began
    walk.tell(
        "subscribe",
        "a user agent gets an endpoint for one app server",
        ("connect and hello", hello_s),
        ("register", register_s),
    )


async def direct(walk: Walk) -> None:
    async with walk.online() as agent:
        await walk.post("warm up")  # the first post pays for signing and connecting
        await walk.expect(agent, ["warm up"])
        began = time.perf_counter()
        posting = asyncio.ensure_future(walk.post("direct"))
        await walk.expect(agent, ["direct"])
        received_s = time.perf_counter() - began
        await posting
        posted_s = time.perf_counter() - began
    walk.tell(
        "direct",
        "straight to the connected user agent",
        ("POST to 201", posted_s),
        ("POST to decrypted", received_s),
    )


async def stored(walk: Walk) -> None:
    texts = [f"stored {number}" for number in range(1, 4)]
    began = time.perf_counter()
    for text in texts:
        await walk.post(text)
    posted_s = (time.perf_counter() - began) / len(texts)
    began = time.perf_counter()
    async with walk.online() as agent:
        await walk.expect(agent, texts)
        caught_up_s = time.perf_counter() - began
    walk.tell(
        "stored",
        f"{len(texts)} while it is offline, each on disk before its 201",
        ("POST to 201", posted_s),
        ("connect to all decrypted", caught_up_s),
    )


async def replaced(walk: Walk) -> None:
    for text in ("score 1:0", "score 1:1", "score 2:1"):
        await walk.post(text, topic="score")
    async with walk.online() as agent:
        await walk.expect(agent, ["score 2:1"])
    walk.tell("replaced", "three with one topic while it is offline: only the last arrives")


async def killed(walk: Walk, server: "LocalServer") -> None:
    texts = [f"kept {number}" for number in range(1, 6)]
    for text in texts:
        await walk.post(text)
    async with walk.online(auto_ack=False) as agent:
        async with asyncio.timeout(WAIT_S):
            seen = {(await agent.receive()).text for _ in texts}
        # Delivered directly and not acked, so it is in the journal and not in the store.
        await walk.post("not acked")
        async with asyncio.timeout(WAIT_S):
            seen.add((await agent.receive()).text)
        await _in_thread(server.kill)
    started_s = await _in_thread(server.start)
    async with walk.online() as agent:
        caught_up_s = await walk.expect(agent, sorted(seen))
    walk.tell(
        "killed",
        f"kill -9 with {len(seen)} unacked: all come again",
        ("start", started_s),
        ("all decrypted", caught_up_s),
    )


async def _in_thread(call: "Callable[[], float | None]") -> float:
    return await asyncio.to_thread(call) or 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
