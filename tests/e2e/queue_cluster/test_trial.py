"""Real processes: four servers, two edges, clients that write, and constant moves and kills.

A server is added, one is drained, one is killed with `kill -9` while its followers are in step,
edges are restarted and killed, slots move all the time. What was answered `OK` is delivered, in
its order.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.queue_cluster.fleet import Fleet, quiet
from tests.e2e.queue_cluster.trial import Trial
from waystation.queue.cluster.plan import shifted_followers
from waystation.queue.cluster.slot_map import NodeId, SlotMap

pytestmark = pytest.mark.e2e

FEW = 96  # slots of the short one: the others belong to nobody, and nothing needs them


def followed(slot_map: SlotMap) -> bool:
    """Every slot has a follower that is in step, and it stays who it is."""
    return all(one.in_step for _, one in slot_map.owned) and not shifted_followers(slot_map, 1)


async def added(trial: Trial, *, share: bool) -> int:
    """One more server, which gets its share or some of the slots that are in use."""
    fleet = trial.fleet
    with trial.during("a server is added"):
        number = await asyncio.to_thread(fleet.join)
        await asyncio.to_thread(fleet.servers[number].start)
        await trial.server_is_up(number)
        if share:
            await trial.ask("add")
        else:
            await trial.move_some([number])
        await fleet.until(lambda m: quiet(m) and bool(m.owned_by(NodeId(number))), 300)
        await trial.gone_on(5)
    return number


async def drained(trial: Trial, number: int) -> None:
    fleet = trial.fleet
    with trial.during("a server is drained, stopped and removed"):
        await trial.ask("drain", str(number))
        leaving = NodeId(number)
        await fleet.until(lambda m: not (m.owned_by(leaving) or m.followed_by(leaving)), 300)
        await asyncio.to_thread(fleet.servers[number].stop)
        await trial.ask("remove", str(number))
        await fleet.until(lambda m: leaving not in m.nodes, 5)
        await trial.gone_on(5)


async def killed(trial: Trial, number: int | None = None) -> None:
    """Its followers take over; nothing that it answered is lost. Without a number: whoever has
    the first pair's queue."""
    fleet = trial.fleet
    with trial.during("followers catch up"):
        slot_map = await fleet.until(followed, 300)
    number = number or int(slot_map.slots[trial.pairs[0].slot].owner)
    held = len(slot_map.owned_by(NodeId(number)))
    with trial.during(f"a server with {held} slots is killed and replaced"):
        await asyncio.to_thread(fleet.servers[number].kill)
        await trial.make_queues(6)
        await fleet.until(lambda m: not m.owned_by(NodeId(number)), 60)
        await trial.gone_on(5)
    with trial.during("the dead server comes back"):
        await asyncio.to_thread(fleet.servers[number].start)
        await trial.server_is_up(number)
        await trial.gone_on(5)


async def moved(trial: Trial, targets: list[int], rounds: int) -> None:
    with trial.during("slots move"):
        for _ in range(rounds):
            await trial.move_some(targets)
        await trial.fleet.until(quiet, 120)
        await trial.gone_on(5)


async def edges_replaced(trial: Trial) -> None:
    first, second = trial.fleet.edges
    with trial.during("an edge is restarted"):
        await asyncio.to_thread(first.restart)
        await trial.gone_on(5)
    with trial.during("an edge is killed"):
        await asyncio.to_thread(second.kill)
        await trial.gone_on(5)
        await asyncio.to_thread(second.start)


async def begin(fleet: Fleet, *, few: bool) -> None:
    await asyncio.to_thread(fleet.make, 4)
    await fleet.share(lambda slot: 1 + slot % 4 if slot < FEW or not few else 0)
    await asyncio.to_thread(fleet.start)
    await fleet.until(lambda m: all(node.status == "up" for node in m.nodes.values()), 60)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One for all the short tests: each leaves a cluster that serves every slot."""
    with Fleet(tmp_path_factory.mktemp("fleet"), controller__replicas=1) as made:
        asyncio.run(begin(made, few=True))
        yield made


async def tried(trial: Trial, story: Callable[[Trial], Awaitable[None]]) -> None:
    await trial.live(story)
    print(trial.report())
    trial.check()


async def test_slots_move_and_servers_come_and_go_while_people_write(fleet: Fleet) -> None:
    """Q-123, Q-130"""

    async def story(trial: Trial) -> None:
        await moved(trial, [1, 2, 3, 4], rounds=1)
        await added(trial, share=False)
        await drained(trial, 4)

    trial = Trial(fleet, pairs=3, pause_s=0.02)
    await tried(trial, story)

    assert trial.moves_asked >= 4


async def test_edges_come_and_go_while_people_write(fleet: Fleet) -> None:
    trial = Trial(fleet, pairs=3, pause_s=0.02)
    await tried(trial, edges_replaced)

    assert all(pair.sent > 10 for pair in trial.pairs)


async def test_a_server_that_is_killed_is_replaced_by_its_followers(fleet: Fleet) -> None:
    """Q-126, Q-127: nothing that it answered is lost; when it comes back it serves nothing until
    slots move there again."""

    async def story(trial: Trial) -> None:
        await killed(trial)
        await moved(trial, [1, 2, 3], rounds=1)

    trial = Trial(fleet, pairs=3, pause_s=0.02)
    await tried(trial, story)

    assert all(pair.sent > 10 for pair in trial.pairs)


@pytest.mark.soak
async def test_constant_moves_and_kills_lose_no_message(tmp_path: Path) -> None:
    """Every server is killed once, a whole share is moved and a whole server is drained."""
    with Fleet(tmp_path, controller__replicas=1) as fleet:
        await begin(fleet, few=False)
        trial = Trial(fleet, pairs=6, pause_s=0.01)

        async def moves_on(over: asyncio.Event) -> None:
            while not over.is_set():
                slot_map = await fleet.until(lambda _: True, 60)
                up = [int(n.node_id) for n in slot_map.nodes.values() if n.status == "up"]
                await trial.move_some(up)

        async def story(trial: Trial) -> None:
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(moves_on(over))
                await added(trial, share=True)
                await drained(trial, 4)
                for _ in range(3):
                    await edges_replaced(trial)
                over.set()
            for number in (1, 2, 3):
                await killed(trial, number)
                await moved(trial, [1, 2, 3, 5], rounds=2)

        await tried(trial, story)

        assert trial.moves_asked >= 20
