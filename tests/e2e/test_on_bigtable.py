"""Two connection nodes and two endpoint nodes on Bigtable."""

import pytest

from tests.e2e.store_walk import SharedStore, StoreWalk
from tests.servers.bigtable import BigtableEmulator, bigtable_emulator

__all__ = ["bigtable_emulator"]

pytestmark = [pytest.mark.e2e, pytest.mark.bigtable]


@pytest.fixture(scope="module")
def shared_store(bigtable_emulator: BigtableEmulator) -> SharedStore:
    table = bigtable_emulator.unmade_table()
    url = f"bigtable://{table.project}/{table.instance}/{table.table}?emulator={table.emulator}"
    return SharedStore(url, bigtable_emulator.port)


class TestOnBigtable(StoreWalk): ...
