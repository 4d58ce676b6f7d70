"""The data source over stores, without Spark: what Spark would call, called by us."""

import asyncio
import base64
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan, StringStartsWith

from waystation.base.clock import SystemClock
from waystation.pipeline.sources.copy import CopySource
from waystation.pipeline.sources.rate_limit import RateLimit
from waystation.pipeline.sources.store import Removed, StoreReader, StoreSource
from waystation.push.model import ChannelId, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage.bulk import StoreConfig, write_store_config
from waystation.storage.open import open_push_store
from waystation.storage.settings import Store
from waystation.telemetry.hashes import EventHashes

MASTER = bytes(range(32))
SETTINGS = Store(map_bytes=1 << 26)
NOW_MS = 1_794_000_000_000
UAIDS = [Uaid(bytes([number * 16]) + bytes(15)) for number in range(16)]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """Sixteen user agents, each connected a second after the one before."""

    async def fill(store: PushStore) -> None:
        for number, uaid in enumerate(UAIDS):
            record = UserAgent(uaid=uaid, connected_at_ms=NOW_MS + number * 1000)
            assert await store.add_user_agent(record)
            channel = ChannelId(bytes([number]) * 16)
            assert await store.add_channel(uaid, channel, channels_max=9)

    use(tmp_path, fill)
    write_store_config(
        tmp_path / "place.json",
        StoreConfig(url="embedded:./store", data_dir=str(tmp_path), settings=SETTINGS),
    )
    (tmp_path / "key").write_text(MASTER.hex())
    return {
        "opener": "waystation.storage.open:open_bulk",
        "place": str(tmp_path / "place.json"),
        "key_file": str(tmp_path / "key"),
        "table": "router",
        "now_ms": str(NOW_MS),
    }


def use(folder: Path, work: Any) -> Any:
    async def opened() -> Any:
        store = await open_push_store(
            "embedded:./store", data_dir=folder, settings=SETTINGS, clock=SystemClock()
        )
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(opened())


def reader_of(options: dict[str, str]) -> StoreReader:
    source = StoreSource(options)
    reader = source.reader(source.schema())
    assert isinstance(reader, StoreReader)
    return reader


def rows_of(reader: StoreReader) -> list[dict[str, Any]]:
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_ids_leave_a_worker_as_the_hashes_of_events(options: dict[str, str]) -> None:
    hashes = EventHashes(MASTER)
    rows = rows_of(reader_of(options | {"ranges": "3"}))

    assert [row["uah"] for row in rows] == [hashes.uah(uaid, NOW_MS) for uaid in UAIDS]
    assert all("uaid" not in row for row in rows)
    raw = rows_of(reader_of(options | {"raw": "true"}))
    assert [row["uaid"] for row in raw] == UAIDS


def test_parts_that_were_planned_before_are_taken_as_they_are(options: dict[str, str]) -> None:
    whole = reader_of(options | {"ranges": "4"})
    third = [vars(part)["part"] for part in whole.partitions()][2]
    planned = json.dumps([base64.b64encode(third).decode()])
    rows = rows_of(reader_of(options | {"parts": planned, "raw": "true"}))

    assert [row["uaid"] for row in rows] == UAIDS[8:12]


def test_bounds_on_times_reach_the_store_and_are_left_to_spark_as_well(
    options: dict[str, str],
) -> None:
    reader = reader_of(options | {"raw": "true"})
    asked = [
        GreaterThanOrEqual(("connected_at_ms",), NOW_MS + 3000),
        LessThan(("connected_at_ms",), NOW_MS + 5000),
        StringStartsWith(("router_type",), "web"),
        EqualTo(("version",), 1),
    ]

    assert list(reader.pushFilters(list(asked))) == asked
    assert [row["uaid"] for row in rows_of(reader)] == UAIDS[3:5]


def test_a_writer_removes_only_what_is_unchanged_and_leaves_a_receipt(
    options: dict[str, str], tmp_path: Path
) -> None:
    pyarrow: Any = import_module("pyarrow")
    raw = rows_of(reader_of(options | {"raw": "true"}))
    source = StoreSource(options | {"receipt": str(tmp_path / "receipt")})
    writer = source.writer(source.schema(), overwrite=False)
    seen = [{"uaid": row["uaid"], "version": row["version"]} for row in raw[:3]]
    seen[1]["version"] += 1  # it came back since
    doomed = pyarrow.RecordBatch.from_pylist(seen)
    message = writer.write(iter([doomed]))
    assert isinstance(message, Removed)
    writer.commit([message, None])

    assert json.loads((tmp_path / "receipt").read_text()) == {"asked": 3, "removed": 2}
    left = [row["uaid"] for row in rows_of(reader_of(options | {"raw": "true"}))]
    assert left == [UAIDS[1], *UAIDS[3:]]


def test_a_part_of_a_copy_tells_what_became_of_it(options: dict[str, str], tmp_path: Path) -> None:
    place = StoreConfig(url="embedded:./target", data_dir=str(tmp_path), settings=SETTINGS)
    write_store_config(tmp_path / "target.json", place)
    parts = [vars(part)["part"] for part in reader_of(options | {"ranges": "2"}).partitions()]
    source = CopySource(
        {
            "opener": "waystation.storage.dual.copy:open_copier",
            "source": options["place"],
            "target": str(tmp_path / "target.json"),
            "table": "records",
            "since_ms": "0",
            "parts": json.dumps([base64.b64encode(part).decode() for part in parts]),
        }
    )
    reader: Any = source.reader(source.schema())
    assert len(reader.partitions()) == len(parts) > 0
    for expected in ((8, 8, 0), (8, 0, 8)):  # what is there already is not written again
        for part in reader.partitions():
            ((row,),) = [batch.to_pylist() for batch in reader.read(part)]
            assert (row["read"], row["written"], row["present"]) == expected


def test_a_pace_of_nothing_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    free, slow = RateLimit(0), RateLimit(10)
    for pace in (free, slow):
        pace.wait(5)
        pace.wait(5)

    assert len(slept) == 1
    assert 0.3 < slept[0] <= 0.5
