"""`waystation send`: an app server in the terminal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .listen import keep_dir
from .terminal import give_up, say, trusting

if TYPE_CHECKING:
    from waystation.client.appserver import Receipt
    from waystation.client.encryption import PublicKeys

EXIT_GONE = 3
EXIT_BUSY = 75  # sysexits: try again later


def send(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT_URL", show_default=False)],
    text: Annotated[
        str | None,
        typer.Argument(help="`-` reads it from stdin; without it the notification has no data."),
    ] = None,
    *,
    keys: Annotated[
        str,
        typer.Option(
            help="The subscription's keys: P256DH.AUTH, or the JSON that a browser gives; not"
            " needed for an endpoint of `waystation listen` on this machine."
        ),
    ] = "",
    state: Annotated[
        Path | None, typer.Option(help="State file of `waystation listen` to find the keys in.")
    ] = None,
    ttl: Annotated[
        int, typer.Option(min=0, help="Seconds that it may wait for its reader.")
    ] = 3600,
    topic: Annotated[
        str | None, typer.Option(help="Replaces a waiting one of the same topic.")
    ] = None,
    urgency: Annotated[
        Literal["very-low", "low", "normal", "high"] | None, typer.Option(help="RFC 8030 §5.3.")
    ] = None,
    encoding: Annotated[
        Literal["aes128gcm", "aesgcm"], typer.Option(help="The older one is aesgcm.")
    ] = "aes128gcm",
    vapid: Annotated[
        Path | None, typer.Option(help="PEM file of the signing key; made if it is not there.")
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Send no VAPID token.")] = False,
    attempts: Annotated[
        int, typer.Option(min=1, help="How often to try when the server is busy.")
    ] = 3,
    ca: Annotated[Path | None, typer.Option(help="Trust this CA (PEM) for https.")] = None,
) -> None:
    """Encrypt TEXT, sign it and post it to ENDPOINT_URL.

    Prints the URL of the message. Exit code 3: the subscription is gone for good; 75: the
    server is busy.
    """
    import asyncio

    from waystation.base.errors import BusyError, GoneError, WaystationError
    from waystation.client.appserver import AppServer
    from waystation.client.http import HttpClient
    from waystation.client.vapid import VapidKey, origin_of

    payload = sys.stdin.buffer.read() if text == "-" else (text or "").encode()

    async def run() -> "Receipt":
        key = None if unsigned else VapidKey.load_or_create(vapid or keep_dir() / "vapid.pem")
        async with AppServer(key, http=HttpClient(tls=trusting(ca))) as app_server:
            return await app_server.send(
                endpoint,
                _find_keys(endpoint, keys, state) if payload else None,
                payload,
                ttl_s=ttl,
                topic=topic,
                urgency=urgency,
                encoding=encoding,
                attempts=attempts,
            )

    try:
        origin_of(endpoint)
        receipt = asyncio.run(run())
    except GoneError as exc:
        give_up(f"the subscription is gone, do not use it again ({exc})", EXIT_GONE)
    except BusyError as exc:
        give_up(f"the server is busy ({exc})", EXIT_BUSY)
    except (WaystationError, OSError, ValueError) as exc:
        give_up(str(exc))
    say(receipt.location)


def _find_keys(endpoint: str, keys: str, state: Path | None) -> "PublicKeys":
    import msgspec

    from waystation.client.encryption import BadKeyError, PublicKeys
    from waystation.client.subscriptions import StateFile

    if keys.lstrip().startswith("{"):
        try:
            told = msgspec.json.decode(keys, type=dict[str, object])
            return PublicKeys.from_json(msgspec.convert(told.get("keys", told), dict[str, str]))
        except msgspec.MsgspecError as exc:
            raise BadKeyError(f"--keys is not the JSON of a subscription: {exc}") from exc
    if keys:
        return PublicKeys.from_compact(keys)
    for path in [state] if state else sorted(keep_dir().glob("listen-*.json")):
        subscription = StateFile(path).load().by_endpoint(endpoint)
        if subscription is not None:
            return subscription.public_keys
    raise BadKeyError(
        "no keys for this endpoint: give --keys P256DH.AUTH (`waystation listen` prints them)"
    )
