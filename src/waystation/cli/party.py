"""`waystation party`: join a party from the terminal, and show its participants."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .party_admin import close, drain, kick, ls, show
from .party_display import Json, Lines, Live, Screen
from .party_ids import party_number
from .running_server import DataDirOption, endpoint_of, running_server
from .terminal import EXIT_USAGE, ReaderLeftError, give_up, trusting

if TYPE_CHECKING:
    from collections.abc import Callable

    from waystation.client.party.member import PartyMember

app = typer.Typer(
    help="Join a party, and administer the parties of a node.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (ls, show, kick, close, drain):
    app.command()(command)

PORTS_END = 1 << 16
FIRST_ANSWER_S = 10.0


@app.callback()
def party() -> None: ...


@app.command()
def join(
    party: Annotated[str, typer.Argument(help="A number (also 0x…), or any name.")],
    *,
    client: Annotated[
        str, typer.Option(help="Client id: a number or a name; default: a new one.")
    ] = "",
    session: Annotated[
        str, typer.Option(help="Session of this device; the same one resumes.")
    ] = "",
    at: Annotated[
        list[str] | None,
        typer.Option(help="HOST:PORT of a broker; repeat for more; default: that of this machine."),
    ] = None,
    data_dir: DataDirOption = None,
    ha: Annotated[
        bool, typer.Option("--ha", help="Keep a standby on another node of the cluster.")
    ] = False,
    ttl: Annotated[
        float, typer.Option(min=1, help="Seconds without connection until the session ends.")
    ] = 120,
    token: Annotated[
        Path | None, typer.Option(help="File with the JWT; read again for renewal.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="TLS, trusting the certificates of this file.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="TLS, trusting the system's.")] = False,
    duration: Annotated[float, typer.Option("--for", help="Seconds until leaving; 0: stay.")] = 0.0,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Join PARTY and show its participants, until Ctrl-C.

    A name is hashed to a number, so two terminals with the same name join the same party.
    """
    import asyncio
    import os
    import secrets
    import sys

    # Its library writes lines of its own beside ours; what it knows is in what we say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    party_id = party_number(party, "PARTY")
    client_id = party_number(client, "--client") if client else secrets.randbits(63) | 1
    session_id = party_number(session, "--session") if session else secrets.randbits(63) | 1
    endpoints = at or [_endpoint_here(data_dir)]
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < PORTS_END:
            give_up(f"{endpoint} is not HOST:PORT", EXIT_USAGE)
    screen: Screen
    if json_lines:
        screen = Json()
    else:
        title = f"party {party} at {', '.join(endpoints)}, as client {client_id}"
        screen = (Live if sys.stdout.isatty() else Lines)(title)
    options: dict[str, Any] = {
        "party_id": party_id,
        "client_id": client_id,
        "session_id": session_id,
        "session_ttl_ms": round(ttl * 1000),
        "highly_available": ha,
        "want_updates": True,
        "token": None if token is None else _token_of(token),
        "credentials": _credentials(ca, tls),
    }
    with asyncio.Runner() as runner:
        runner.run(_join(endpoints, options, screen, duration))


def _endpoint_here(data_dir: Path | None) -> str:
    serving = running_server(data_dir)
    here = None if serving is None else endpoint_of(serving, "presence.port")
    return here or "127.0.0.1:50051"


def _token_of(file: Path) -> "Callable[[], str]":
    """Reads the file whenever a token is asked for; the first time now."""

    def read() -> str:
        return file.read_text().strip()

    try:
        read()
    except (OSError, UnicodeDecodeError) as exc:
        give_up(f"--token: {exc}")
    return read


def _credentials(ca: Path | None, tls: bool) -> object:
    if ca is None and not tls:
        return None
    import grpc

    trusting(ca)  # gRPC would try it again and again instead of saying what is wrong with it
    return grpc.ssl_channel_credentials(None if ca is None else ca.read_bytes())


async def _join(
    endpoints: list[str], options: dict[str, Any], screen: Screen, duration_s: float
) -> None:
    import asyncio
    import contextlib

    from waystation.base.errors import WaystationError
    from waystation.client.party.member import PartyMember
    from waystation.client.party.model import PartyUnreachableError

    member = PartyMember(*endpoints, **options)
    member.start()
    try:
        await member.joined(FIRST_ANSWER_S)
        ends = (TimeoutError, asyncio.CancelledError, ReaderLeftError)
        with contextlib.suppress(*ends), screen:
            async with asyncio.timeout(duration_s or None):
                await _show(member, screen)
        await member.leave()
    except PartyUnreachableError as exc:
        give_up(f"{exc}; is `waystation serve presence` running there?")
    except (WaystationError, OSError) as exc:
        give_up(str(exc))
    finally:
        await member.close()


async def _show(member: "PartyMember", screen: Screen) -> None:
    async for event in member:
        screen.show(event, member.participants)
