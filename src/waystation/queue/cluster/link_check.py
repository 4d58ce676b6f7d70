"""Checks that the storage servers of a map are reached at the addresses of the map.

Opens a connection to each server without a request and reads the name in its certificate.
"""

import asyncio
import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Final

from waystation.base.clock import Clock
from waystation.net.loop import NetLoop
from waystation.queue.wire.link import Frame

from .controller import LEASE_S
from .link_connection import LinkConnection, Links
from .slot_map import Node, NodeId, SlotMap

CHECK_S: Final = 3.0
AT_ONCE: Final = 32


async def link_complaints(
    context: ssl.SSLContext, slot_map: SlotMap, ages: Mapping[NodeId, float], clock: Clock
) -> list[str]:
    """A line for each server whose lease is valid and whose link is not reached."""
    alive = [node for id_, node in slot_map.nodes.items() if ages.get(id_, LEASE_S) < LEASE_S]
    faults = await wrong_links(context, alive, clock)
    return [
        f"node {node.node_id} is alive, and its link {node.host}:{node.port} is not reached from"
        f" here: {faults[node.node_id]}. Correct it: waystation cluster set-link HOST:PORT --node"
        f" {node.node_id}"
        for node in alive
        if node.node_id in faults
    ]


async def wrong_links(
    context: ssl.SSLContext, nodes: Iterable[Node], clock: Clock
) -> dict[NodeId, str]:
    """For each server that is not reached at its address: what was found instead."""
    places = asyncio.Semaphore(AT_ONCE)
    net = NetLoop(clock=clock)
    links = Links(net)

    async def checked(node: Node) -> tuple[NodeId, str | None]:
        async with places:
            return node.node_id, await _fault(links, context, node)

    try:
        found = await asyncio.gather(*map(checked, nodes))
    finally:
        net.close()
    return {node_id: fault for node_id, fault in found if fault is not None}


class _Unused:
    """A `LinkHandler` of links that are closed after TLS is established."""

    def ready(self, line: LinkConnection) -> None: ...

    def arrived(self, line: LinkConnection, frame: Frame) -> None: ...

    def lost(self, line: LinkConnection) -> None: ...

    def congested(self, line: LinkConnection, *, is_congested: bool) -> None: ...


async def _fault(links: Links, context: ssl.SSLContext, node: Node) -> str | None:
    try:
        async with asyncio.timeout(CHECK_S):
            line = await links.connect(_Unused(), node, context)
    except TimeoutError:
        return f"no answer within {CHECK_S:g} s"
    except ssl.SSLError:
        return "no member of this cluster answers there"
    except OSError as exc:
        number = exc.errno or 0  # below 0: a name was not found
        return (os.strerror(number) if number > 0 else exc.strerror or str(exc)).lower()
    line.abort()
    name = line.peer_name
    return None if name == f"node-{node.node_id}" else f"{name} answers there"
