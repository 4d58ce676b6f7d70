"""`waystation listen`: a user agent in the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .running_server import DataDirOption, running_server
from .terminal import complain, give_up, harmless, pass_on, trusting

if TYPE_CHECKING:
    import ssl

    from waystation.client.push import UserAgent
    from waystation.client.push_session import Received
    from waystation.client.subscriptions import Subscription


FIRST_CONTACT_S = 5.0  # only for the first connection; later ones are retried without limit


def keep_dir() -> Path:
    """Where `listen` keeps its subscriptions and `send` its key."""
    return Path(typer.get_app_dir("waystation"))


def state_path(url: str) -> Path:
    """The state file of a server; one per URL, because a uaid is valid at one server only."""
    netloc = urlsplit(url).netloc
    name = "".join(c if c.isalnum() or c in ".-" else "-" for c in netloc)
    return keep_dir() / f"listen-{name}.json"


def _url_here(data_dir: Path | None) -> str:
    serving = running_server(data_dir)
    return (serving.connect_url if serving is not None else "") or "ws://127.0.0.1:8080"


def listen(
    *,
    url: Annotated[
        str, typer.Option(help="WebSocket URL of the server; default: that of this machine.")
    ] = "",
    data_dir: DataDirOption = None,
    state: Annotated[
        Path | None, typer.Option(help="File with identity and subscription, kept between runs.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=0, help="Notifications to receive before exit; 0: no limit.")
    ] = 0,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    key: Annotated[
        str, typer.Option(help="VAPID public key of the one app server that may send.")
    ] = "",
    vapid: Annotated[
        Path | None, typer.Option(help="File with that key, as for `send --vapid`.")
    ] = None,
    from_anybody: Annotated[
        bool, typer.Option("--from-anybody", help="Make an endpoint that every app server may use.")
    ] = False,
    ca: Annotated[Path | None, typer.Option(help="Trust this CA (PEM) for wss.")] = None,
) -> None:
    """Subscribe, print the endpoint, and print decrypted notifications.

    The endpoint is bound to the key that `waystation send` signs with on this machine, unless
    --key or --from-anybody say otherwise.
    """
    import asyncio

    from waystation.app.data_dir import Lock
    from waystation.base.errors import WaystationError
    from waystation.client.subscriptions import StateFile
    from waystation.client.vapid import VapidKey

    url = url or _url_here(data_dir)
    check_url(url)
    file = StateFile(state or state_path(url))
    try:
        # Two processes with one uaid would close each other's connections.
        file.path.parent.mkdir(parents=True, exist_ok=True)
        if (lock := Lock.take(file.path.with_name(f"{file.path.name}.lock"))) is None:
            give_up(
                f"another `waystation listen` is this user agent ({file.path});"
                " to be a second one, give --state FILE"
            )
        if not key and not from_anybody:
            key = VapidKey.load_or_create(vapid or keep_dir() / "vapid.pem").public_text
        out = _Json() if json_lines else _Plain(state=state, vapid=vapid, ca=ca)
        asyncio.run(_listen(url, file, key, count, out, tls=trusting(ca)))
        lock.release()
    except (WaystationError, OSError) as exc:
        give_up(str(exc))


def check_url(url: str) -> None:
    """Where user agents connect, as it was typed."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0:
            return
    except ValueError:
        pass
    give_up(f"{url} is not a ws:// or wss:// URL")


async def _listen(
    url: str,
    file: object,
    key: str,
    count: int,
    out: "_Plain | _Json",
    *,
    tls: "ssl.SSLContext | None",
) -> None:
    from collections.abc import Sequence

    from waystation.client.push import UserAgent
    from waystation.client.subscriptions import StateFile, Subscription

    assert isinstance(file, StateFile)

    async def on_lost(lost: Sequence[Subscription]) -> None:
        complain("the server has forgotten this user agent; subscribing again")
        out.subscribed(agent, await agent.subscribe(key))

    # Acked after it is printed: with a closed pipe (`| head`) it must stay unacked.
    async with UserAgent(url, state_file=file, on_lost=on_lost, tls=tls, auto_ack=False) as agent:
        before = agent.subscriptions
        await agent.connected(FIRST_CONTACT_S)
        kept = [one for one in agent.subscriptions.values() if one.app_server_key == key]
        if kept:
            out.subscribed(agent, kept[0])
        elif not before or agent.subscriptions:
            out.subscribed(agent, await agent.subscribe(key))
        received_count = 0
        async for received in agent:
            out.received(received)
            if received.problem:
                continue
            await agent.ack(received)
            received_count += 1
            if received_count == count:
                return


class _Plain:
    """For people."""

    def __init__(self, **options: Path | None) -> None:
        self._options = "".join(f" --{name} {path}" for name, path in options.items() if path)

    def subscribed(self, agent: "UserAgent", subscription: "Subscription") -> None:
        pass_on(f"connected  {agent.url}")
        pass_on(f"endpoint   {subscription.endpoint}")
        pass_on(f"keys       {subscription.public_keys.to_compact()}")
        pass_on(f"try        waystation send {subscription.endpoint} hello{self._options}")

    def received(self, received: "Received") -> None:
        if received.problem:
            complain(f"a notification could not be decrypted: {received.problem}")
        else:
            shown = received.payload is not None
            pass_on(harmless(received.text) if shown else "(a notification without data)")


class _Json:
    """For programs."""

    def subscribed(self, agent: "UserAgent", subscription: "Subscription") -> None:
        import msgspec

        line = {"event": "subscribed", "url": agent.url, **subscription.to_json()}
        pass_on(msgspec.json.encode(line).decode())

    def received(self, received: "Received") -> None:
        import msgspec

        line: dict[str, object] = {
            "event": "received",
            "channel_id": received.channel_id,
            "version": received.version,
            "text": None if received.payload is None else received.text,
        }
        if received.problem:
            line["problem"] = received.problem
        pass_on(msgspec.json.encode(line).decode())
