"""`waystation cluster`: one address, many queue servers, and the slots between them."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cluster_work import (
    ConfigOption,
    DataDirOption,
    membership_of,
    run_as_member,
    run_with_store,
    settings_of,
)
from .terminal import EXIT_CONFIG, EXIT_USAGE, complain, give_up, say

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.queue.cluster.cluster_store import ClusterStore
    from waystation.queue.cluster.slot_map import Move, SlotMap

app = typer.Typer(
    help="Make a cluster of queue servers, look at its slots, and move them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

TRIES_MAX = 20

LinkOption = Annotated[
    str,
    typer.Option("--link", metavar="HOST:PORT", help="Where other members reach this one's links."),
]


@app.command()
def init(
    store: Annotated[
        str,
        typer.Option(
            help="Where the map lives: postgres://…, redis://…, embedded:/DIR (one host)."
        ),
    ],
    link: LinkOption = "127.0.0.1:5225",
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a cluster whose first server is here. Prints the token with which others join."""
    from waystation.queue.cluster.membership import new_invitation
    from waystation.queue.cluster.slot_map import NodeId, SlotMap
    from waystation.queue.model import SLOTS

    settings = settings_of(data_dir, config)
    _refuse_members(settings)
    host, port = _address(link)
    invitation = new_invitation(store)

    async def make(opened: "ClusterStore") -> None:
        if (await opened.read()).epoch:
            give_up("there is a cluster in that store already; join it with its token")
        first = NodeId(1)
        fingerprint = _enrol(settings, invitation, first)
        before = SlotMap()
        made = before.with_node(_node(first, host, port, fingerprint)).claimed(range(SLOTS), first)
        if not await opened.commit(made.as_one_change(before)):
            give_up("somebody made a cluster in that store this very moment; join it instead")

    run_with_store(settings, store, make)
    say(f"A cluster with one server, node 1, which owns all {SLOTS:,} slots.")
    say("Who has this token can join, and is trusted with everything:")
    say(f"  {invitation.token()}")


@app.command()
def join(
    token: Annotated[str, typer.Argument(help="What `cluster init` printed.")],
    *,
    link: LinkOption = "127.0.0.1:5225",
    edge: Annotated[bool, typer.Option("--edge", help="An edge: it owns no slots.")] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Join a cluster as a storage server, or as an edge. Slots come with `cluster add`."""
    from waystation.base.settings import SettingsError
    from waystation.queue.cluster.membership import read_token
    from waystation.queue.cluster.slot_map import NOBODY, NodeId

    settings = settings_of(data_dir, config)
    _refuse_members(settings)
    host, port = _address(link)
    try:
        invitation = read_token(token)
    except SettingsError as exc:
        give_up(str(exc), EXIT_USAGE)

    async def enter(opened: "ClusterStore") -> None:
        if not (await opened.read()).epoch:
            give_up("there is no cluster in that store yet")
        if edge:
            _enrol(settings, invitation, NOBODY)
            say("This data directory is an edge's. Start it: waystation serve proxy")
            return
        for _ in range(TRIES_MAX):
            slot_map = await opened.read()
            node_id = NodeId(max(slot_map.nodes, default=0) + 1)
            # Nothing comes here before its certificate is known.
            reserved = _node(node_id, host, port, bytes(32), weight_new=0)
            if await opened.commit(slot_map.with_node(reserved)):
                break
        else:
            give_up("the map changes too quickly; try again")
        known = _node(node_id, host, port, _enrol(settings, invitation, node_id))
        await _change(opened, lambda slot_map: slot_map.with_node(known))
        say(f"This is node {node_id}. Start it: waystation serve queue")
        say("Then give it its share of the slots: waystation cluster add")

    run_with_store(settings, invitation.store_url, enter)


@app.command()
def status(
    *,
    grid: Annotated[bool, typer.Option("--grid", help="Show every slot: 64 lines of 64.")] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Who owns how much, who is alive, and what is under way."""
    from waystation.queue.cluster import picture

    async def show(opened: "ClusterStore") -> None:
        slot_map, ages = await opened.read(), await opened.ages()
        say(picture.summary(slot_map))
        for line in picture.table(slot_map, ages):
            say(line)
        if grid:
            for line in picture.grid(slot_map):
                say(line)

    run_as_member(data_dir, config, show)


@app.command()
def plan(
    file: Annotated[
        Path | None, typer.Argument(help="A plan of `pipeline rebalance`; none: equal counts.")
    ] = None,
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show which slots would move. Changes nothing."""

    async def show(opened: "ClusterStore") -> None:
        slot_map = await opened.read()
        _show_moves(slot_map, _planned(slot_map, file))

    run_as_member(data_dir, config, show)


@app.command()
def add(*, data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Give new servers their share: as few moves as make all counts equal."""
    from waystation.queue.cluster.plan import equalised, foreseen, merged

    def change(slot_map: "SlotMap") -> "SlotMap":
        return slot_map.planning(merged(slot_map, equalised(foreseen(slot_map))))

    async def apply(opened: "ClusterStore") -> None:
        slot_map = await _change(opened, change)
        _show_moves(slot_map, slot_map.planned)

    run_as_member(data_dir, config, apply)


@app.command()
def move(
    slot: Annotated[
        str | None,
        typer.Argument(help="Two base64url letters, e.g. `AB`; put `--` before one with a dash."),
    ] = None,
    node: Annotated[int | None, typer.Argument(help="The server that shall have it.")] = None,
    *,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Instead: all moves of this file.")
    ] = None,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move one slot, or everything in a plan; other slots' plans stay as they are."""
    from waystation.queue.cluster.plan import merged
    from waystation.queue.cluster.slot_map import Move, NodeId, SlotMapError, slot_number

    if (slot is None) == (plan_file is None) or (slot is None) != (node is None):
        give_up("name a slot and a server, or --plan FILE", EXIT_USAGE)

    def wanted(slot_map: "SlotMap") -> "Sequence[Move]":
        if plan_file is not None:
            return _planned(slot_map, plan_file)
        assert slot is not None
        assert node is not None
        return [Move(slot_number(slot), NodeId(node))]

    async def apply(opened: "ClusterStore") -> None:
        try:
            slot_map = await _change(opened, lambda now: now.planning(merged(now, wanted(now))))
        except SlotMapError as exc:
            give_up(str(exc), EXIT_USAGE)
        _show_moves(slot_map, slot_map.planned)

    run_as_member(data_dir, config, apply)


@app.command()
def drain(
    node: Annotated[int, typer.Argument(help="The server that shall leave.")],
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move all slots of a server to the others, and send it no new queues."""
    import msgspec

    from waystation.queue.cluster.plan import drained, foreseen, merged
    from waystation.queue.cluster.slot_map import NodeId, SlotMapError

    leaving = NodeId(node)

    def change(slot_map: "SlotMap") -> "SlotMap":
        known = slot_map.nodes.get(leaving)
        if known is None:
            raise SlotMapError(f"there is no node {node}")
        quiet = msgspec.structs.replace(known, status="drain", weight_new=0)
        marked = slot_map.with_node(quiet)
        return marked.planning(merged(marked, drained(foreseen(marked), leaving)))

    async def apply(opened: "ClusterStore") -> None:
        try:
            slot_map = await _change(opened, change)
        except SlotMapError as exc:
            give_up(str(exc), EXIT_USAGE)
        _show_moves(slot_map, slot_map.planned)

    run_as_member(data_dir, config, apply)


@app.command()
def weight(
    node: Annotated[int, typer.Argument(help="The server.")],
    new: Annotated[int, typer.Argument(help="Its share of new queues: 100 is usual, 0 is none.")],
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Choose how many of the new queues a server gets; those it has stay where they are."""
    import msgspec

    from waystation.queue.cluster import picture
    from waystation.queue.cluster.slot_map import NodeId, SlotMapError

    def change(slot_map: "SlotMap") -> "SlotMap":
        known = slot_map.nodes.get(NodeId(node))
        if known is None:
            raise SlotMapError(f"there is no node {node}")
        return slot_map.with_node(msgspec.structs.replace(known, weight_new=new))

    async def apply(opened: "ClusterStore") -> None:
        try:
            slot_map = await _change(opened, change)
        except SlotMapError as exc:
            give_up(str(exc), EXIT_USAGE)
        for line in picture.table(slot_map, await opened.ages()):
            say(line)

    run_as_member(data_dir, config, apply)


@app.command()
def moderate(
    order: Annotated[
        str,
        typer.Argument(metavar="status|block|unblock|delete", help="What to do, or to ask."),
    ],
    entity: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Of the queue's sender or link; put `--` before one with a dash."
        ),
    ],
    *,
    reason: Annotated[
        str, typer.Option(help="Why it is blocked, which its users are told: spam or content.")
    ] = "spam",
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Block, unblock or delete a queue that somebody complained of, on whichever server it is."""
    from waystation.queue.cluster.asking import Asking
    from waystation.queue.cluster.membership import link_context
    from waystation.queue.cluster.moderating import moderate as bring
    from waystation.queue.control import decode_id
    from waystation.queue.wire.link_words import Moderate

    entity_id = decode_id(entity)
    if entity_id is None:
        give_up(f"{entity!r} is no id: 32 letters of base64url are", EXIT_USAGE)
    if order not in ("status", "block", "unblock", "delete"):
        give_up(f"{order!r}: expected status, block, unblock or delete", EXIT_USAGE)
    if reason not in ("spam", "content"):
        give_up(f"--reason {reason!r}: expected spam or content", EXIT_USAGE)
    word = Moderate(entity_id, f"block reason={reason}" if order == "block" else order)
    membership = membership_of(settings_of(data_dir, config))

    async def apply(opened: "ClusterStore") -> None:
        newest = await opened.read()

        async def read_map() -> "SlotMap":
            nonlocal newest
            newest = await opened.read()
            return newest

        context = link_context(membership, server_side=False)
        asking = Asking(context=context, slot_map=lambda: newest)
        try:
            said = await bring(read_map, asking, word)
        finally:
            asking.close()
        if said.startswith("error: "):
            give_up(said.removeprefix("error: "))
        say(said)

    run_as_member(data_dir, config, apply)


# What the commands share


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


def _address(link: str) -> tuple[str, int]:
    host, _, port = link.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        give_up(f"--link {link!r}: expected HOST:PORT", EXIT_USAGE)
    return host.strip("[]"), int(port)


def _node(node_id: Any, host: str, port: int, fingerprint: bytes, *, weight_new: int = 100) -> Any:
    from waystation.queue.cluster.slot_map import Node

    return Node(
        node_id=node_id, host=host, port=port, fingerprint=fingerprint, weight_new=weight_new
    )


def _enrol(settings: "Settings", invitation: Any, node_id: Any) -> bytes:
    """The fingerprint of the certificate that was made."""
    import hashlib
    import ssl

    from waystation.app.data_dir import DataDir, DataDirError
    from waystation.base.settings import SettingsError
    from waystation.queue.cluster.membership import enrol

    data = DataDir(settings.data_dir)
    try:
        data.make()
        membership = enrol(data.keys, invitation, node_id=node_id)
    except (DataDirError, SettingsError) as exc:
        give_up(str(exc), EXIT_CONFIG)
    der = ssl.PEM_cert_to_DER_cert(membership.certificate.read_text())
    return hashlib.sha256(der).digest()


async def _change(store: "ClusterStore", change: "Callable[[SlotMap], SlotMap]") -> "SlotMap":
    """Over whatever is in force; tried again when somebody else was quicker."""
    for _ in range(TRIES_MAX):
        before = await store.read()
        after = change(before).as_one_change(before)
        if await store.commit(after):
            return after
    return give_up("the map changes too quickly; try again")


def _planned(slot_map: "SlotMap", file: Path | None) -> "Sequence[Move]":
    from waystation.queue.cluster.plan import equalised, read_plan
    from waystation.queue.cluster.slot_map import SlotMapError

    try:
        return equalised(slot_map) if file is None else read_plan(file.read_bytes(), slot_map)
    except OSError as exc:
        give_up(f"cannot read {file}: {exc.strerror}", EXIT_USAGE)
    except SlotMapError as exc:
        for problem in str(exc).splitlines():
            complain(problem)
        raise SystemExit(EXIT_USAGE) from None


def _show_moves(slot_map: "SlotMap", moves: "Sequence[Move]") -> None:
    if not moves:
        say("nothing moves")
        return
    ways = Counter((slot_map.slots[one.slot].owner, one.target) for one in moves)
    say(f"{len(moves)} slots move:")
    for (source, target), count in sorted(ways.items()):
        say(f"  node {source} → node {target}: {count}")
