"""`waystation party ls|show|kick|close|drain`: administration of a presence node.

Commands use the node on this machine, with a token signed by the secret in its data directory.
`--at` and `--token` select another node.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .party_ids import party_number
from .running_server import DataDirOption, endpoint_of
from .terminal import EXIT_FAILED, EXIT_USAGE, counted, give_up, say, settings_or_exit, trusting

if TYPE_CHECKING:
    from waystation.client.party.admin import PresenceAdmin

AtOption = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="HOST:PORT",
        help="Address of the node's `presence.peer_port`; default: this machine's node.",
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token", help="File with a JWT with the admin grant; default: one made here."),
]
CaOption = Annotated[Path | None, typer.Option("--ca", help="TLS, trusting this CA (PEM).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PartyArgument = Annotated[str, typer.Argument(help="A number (also 0x…), or a name.")]


def ls(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of parties to show.")] = 100,
    at: AtOption = "",
    token: TokenOption = None,
    ca: CaOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """List the parties of a node, the largest first."""

    async def ask(node: "PresenceAdmin") -> None:
        found = await node.parties(limit)
        if json:
            _show_json(found)
            return
        state = ", draining" if found.draining else ""
        say(f"node {found.node_id}{state}: {counted(found.total, 'party', 'parties')}")
        rows = [
            (str(one.party_id), str(one.clients), str(one.sessions), str(one.sessions_here))
            for one in found.parties
        ]
        _show_table(("party", "clients", "sessions", "on this node"), rows)
        if found.total > len(found.parties):
            say(f"{found.total - len(found.parties)} more; --limit shows up to 1000")

    _run(ask, at, token, ca, data_dir)


def show(
    party: PartyArgument,
    *,
    at: AtOption = "",
    token: TokenOption = None,
    ca: CaOption = None,
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Show the sessions of a party: client, session, state, node."""
    party_id = party_number(party, "PARTY")

    async def ask(node: "PresenceAdmin") -> None:
        found = await node.party(party_id)
        if found is None:
            give_up(f"there is no party {party_id} at this node", EXIT_FAILED)
        if json:
            _show_json(found)
            return
        sessions = counted(len(found.sessions), "session")
        say(f"party {found.party_id}: {sessions}, position {found.seq}")
        rows = [
            (str(one.client_id), str(one.session_id), one.state, one.node_id, str(one.cursor))
            for one in sorted(found.sessions, key=lambda one: (one.client_id, one.session_id))
        ]
        _show_table(("client", "session", "state", "node", "position"), rows)

    _run(ask, at, token, ca, data_dir)


def kick(
    party: PartyArgument,
    client: Annotated[str, typer.Argument(help="The client: a number (also 0x…), or a name.")],
    *,
    session: Annotated[
        str, typer.Option(help="Session; default: all sessions of the client.")
    ] = "",
    at: AtOption = "",
    token: TokenOption = None,
    ca: CaOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Remove a client from a party. The others get the reason REMOVED_BY_ADMIN."""
    party_id = party_number(party, "PARTY")
    client_id = party_number(client, "CLIENT")
    session_id = party_number(session, "--session") if session else None

    async def ask(node: "PresenceAdmin") -> None:
        removed = await node.kick(party_id, client_id, session_id)
        if not removed:
            give_up(f"client {client_id} has no such session in party {party_id} at this node")
        say(f"removed {counted(removed, 'session')} of client {client_id} from party {party_id}")

    _run(ask, at, token, ca, data_dir)


def close(
    party: PartyArgument,
    *,
    at: AtOption = "",
    token: TokenOption = None,
    ca: CaOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Remove all clients from a party. They get the reason PARTY_CLOSED."""
    party_id = party_number(party, "PARTY")

    async def ask(node: "PresenceAdmin") -> None:
        removed = await node.close_party(party_id)
        if not removed:
            give_up(f"there is no party {party_id} at this node")
        say(f"removed {counted(removed, 'session')} from party {party_id}")

    _run(ask, at, token, ca, data_dir)


def drain(
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Accept sessions again.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, max=3600, help="Seconds for moving sessions; 0: `presence.drain_timeout_s`."
        ),
    ] = 0.0,
    at: AtOption = "",
    token: TokenOption = None,
    ca: CaOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Stop accepting sessions at a node and move its sessions to other nodes."""

    async def ask(node: "PresenceAdmin") -> None:
        left = await node.drain(timeout, undo=undo)
        state = "takes sessions again" if undo else "drains"
        say(f"the node {state}; it has {counted(left, 'session')}")

    _run(ask, at, token, ca, data_dir)


def _run(
    ask: "Callable[[PresenceAdmin], Awaitable[None]]",
    at: str,
    token: Path | None,
    ca: Path | None,
    data_dir: Path | None,
) -> None:
    import asyncio
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines would stand beside ours

    from waystation.base.errors import WaystationError
    from waystation.client.party.admin import PresenceAdmin

    target, secret, trusted = _node_here(at, token, ca, data_dir)

    async def run() -> None:
        async with PresenceAdmin(target, secret, trusted) as node:
            await ask(node)

    try:
        asyncio.run(run())
    except WaystationError as exc:
        give_up(str(exc))


def _node_here(
    at: str, token: Path | None, ca: Path | None, data_dir: Path | None
) -> tuple[str, str, Any]:
    """Address, token and TLS credentials of the node."""
    from waystation.app.data_dir import DataDir, DataDirError
    from waystation.app.keys import read_secret
    from waystation.app.server_info import read_server_info
    from waystation.presence.cluster.peer_clients import peer_token

    flags = {"data_dir": None if data_dir is None else str(data_dir)}
    settings = settings_or_exit(None, flags, ())
    data = DataDir(settings.data_dir)
    if not at:
        serving = read_server_info(data)
        here = None if serving is None else endpoint_of(serving, "presence.peer_port")
        if here is None:
            give_up(
                f"no presence node runs on {data.root}; start `waystation serve`, or give"
                " --data-dir DIR or --at HOST:PORT"
            )
        at = here
    try:
        if token is not None:
            shown = token.read_text().strip()
        else:
            secret = settings.cluster.secret or read_secret(data, "cluster_secret")
            if secret is None:
                give_up(f"{data.keys} holds no cluster_secret; give --token FILE", EXIT_USAGE)
            shown = peer_token(secret)
    except (OSError, UnicodeDecodeError, DataDirError) as exc:
        give_up(str(exc))
    if ca is None and not settings.tls.on:
        return at, shown, None
    import grpc

    trusting(ca)
    authority = ca or Path(settings.tls.cert)
    return at, shown, grpc.ssl_channel_credentials(authority.read_bytes())


def _show_json(value: Any) -> None:
    import msgspec

    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _show_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
