"""`waystation cluster init`, `token` and `join`: create a cluster and add members."""

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .cluster_member import (
    ConfigOption,
    DataDirOption,
    changed,
    membership_of,
    run_with_store,
    settings_of,
)
from .terminal import EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, complain, give_up, say

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.queue.cluster.cluster_store import ClusterStore
    from waystation.queue.cluster.membership import Invitation
    from waystation.queue.cluster.slot_map import Node, NodeId, SlotMap

TOKEN_CHARS_MAX = 1 << 16

LinkOption = Annotated[
    str,
    typer.Option(
        "--link", metavar="HOST:PORT", help="Address of this member's links for other members."
    ),
]


def init(
    store: Annotated[
        str,
        typer.Option(
            help="Store of the slot map: postgres://…, redis://…, embedded:/DIR (one host)."
        ),
    ],
    link: LinkOption = "127.0.0.1:5225",
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a cluster with this server and its queues. Prints the token with which others join."""
    from waystation.queue.cluster.membership import new_invitation
    from waystation.queue.cluster.slot_map import NodeId, SlotMap
    from waystation.queue.model import SLOTS

    settings = settings_of(data_dir, config)
    _refuse_members(settings)
    _queue_directory(settings, required=True)
    host, port = address_of(link)
    invitation = new_invitation(store)

    async def make(opened: "ClusterStore") -> None:
        if (await opened.read()).epoch:
            give_up("there is a cluster in that store already; join it with its token")
        first = NodeId(1)
        fingerprint = _enrol(settings, invitation, first, keeps_ca=True)
        before = SlotMap()
        # Queues may be made here until the server is started anew; it looks through all slots.
        node = _node(first, host, port, fingerprint, references_left=SLOTS)
        made = before.with_node(node).claimed(range(SLOTS), first)
        if not await opened.commit(made.as_one_change(before)):
            give_up("somebody made a cluster in that store this very moment; join it instead")

    run_with_store(settings, store, make)
    _warn_of_loopback(store, host)
    say(f"A cluster with one server, node 1, which owns all {SLOTS:,} slots.")
    say("Start it, or start it again: waystation serve queue controller")
    say("Clients come through edges from then on; join one with `waystation cluster token --edge`.")
    say("Who has this token can join, and is trusted with everything:")
    say(f"  {invitation.token()}")


def token(
    *,
    edge: Annotated[
        bool,
        typer.Option(
            "--edge", help="Make a token for edges, with the identity of this server's address."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="New file for the token, with mode 0600."),
    ] = None,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Print a token with which others join. Run it where `cluster init` was run."""
    import msgspec

    from waystation.app.data_dir import DataDir
    from waystation.base.settings import SettingsError
    from waystation.queue.address import IDENTITY_FOLDER, own_hosts
    from waystation.queue.cluster.membership import kept_invitation
    from waystation.queue.identity import ensure_identity, shared_identity

    settings = settings_of(data_dir, config)
    membership = membership_of(settings)
    try:
        invitation = kept_invitation(membership)
        if edge:
            directory, queue = DataDir(settings.data_dir).keys / IDENTITY_FOLDER, settings.queue
            host = own_hosts(queue.hosts, settings.host)[0]
            ensure_identity(directory, host=host, algorithm=queue.identity_algorithm)
            identity = shared_identity(directory)
            invitation = msgspec.structs.replace(invitation, identity=identity)
    except SettingsError as exc:
        give_up(str(exc), EXIT_CONFIG)
    if out is None:
        say(invitation.token())
        return
    try:
        with open(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(invitation.token() + "\n")
    except OSError as exc:
        give_up(f"cannot write {out}: {exc.strerror}", EXIT_USAGE)
    say(f"{out} holds a token. Who has it can join, and is trusted with everything.")


def join(
    argument: Annotated[
        str | None, typer.Argument(metavar="TOKEN", help="Refused: see `--token-file`.")
    ] = None,
    *,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token of `cluster init` or `cluster token`; `-` is standard input."
            " An argument is refused, because every user of the machine can read it.",
        ),
    ] = None,
    link: LinkOption = "127.0.0.1:5225",
    edge: Annotated[
        bool, typer.Option("--edge", help="Join as an edge, which owns no slots.")
    ] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Join a cluster as a storage server or an edge. `cluster add` then assigns slots."""
    from waystation.base.settings import SettingsError
    from waystation.queue.cluster.membership import read_token
    from waystation.queue.cluster.slot_map import NOBODY

    settings = settings_of(data_dir, config)
    text = _token_text(argument, token_file)
    _refuse_members(settings)
    host, port = address_of(link)
    try:
        invitation = read_token(text)
    except SettingsError as exc:
        give_up(str(exc), EXIT_USAGE)

    async def enter(opened: "ClusterStore") -> None:
        if not (await opened.read()).epoch:
            give_up("there is no cluster in that store yet")
        if edge:
            _adopt(settings, invitation)
            _enrol(settings, invitation, NOBODY)
            say("This data directory is an edge's. Start it: waystation serve edge")
            return
        numbers: list[NodeId] = []

        def reserve(slot_map: "SlotMap") -> "SlotMap":
            """Nothing comes here before its certificate is known."""
            numbers.append(slot_map.next_node_id)
            return slot_map.with_node(_node(numbers[-1], host, port, bytes(32), weight_new=0))

        await changed(opened, reserve)
        node_id = numbers[-1]
        known = _node(node_id, host, port, _enrol(settings, invitation, node_id))
        await changed(opened, lambda slot_map: slot_map.with_node(known))
        say(f"This is node {node_id}. Start it: waystation serve queue")
        say("Then give it its share of the slots: waystation cluster add")

    with _stopped(settings):  # or clients might make queues until it is started anew
        _refuse_queues(settings, edge=edge)
        run_with_store(settings, invitation.store_url, enter)
    if not edge:
        _warn_of_loopback(invitation.store_url, host)


def address_of(link: str) -> tuple[str, int]:
    host, _, port = link.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        give_up(f"--link {link!r}: expected HOST:PORT", EXIT_USAGE)
    return host.strip("[]"), int(port)


def _token_text(argument: str | None, token_file: Path | None) -> str:
    if argument is not None:
        give_up(
            "a token as an argument can be read by every user of this machine while the command"
            " runs, so it is not taken. Write it to a file that only you can read: waystation"
            " cluster join --token-file FILE; or pass it on the standard input: --token-file -",
            EXIT_USAGE,
        )
    if token_file is None:
        give_up("--token-file FILE: what `waystation cluster token` printed", EXIT_USAGE)
    if str(token_file) == "-":
        return sys.stdin.read(TOKEN_CHARS_MAX)
    try:
        with open(token_file, errors="replace") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                complain(f"{token_file} can be read by others: chmod 600 {token_file}")
            return file.read(TOKEN_CHARS_MAX)
    except OSError as exc:
        give_up(f"cannot read {token_file}: {exc.strerror}", EXIT_USAGE)


def _refuse_members(settings: "Settings") -> None:
    """Before anything is said to the cluster."""
    from waystation.app.data_dir import DataDir
    from waystation.queue.cluster.membership import FOLDER

    directory = DataDir(settings.data_dir).keys / FOLDER
    if directory.exists():
        give_up(
            f"{directory} belongs to a member already: use another --data-dir, or remove that"
            " folder once its server is drained",
            EXIT_CONFIG,
        )


@contextlib.contextmanager
def _stopped(settings: "Settings") -> Generator[None]:
    """While no queue server runs on the data directory."""
    from waystation.app.data_dir import DataDir, DataDirError, lock_roles

    data = DataDir(settings.data_dir)
    try:
        data.make()
        locks = lock_roles(data, ("queue",))
    except DataDirError as exc:
        _refuse(exc)
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def _queue_directory(settings: "Settings", *, required: bool) -> Path | None:
    """Where this server's queues lie: slots travel as rows of the embedded store."""
    from waystation.app.data_dir import DataDir
    from waystation.storage.open import local_directory, queue_store_url, shown_url

    url = queue_store_url(settings.queue.store, settings.store.url)
    directory = local_directory(url, DataDir(settings.data_dir).root)
    if directory is None:
        if not required:
            return None
        give_up(
            f"queue.store is {shown_url(url)}: a storage server of a cluster keeps its queues in"
            " the embedded store",
            EXIT_CONFIG,
        )
    return directory / "queue"


def _refuse_queues(settings: "Settings", *, edge: bool) -> None:
    """A newcomer owns no slot, so nobody would find the queues that it brings."""
    import asyncio

    from waystation.base.errors import WaystationError
    from waystation.storage.embedded.queue import EmbeddedQueueStore

    directory = _queue_directory(settings, required=not edge)
    if directory is None or not directory.exists():
        return

    async def held() -> int:
        store = await EmbeddedQueueStore.open(directory, settings=settings.store)
        try:
            return (await store.counts()).queues
        finally:
            await store.close()

    try:
        queues = asyncio.run(held())
    except (WaystationError, OSError) as exc:
        give_up(f"{directory} cannot be looked into: {exc}", EXIT_FAILED)
    if queues:
        what = "an edge serves none" if edge else "a server that joins owns no slots"
        give_up(
            f"{directory} holds {queues:,} queues, which nobody would reach any more: {what}. Use"
            " another --data-dir; or make the cluster here, with these queues: waystation cluster"
            " init",
            EXIT_CONFIG,
        )


def _warn_of_loopback(store_url: str, host: str) -> None:
    from waystation.app.settings import is_loopback_host
    from waystation.storage.open import find_backend

    if is_loopback_host(host) and find_backend(store_url).directory is None:
        complain(
            f"--link {host}: members on other machines cannot reach this one there. Correct it"
            " with `waystation cluster set-link HOST:PORT`"
        )


def _node(node_id: "NodeId", host: str, port: int, fingerprint: bytes, **rest: Any) -> "Node":
    from waystation.queue.cluster.slot_map import Node

    return Node(node_id=node_id, host=host, port=port, fingerprint=fingerprint, **rest)


def _adopt(settings: "Settings", invitation: "Invitation") -> None:
    """The identity that clients know, if the token brings it."""
    from waystation.app.data_dir import DataDir, DataDirError
    from waystation.base.settings import SettingsError
    from waystation.queue.address import IDENTITY_FOLDER
    from waystation.queue.identity import adopt_identity

    if not invitation.identity:
        complain(
            "this token brings no identity: the edge makes its own at its first start, so its"
            " address is a new one. For the address of node 1: waystation cluster token --edge"
        )
        return
    data = DataDir(settings.data_dir)
    try:
        data.make()
        adopt_identity(data.keys / IDENTITY_FOLDER, invitation.identity)
    except (DataDirError, SettingsError) as exc:
        _refuse(exc)


def _enrol(
    settings: "Settings", invitation: "Invitation", node_id: "NodeId", *, keeps_ca: bool = False
) -> bytes:
    """The fingerprint of the certificate that was made."""
    import hashlib
    import ssl

    from waystation.app.data_dir import DataDir, DataDirError
    from waystation.base.settings import SettingsError
    from waystation.queue.cluster.membership import enrol

    data = DataDir(settings.data_dir)
    try:
        data.make()
        membership = enrol(data.keys, invitation, node_id=node_id, keeps_ca=keeps_ca)
    except (DataDirError, SettingsError) as exc:
        _refuse(exc)
    der = ssl.PEM_cert_to_DER_cert(membership.certificate.read_text())
    return hashlib.sha256(der).digest()


def _refuse(exc: Exception) -> NoReturn:
    give_up(str(exc), EXIT_CONFIG)
