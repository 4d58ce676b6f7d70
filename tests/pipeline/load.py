"""Servers at work on a store, as a thread."""

import asyncio
import random
import threading
import time
from pathlib import Path

from tests.pipeline.server_actions import KnownState, ServerActions
from tests.pipeline.store_population import StorePopulation
from tests.pipeline.store_servers import PATIENT
from waystation.base.clock import SystemClock
from waystation.push.model import MessageId, Uaid
from waystation.push.store import PushStore
from waystation.storage.open import open_push_store

TASKS = 4
PAUSE_S = 0.02


class Load(threading.Thread):
    """Until `stop`; what it knows is `known`, and `again` came after its ack."""

    def __init__(
        self, url: str, folder: Path, population: StorePopulation, active: int, seed: int
    ) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._folder = folder
        self._active = active
        self._stopped = threading.Event()
        self._rng = random.Random(seed)
        self._acts = ServerActions(self._rng, self.now_ms)
        self.begun = threading.Event()
        self.failure: BaseException | None = None
        for number in range(population.size):
            member = population.member(number)
            own = set(member.channels)
            waiting = {
                one.message_id: (one.channel_id, one.sort_key)
                for one in member.messages
                if one.channel_id in own
            }
            self.known[member.record.uaid] = KnownState(own, waiting, set())

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    @property
    def known(self) -> dict[Uaid, KnownState]:
        return self._acts.known

    @property
    def done(self) -> dict[str, int]:
        return self._acts.done

    @property
    def again(self) -> list[MessageId]:
        return self._acts.again

    def stop(self) -> None:
        self._stopped.set()
        self.join(120)
        assert not self.is_alive(), "the load does not end"
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as exc:
            self.failure = exc
        finally:
            self.begun.set()

    async def _run(self) -> None:
        store = await open_push_store(
            self._url, data_dir=self._folder, settings=PATIENT, clock=SystemClock()
        )
        uaids = list(self.known)[: self._active]
        try:
            async with asyncio.TaskGroup() as group:
                for task in range(TASKS):
                    group.create_task(self._work(store, uaids[task::TASKS]))
        finally:
            await store.close()

    async def _work(self, store: PushStore, uaids: list[Uaid]) -> None:
        while not self._stopped.is_set():
            if self._rng.random() < 0.02:
                uaids.append(await self._acts.arrive(store))
            uaid = self._rng.choice(uaids)
            if not self.known[uaid].removed:
                await self._acts.one(store, uaid)
                self.begun.set()
            await asyncio.sleep(PAUSE_S)  # a load, not a flood: others share the machine
