"""Relay client: sends requests to connection nodes, by node id.

Rule 1: this worker is reached by a function call, another worker of this node by a unix socket,
        another node by a link, and a node that does not support the link by HTTP.
Rule 2: nothing raises: a node that does not answer is UNREACHABLE, a faulty answer UNEXPECTED.
Rule 3: whether a node supports the link is tried, and tried again after `HTTP_ONLY_S`, because the
        node may be replaced by a Waystation node at any time.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from waystation.base.clock import Clock
from waystation.net.loop import NetLoop, Port
from waystation.push.endpoint.relay_http import HttpNode
from waystation.push.link import LinkClient, NotALinkError
from waystation.push.link_handshake import PATH_END, UnixDial, UpgradeDial, link_port
from waystation.push.model import Notification, Uaid, Update
from waystation.push.settings import Endpoint
from waystation.push.wire.relay import Answer, Node, ServedNode

PEERS_MAX: Final = 1_024
HTTP_ONLY_S: Final = 60.0


class Peer(ServedNode, Protocol):
    async def close(self) -> None: ...


class RelayClient:
    """Implements `Relay`. `node` is this worker's own connection node, once it has started."""

    def __init__(
        self,
        settings: Endpoint,
        *,
        own_node_id: str,
        relay_url: str,
        sibling_socket: Callable[[int], str],
        secret: bytes,
        clock: Clock,
        net: NetLoop,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.node: ServedNode | None = None
        self._settings = settings
        self._own_node_id = own_node_id
        self._siblings = relay_url.rstrip("/") + "/w/"
        self._sibling_socket = sibling_socket
        self._secret = secret
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._links = link_port(net)
        self._requests = Port(net)
        self._tls = tls
        self._peers: dict[str, Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.unexpected_answers = 0  # requests for which a node raised

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        node = self._find(node_id)
        try:
            return Answer.UNREACHABLE if node is None else await node.push(uaid, notification)
        except Exception:
            self.unexpected_answers += 1
            return Answer.UNEXPECTED

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        node = self._find(node_id)
        try:
            return Answer.UNREACHABLE if node is None else await node.check_stored(uaid)
        except Exception:
            self.unexpected_answers += 1
            return Answer.UNEXPECTED

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer:
        node = self._find(node_id)
        try:
            return (
                Answer.UNREACHABLE if node is None else await node.displace(uaid, connected_at_ms)
            )
        except Exception:
            self.unexpected_answers += 1
            return Answer.UNEXPECTED

    def sibling(self, index: int) -> ServedNode:
        """Another worker of this node, for requests that this one passes on to it."""
        node_id = f"{self._siblings}{index}"
        if node_id == self._own_node_id and self.node is not None:
            return self.node
        peer = self._peers.get(node_id)
        return peer if peer is not None else self._remember(node_id, self._unix(index))

    def name_of(self, node_id: str) -> str | None:
        """The name in events of a node on another machine, if it has sent it."""
        peer = self._peers.get(node_id)
        return peer.name or None if isinstance(peer, RemoteNode) else None

    def _find(self, node_id: str) -> Node | None:
        if node_id == self._own_node_id and self.node is not None:
            return self.node
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._make(node_id)
            if peer is not None:
                self._remember(node_id, peer)
        return peer

    def _remember(self, node_id: str, peer: Peer) -> Peer:
        if len(self._peers) >= PEERS_MAX:
            # Evict the oldest; if it is still in use it is created again.
            oldest = self._peers.pop(next(iter(self._peers)))
            closing = self._loop.create_task(oldest.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._peers[node_id] = peer
        return peer

    def _unix(self, index: int) -> Peer:
        settings = self._settings
        dial = UnixDial(self._links, self._sibling_socket(index), settings.connection_timeout_s)
        return LinkClient(dial, timeout_s=settings.request_timeout_s)

    def _make(self, node_id: str) -> Peer | None:
        """None for an invalid node id; its route is cleared like that of a dead node."""
        if node_id.startswith(self._siblings):
            index = node_id[len(self._siblings) :]
            if index.isdecimal() and len(index) < 5:
                return self._unix(int(index))
        try:
            url = urlsplit(node_id)
            port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError:
            return None
        if url.scheme not in ("http", "https") or not url.hostname or not node_id.isascii():
            return None
        return RemoteNode(
            (url.hostname, port),
            url.path.rstrip("/"),
            self._settings,
            links=self._links,
            requests=self._requests,
            secret=self._secret,
            clock=self._clock,
            tls=self._tls if url.scheme == "https" else None,
        )

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()
        self._peers.clear()


class RemoteNode:
    """A node on another machine: by link if it supports it, else by HTTP."""

    def __init__(
        self,
        address: tuple[str, int],
        path: str,
        settings: Endpoint,
        *,
        links: Port,
        requests: Port,
        secret: bytes,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._http = HttpNode(requests, address, path, settings, tls=tls)
        self._http_until = 0.0 if secret else float("inf")
        dial = self._dial = UpgradeDial(
            links,
            address,
            path + PATH_END,
            secret=secret,
            timeout_s=settings.connection_timeout_s,
            tls=tls,
        )
        self._link = LinkClient(dial, timeout_s=settings.request_timeout_s)

    @property
    def name(self) -> str:
        return self._dial.peer_name

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        return await self._ask(lambda node: node.push(uaid, notification))

    async def check_stored(self, uaid: Uaid) -> Answer:
        return await self._ask(lambda node: node.check_stored(uaid))

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        return await self._ask(lambda node: node.displace(uaid, connected_at_ms))

    async def _ask(self, request: Callable[[Node], Awaitable[Answer]]) -> Answer:
        if self._clock.mono() >= self._http_until:
            try:
                return await request(self._link)
            except NotALinkError:
                self._http_until = self._clock.mono() + HTTP_ONLY_S
        return await request(self._http)

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None:
        """Never called: requests are passed on within one machine only."""

    async def close(self) -> None:
        await self._link.close()
        await self._http.close()
