"""`waystation keys`: generate keys, and decrypt endpoint URLs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import EXIT_FAILED, EXIT_USAGE, give_up, say, settings_or_exit

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.push.token import EndpointToken

app = typer.Typer(
    help="Generate keys and secrets, and decrypt endpoint URLs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="The server's data directory.")
]


@app.command()
def fernet() -> None:
    """Generate a key for push.crypto_keys. To rotate, put it before the old ones."""
    from waystation.push.token import new_key

    say(new_key())


@app.command("auth-key")
def auth_key() -> None:
    """Generate a key for AUTOEND__AUTH_KEYS."""
    import secrets

    say(secrets.token_urlsafe(32))


@app.command("auth-secret")
def auth_secret(
    uaid: Annotated[str, typer.Argument(help="The user agent's id, in any spelling.")],
    key: Annotated[
        str, typer.Option(help="Auth key; default: the newest of the data directory.")
    ] = "",
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the registration secret of a bridged user agent (HMAC of its id)."""
    from waystation.app.data_dir import DataDir
    from waystation.app.keys import read_secret
    from waystation.base.ids import parse_uuid
    from waystation.push.auth_keys import AuthKeys
    from waystation.push.model import Uaid

    raw = parse_uuid(uaid)
    if raw is None:
        give_up(f"{uaid!r} is not a UUID", EXIT_USAGE)
    if key:
        keys: AuthKeys | None = AuthKeys([key])
    else:
        settings = _settings(config, data_dir)
        data = DataDir(settings.data_dir)
        keys = AuthKeys.parse(settings.push.auth_keys or read_secret(data, "auth_keys") or "")
        if keys is None:
            give_up(f"there are no keys in {data.root}; give --key or --data-dir", EXIT_USAGE)
    say(keys.secret_of(Uaid(raw)))


@app.command()
def endpoint(
    url: Annotated[str, typer.Argument(help="An endpoint URL, as an app server has it.")],
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Decrypt an endpoint URL: print its user agent, channel, key and stored messages.

    Prints ids in clear text; do not share the output.
    """
    import asyncio

    from waystation.base.ids import dashed, simple

    settings = _settings(config, data_dir)
    token = _open(url, settings)
    say(f"user agent   {simple(token.uaid)}")
    say(f"channel      {dashed(token.channel_id)}")
    if token.key_hash is None:
        say("app server   any (v1: the subscription was made without a VAPID key)")
    else:
        say(f"app server   VAPID key with SHA-256 {token.key_hash.hex()}")
    asyncio.run(_show_record(settings, token))


@app.command()
def vapid(
    pem: Annotated[Path, typer.Argument(help="A VAPID key, private or public, in PEM.")],
) -> None:
    """Print the public key as push.tracking_keys and applicationServerKey want it (X9.62)."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )
    from pybase64 import urlsafe_b64encode

    try:
        text = pem.read_bytes()
        public = (
            load_pem_private_key(text, None).public_key()
            if b"PRIVATE KEY" in text
            else load_pem_public_key(text)
        )
    except (OSError, ValueError, TypeError) as exc:
        give_up(f"{pem} is not a PEM key that can be read: {exc}")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(
        public.curve, ec.SECP256R1
    ):
        give_up(f"{pem} is not a key on the curve P-256, which VAPID needs")
    point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    say(urlsafe_b64encode(point).decode().rstrip("="))


def _settings(config: Path | None, data_dir: Path | None) -> "Settings":
    flags = {"data_dir": None if data_dir is None else str(data_dir)}
    return settings_or_exit(config, flags, roles=())  # nothing of it listens


def _open(url: str, settings: "Settings") -> "EndpointToken":
    import re

    from waystation.app.data_dir import DataDir, DataDirError
    from waystation.app.keys import read_secret
    from waystation.base.clock import SystemClock
    from waystation.push.errors import InvalidTokenError
    from waystation.push.token import InvalidKeyError, Keys

    found = re.search(r"/(wpush|spush|push|update)/(?:(v[12])/)?([A-Za-z0-9_=-]+)$", url)
    if found is None:
        give_up("this is not an endpoint URL: it should end in /wpush/v1/… or /wpush/v2/…", 2)
    data = DataDir(settings.data_dir)
    try:
        text = settings.push.crypto_keys or read_secret(data, "crypto_keys")
        if not text:
            give_up(f"there are no keys in {data.root}; give --data-dir or push.crypto_keys")
        keys = Keys.parse(text, SystemClock())
        return keys.open_endpoint(found[2] or "v1", found[3].encode())
    except (DataDirError, InvalidKeyError) as exc:
        give_up(str(exc), EXIT_FAILED)
    except InvalidTokenError:
        give_up(
            "none of this server's keys opens it: it is another server's, or its key was removed"
        )


async def _show_record(settings: "Settings", token: "EndpointToken") -> None:
    from waystation.base.clock import SystemClock
    from waystation.base.errors import WaystationError
    from waystation.storage.open import open_push_store

    clock = SystemClock()
    try:
        store = await open_push_store(
            settings.store.url, data_dir=settings.data_dir, settings=settings.store, clock=clock
        )
    except (WaystationError, OSError) as exc:
        give_up(f"the store does not open: {exc}")
    try:
        record = await store.get_user_agent(token.uaid)
        if record is None:
            say("record       none: senders are answered 410")
            return
        channels = await store.get_channels(token.uaid)
        waiting = await store.fetch(
            token.uaid, now_ms=clock.now_ms(), after=None, limit=WAITING_SHOWN_MAX
        )
    except WaystationError as exc:
        give_up(f"the store does not answer: {exc}")
    finally:
        await store.close()
    mine = sum(one.channel_id == token.channel_id for one in waiting)
    subscribed = "yes" if token.channel_id in channels else "no: senders are answered 410"
    say(f"record       {record.router_type}, node {record.node_id or 'none (not connected)'}")
    say(f"subscribed   {subscribed}; {len(channels)} channels in all")
    more = "+" if len(waiting) == WAITING_SHOWN_MAX else ""
    say(f"waiting      {mine} here, {len(waiting)}{more} for the user agent")


WAITING_SHOWN_MAX = 1000
