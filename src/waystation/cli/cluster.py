"""`waystation cluster`: servers of a queue cluster, and the slots that they own."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cluster_join import address_of, init, join, token
from .cluster_member import (
    ConfigOption,
    DataDirOption,
    changed,
    membership_of,
    run_as_member,
    run_with_store,
    settings_of,
)
from .terminal import EXIT_USAGE, complain, give_up, say

if TYPE_CHECKING:
    from waystation.app.settings import Settings
    from waystation.queue.cluster.cluster_store import ClusterStore
    from waystation.queue.cluster.slot_map import Move, SlotMap

app = typer.Typer(
    help="Create a cluster of queue servers, show its slots, and move them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

app.command()(init)
app.command()(join)
app.command()(token)
WAIT_LOOK_S = 1.0
STALL_S = 30.0  # without a moved slot, the operator is told to check the servers

WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until all slots have moved, with progress.")
]


@app.command()
def status(
    *,
    grid: Annotated[bool, typer.Option("--grid", help="Show every slot: 64 lines of 64.")] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the servers: slots, state, planned moves, and links that cannot be reached."""
    from waystation.base.clock import SystemClock
    from waystation.queue.cluster import slot_map_text
    from waystation.queue.cluster.link_check import link_complaints
    from waystation.queue.cluster.membership import link_context

    membership = membership_of(settings_of(data_dir, config))

    async def show(opened: "ClusterStore") -> None:
        slot_map, ages = await opened.read(), await opened.ages()
        say(slot_map_text.summary(slot_map))
        for line in (
            *slot_map_text.table(slot_map, ages),
            *slot_map_text.references(slot_map, ages),
        ):
            say(line)
        context = link_context(membership, server_side=False)
        for line in await link_complaints(context, slot_map, ages, SystemClock()):
            say(line)
        if grid:
            for line in slot_map_text.grid(slot_map):
                say(line)

    run_as_member(data_dir, config, show)


@app.command()
def plan(
    file: Annotated[
        Path | None, typer.Argument(help="Plan of `pipeline rebalance`; default: equal counts.")
    ] = None,
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Show which slots would move, without changes."""

    async def show(opened: "ClusterStore") -> None:
        slot_map = await opened.read()
        _show_moves(slot_map, _planned(slot_map, file))

    run_as_member(data_dir, config, show)


@app.command()
def add(
    *, wait: WaitOption = False, data_dir: DataDirOption = None, config: ConfigOption = None
) -> None:
    """Move slots to new servers until all counts are equal, with the fewest moves."""
    from waystation.queue.cluster.plan import equalised, foreseen, merged

    def change(slot_map: "SlotMap") -> "SlotMap":
        return slot_map.planning(merged(slot_map, equalised(foreseen(slot_map))))

    _moved(settings_of(data_dir, config), change, wait=wait)


@app.command()
def move(
    slot: Annotated[
        str | None,
        typer.Argument(help="Two base64url letters, e.g. `AB`; put `--` before one with a dash."),
    ] = None,
    node: Annotated[int | None, typer.Argument(help="Number of the target server.")] = None,
    *,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="File with moves, instead of SLOT and NODE.")
    ] = None,
    wait: WaitOption = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move one slot before all planned moves, or append the moves of a plan."""
    from waystation.queue.cluster.plan import asked_for, merged
    from waystation.queue.cluster.slot_map import Move, NodeId, slot_number

    if (slot is None) == (plan_file is None) or (slot is None) != (node is None):
        give_up("name a slot and a server, or --plan FILE", EXIT_USAGE)

    asked: set[int] = set()

    def change(slot_map: "SlotMap") -> "SlotMap":
        if plan_file is not None:
            moves = _planned(slot_map, plan_file)
            asked.update(one.slot for one in moves)
            return slot_map.planning(merged(slot_map, moves))
        assert slot is not None
        assert node is not None
        one = Move(slot_number(slot), NodeId(node))
        asked.add(one.slot)
        return slot_map.planning(asked_for(slot_map, one))

    _moved(settings_of(data_dir, config), change, wait=wait, asked=asked)


@app.command()
def drain(
    node: Annotated[int, typer.Argument(help="Number of the server to empty.")],
    *,
    wait: WaitOption = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Move all slots of a server to the others, and give it no new queues."""
    from waystation.queue.cluster.plan import drained, foreseen, merged
    from waystation.queue.cluster.slot_map import NodeId

    def change(slot_map: "SlotMap") -> "SlotMap":
        marked = _with_changes(slot_map, node, status="drain", weight_new=0)
        return marked.planning(merged(marked, drained(foreseen(marked), NodeId(node))))

    _moved(settings_of(data_dir, config), change, wait=wait)


@app.command()
def undrain(
    node: Annotated[int, typer.Argument(help="Number of the drained server.")],
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Stop draining a server: its remaining slots stay, and it gets new queues."""
    from waystation.queue.cluster.plan import undrained
    from waystation.queue.cluster.slot_map import NodeId

    _edited(settings_of(data_dir, config), lambda slot_map: undrained(slot_map, NodeId(node)))


@app.command()
def remove(
    node: Annotated[
        int, typer.Argument(help="Number of a server without slots; see `cluster drain`.")
    ],
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a server from the cluster for good. Its number is not used again."""
    from waystation.queue.cluster.slot_map import NodeId

    _edited(settings_of(data_dir, config), lambda slot_map: slot_map.without_node(NodeId(node)))
    say(f"Node {node} is no member any more: stop it; its data directory can be deleted.")


@app.command()
def weight(
    node: Annotated[int, typer.Argument(help="Number of the server.")],
    new: Annotated[int, typer.Argument(help="Share of new queues: 100 is normal, 0 is none.")],
    *,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Set a server's share of new queues; existing queues stay."""
    _edited(
        settings_of(data_dir, config),
        lambda slot_map: _with_changes(slot_map, node, weight_new=new),
    )


@app.command("set-link")
def set_link(
    link: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT", help="Address of the server's links for other members."
        ),
    ],
    *,
    node: Annotated[
        int | None, typer.Option("--node", help="Number of another server than that of --data-dir.")
    ] = None,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Change the address of a server's links; the other members connect to it from then on."""
    from waystation.queue.cluster.slot_map import NOBODY

    host, port = address_of(link)
    settings = settings_of(data_dir, config)
    number = membership_of(settings).member.node_id if node is None else node
    if number == NOBODY:
        give_up("this member is an edge, which has no link: name a server with --node", EXIT_USAGE)
    _edited(settings, lambda slot_map: _with_changes(slot_map, number, host=host, port=port))


def _with_changes(slot_map: "SlotMap", node: int, **changes: Any) -> "SlotMap":
    import msgspec

    from waystation.queue.cluster.slot_map import NodeId, SlotMapError

    known = slot_map.nodes.get(NodeId(node))
    if known is None:
        raise SlotMapError(f"there is no node {node}")
    return slot_map.with_node(msgspec.structs.replace(known, **changes))


@app.command()
def moderate(
    order: Annotated[
        str,
        typer.Argument(metavar="status|block|unblock|delete", help="Action."),
    ],
    entity: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Sender id or link id of the queue; put `--` before one with a dash."
        ),
    ],
    *,
    reason: Annotated[
        str, typer.Option(help="Reason of a block, sent to its users: spam or content.")
    ] = "spam",
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Block, unblock or delete a reported queue, on whichever server it is."""
    from waystation.base.clock import SystemClock
    from waystation.net.loop import NetLoop
    from waystation.queue.cluster.link_connection import Links
    from waystation.queue.cluster.membership import link_context
    from waystation.queue.cluster.moderation_routing import moderate as bring
    from waystation.queue.cluster.peer_requests import PeerRequests
    from waystation.queue.control import decode_id
    from waystation.queue.wire.link_messages import Moderate

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
        net = NetLoop(clock=SystemClock())
        peer_requests = PeerRequests(links=Links(net), context=context, slot_map=lambda: newest)
        try:
            said = await bring(read_map, peer_requests, word)
        finally:
            net.close()
        if said.startswith("error: "):
            give_up(said.removeprefix("error: "))
        say(said)

    run_as_member(data_dir, config, apply)


# What the commands share


def _edited(settings: "Settings", change: "Callable[[SlotMap], SlotMap]") -> None:
    """Change the map and show its servers; what the map does not allow is refused."""
    from waystation.queue.cluster import slot_map_text

    async def apply(opened: "ClusterStore") -> None:
        slot_map = await changed(opened, change)
        for line in slot_map_text.table(slot_map, await opened.ages()):
            say(line)

    run_with_store(settings, membership_of(settings).member.store_url, apply)


def _moved(
    settings: "Settings",
    change: "Callable[[SlotMap], SlotMap]",
    *,
    wait: bool,
    asked: set[int] | None = None,
) -> None:
    """Plan moves, show all that are planned, and wait for them if that is wanted; with `asked`,
    for those of these slots."""
    from waystation.queue.cluster import slot_map_text

    async def apply(opened: "ClusterStore") -> None:
        slot_map = await changed(opened, change)
        _show_moves(slot_map, slot_map.planned)
        if wait:
            moves = [one for one in slot_map.planned if asked is None or one.slot in asked]
            await _until_moved(opened, moves)
        else:
            for line in slot_map_text.references(slot_map, await opened.ages()):
                say(line)

    run_with_store(settings, membership_of(settings).member.store_url, apply)


async def _until_moved(opened: "ClusterStore", moves: "Sequence[Move]") -> None:
    import asyncio

    from waystation.queue.cluster import slot_map_text

    told, told_at = "", 0.0
    loop = asyncio.get_running_loop()
    while True:
        slot_map = await opened.read()
        left = [move for move in moves if slot_map.slots[move.slot].owner != move.target]
        under_way = {move.slot for move in slot_map.planned}
        under_way.update(slot for slot, _ in slot_map.moving())
        line = f"{len(moves) - len(left):,} of {len(moves):,} slots have moved"
        for writes in slot_map_text.references(slot_map, await opened.ages()):
            line += f"; {writes}"
        if line != told:
            say(line)
            told, told_at = line, loop.time()
        elif loop.time() - told_at >= STALL_S:
            complain(
                f"nothing moved for {STALL_S:g} s: does a controller run (waystation serve"
                " controller), and are all servers up (waystation cluster status)?"
            )
            told_at = loop.time()
        if not any(move.slot in under_way for move in left):
            break
        await asyncio.sleep(WAIT_LOOK_S)
    if left:
        give_up(f"{len(left):,} slots did not move: `waystation cluster status` shows the servers")


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
