"""Links to relays: shared, failures remembered, limited in number."""

import asyncio
from typing import Any, cast

import pytest

from waystation.base.clock import ManualClock
from waystation.base.tasks import Tasks
from waystation.queue.errors import Broker, BrokerFault, RefusedError
from waystation.queue.model import Fingerprint, SessionId, VersionRange
from waystation.queue.server import relay_link, relays
from waystation.queue.server.relay_link import RelayLink, usable_endpoint
from waystation.queue.server.relays import Relays
from waystation.queue.wire.commands import RelayAddress
from waystation.queue.wire.responses import Pkey

NETWORK = BrokerFault(Broker.NETWORK)


class Link(RelayLink):
    """A link that needs no socket."""

    def __init__(self, number: int) -> None:
        address = RelayAddress((b"host",), b"", Fingerprint(bytes(32)))
        super().__init__(cast(Any, None), address, clock=ManualClock(), request_timeout_s=1.0)
        session_id = SessionId(number.to_bytes(32, "big"))
        self._session.pkey = Pkey(session_id, VersionRange(8, 17), (b"leaf", b"ca"), b"key")


class Connector:
    def __init__(self) -> None:
        self.asked = 0
        self.reachable = True
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def connect(self, address: RelayAddress) -> RelayLink:
        self.asked += 1
        await self.may_end.wait()
        if not self.reachable:
            raise RefusedError(NETWORK)
        return Link(self.asked)


class World:
    def __init__(self, links_max: int = 10) -> None:
        self.clock = ManualClock()
        self.connector = Connector()
        self.tasks = Tasks(lambda name, error: None)
        self.relays = Relays(
            self.connector,
            tasks=self.tasks,
            clock=self.clock,
            links_max=links_max,
            failure_memory_s=30.0,
        )


def relay(number: int = 1) -> RelayAddress:
    return RelayAddress((b"relay%d.example" % number,), b"", Fingerprint(bytes(32)))


async def fault(world: World, address: RelayAddress) -> object:
    with pytest.raises(RefusedError) as refused:
        await world.relays.link(address)
    return refused.value.fault


async def test_all_clients_share_one_link() -> None:
    """Q-094: asking twice gives the same session, also while it is being made."""
    world = World()
    world.connector.may_end.clear()
    asking = [asyncio.ensure_future(world.relays.link(relay())) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()  # one who leaves does not end it for the others
    world.connector.may_end.set()

    links = await asyncio.gather(*asking[1:])

    assert len({id(link) for link in links}) == 1
    assert await world.relays.link(relay()) is links[0]
    assert world.connector.asked == 1
    assert world.relays.by_session(links[0].pkey.session_id) == (relay(), links[0])


async def test_a_failure_is_remembered_for_a_while() -> None:
    """Q-100: a thousand attempts open one socket."""
    world = World()
    world.connector.reachable = False

    for _ in range(1000):
        assert await fault(world, relay()) == NETWORK
    assert world.connector.asked == 1
    world.clock.advance(29.9)
    assert await fault(world, relay()) == NETWORK
    assert world.connector.asked == 1
    world.connector.reachable = True
    world.clock.advance(0.2)
    assert await world.relays.link(relay())
    assert world.connector.asked == 2


async def test_a_link_that_ended_is_known_no_more() -> None:
    """Q-102: the old session is gone, the next request makes a new one."""
    world = World()
    link = await world.relays.link(relay())

    link.close()

    assert world.relays.by_session(link.pkey.session_id) is None
    assert len(world.relays) == 0
    again = await world.relays.link(relay())
    assert again is not link
    assert world.relays.by_session(again.pkey.session_id) is not None


async def test_the_number_of_links_is_bounded() -> None:
    world = World(links_max=2)
    first, second = [await world.relays.link(relay(n)) for n in (1, 2)]
    assert world.relays.by_session(first.pkey.session_id) is not None  # used more recently

    third = await world.relays.link(relay(3))

    assert len(world.relays) == 2
    assert second.is_over
    assert not first.is_over
    world.relays.close()
    assert first.is_over
    assert third.is_over
    assert len(world.relays) == 0


async def test_remembered_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "FAILURES_MAX", 3)
    world = World()
    world.connector.reachable = False

    for number in range(5):
        await fault(world, relay(number))

    assert len(cast(Any, world.relays)._failures) == 3


async def test_concurrent_connection_attempts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "ATTEMPTS_MAX", 2)
    world = World()
    world.connector.may_end.clear()
    asking = [asyncio.ensure_future(world.relays.link(relay(n))) for n in (1, 2)]
    await asyncio.sleep(0)

    assert await fault(world, relay(3)) == BrokerFault(Broker.TIMEOUT)
    world.connector.may_end.set()
    await asyncio.gather(*asking)
    assert await world.relays.link(relay(3))


@pytest.mark.parametrize(
    "host", [b"127.0.0.1", b"10.1.2.3", b"[::1]", b"::ffff:127.0.0.1", b"localhost"]
)
async def test_private_hosts_may_be_left_alone(host: bytes) -> None:
    connector = relay_link.Connector(
        cast(Any, None),
        clock=ManualClock(),
        connect_timeout_s=20.0,
        request_timeout_s=1.0,
        private_hosts=False,
    )

    with pytest.raises(RefusedError) as refused:
        await connector.connect(RelayAddress((host,), b"", Fingerprint(bytes(32))))

    assert refused.value.fault == BrokerFault(Broker.HOST)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.0.0.170",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.7",
        "203.0.113.7",
        "224.0.0.251",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:0:10.0.0.1",
        "::ffff:224.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b::224.0.0.1",
        "64:ff9b:1::8.8.8.8",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_an_address_that_is_not_of_one_public_machine_is_private(address: str) -> None:
    assert not relay_link.is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::1111", "2a00:1450:4001::1"],
)
def test_an_address_of_a_public_machine_is_public(address: str) -> None:
    assert relay_link.is_public(address)


@pytest.mark.parametrize("host", ["64:ff9b::10.0.0.1", "2002:7f00:1::1", "ff02::1", "224.0.0.251"])
async def test_no_link_is_opened_to_an_address_that_can_lead_to_a_private_machine(
    host: str,
) -> None:
    connector = relay_link.Connector(
        cast(Any, None), clock=ManualClock(), connect_timeout_s=10.0, request_timeout_s=10.0
    )
    address = RelayAddress((host.encode(),), b"", Fingerprint(bytes(32)))
    with pytest.raises(RefusedError) as refused:
        await connector.connect(address)

    assert refused.value.fault == BrokerFault(Broker.HOST)


async def test_a_link_without_a_connection_is_network() -> None:
    """What waits when a connection ends is told so, and so is whoever comes later."""
    link = Link(1)
    link.close()

    assert link.closed
    assert relay_link.REQUESTS_MAX > 0
    response = await link.forward(cast(Any, None))
    assert response == relay_link.Err(NETWORK)


@pytest.mark.parametrize(
    "hosts, port, endpoint",
    [
        ((b"smp.example",), b"", ("smp.example", 5223)),
        ((b"smp.example", b"other"), b"443", ("smp.example", 443)),
        ((b"abc.onion", b"smp.example"), b"", ("smp.example", 5223)),
        ((b"[::1]",), b"5224", ("::1", 5224)),
        ((b"127.0.0.1",), b"65535", ("127.0.0.1", 65535)),
        ((b"abc.onion",), b"", None),
        ((b"",), b"", None),
        ((b"\xff",), b"", None),
        ((b"a b",), b"", None),
        ((b"a/b",), b"", None),
        ((b"smp.example",), b"0", None),
        ((b"smp.example",), b"65536", None),
        ((b"smp.example",), b"-1", None),
        ((b"smp.example",), b"\xc2\xb2", None),
        ((b"a." * 200,), b"", None),
    ],
)
def test_where_a_relay_is(
    hosts: tuple[bytes, ...], port: bytes, endpoint: tuple[str, int] | None
) -> None:
    address = RelayAddress(hosts, port, Fingerprint(bytes(32)))

    assert usable_endpoint(address) == endpoint
