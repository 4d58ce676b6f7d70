"""The event log through Kafka: a topic gives the same tables as segments with the same lines."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from tests.e2e.platform import Serve
from tests.oracle import intake as oracle
from tests.pipeline.conftest import NOW_MS
from tests.pipeline.spools import Source, encode, odd_spool
from tests.servers.kafka import KafkaServer, kafka_server, running_kafka  # noqa: F401 a fixture
from waystation.base.clock import SystemClock
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import ingest
from waystation.pipeline.schema import DQ, EVENTS, QUARANTINE
from waystation.pipeline.settings import Pipeline
from waystation.pipeline.sources import kafka as source
from waystation.telemetry import contract
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.events import PushExpired
from waystation.telemetry.kafka_sink import KafkaSink
from waystation.telemetry.kafka_topic import KafkaTopic

pytestmark = pytest.mark.kafka

TOLERANT = Pipeline(quarantine_share_max=1.0)
NODE = "a.b.0"


@pytest.fixture
def topic(kafka_server: KafkaServer) -> KafkaTopic:  # noqa: F811 the fixture
    return KafkaTopic(kafka_server.servers, kafka_server.new_topic())


def put(topic: KafkaTopic, records: Iterable[tuple[str | None, bytes | None, int]]) -> None:
    """Key, value, and the moment in milliseconds."""
    producer = Producer({"bootstrap.servers": topic.servers, "enable.idempotence": True})
    for key, value, at_ms in records:
        producer.produce(topic.name, value, key, timestamp=at_ms)
    assert producer.flush(60) == 0


def context(lake: Lake, name: str, *, at: Any = None) -> Context:
    return Context(
        lake.spark, Lake(lake.spark, f"{lake.root}/{name}", lake.clock, at=at), lake.clock, TOLERANT
    )


def events(ctx: Context) -> Counter[tuple[Any, ...]]:
    rows = ctx.lake.read(EVENTS).select(*contract.COLUMNS).collect()
    return Counter(tuple(row) for row in rows)


def rejected(ctx: Context) -> Counter[tuple[Any, ...]]:
    rows = ctx.lake.read(QUARANTINE).select("node", "reason", "line", "sealed_at").collect()
    return Counter(tuple(row) for row in rows)


def test_a_topic_gives_the_same_tables_as_segments_with_the_same_lines(
    lake: Lake, tmp_path: Path, topic: KafkaTopic
) -> None:
    """But for lines of another boot than their file's: no record says which boot is right, so they
    are not sent."""
    spool = tmp_path / "spool"
    odd_spool(spool, 3, NOW_MS, sources=6, odd=0.2)
    records: list[tuple[str, bytes, int]] = []
    for node, boot, _, _, path in oracle.sealed(spool):
        at_ms = path.stat().st_mtime_ns // 1_000_000
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
        for line in path.read_bytes().split(b"\n")[:-1]:
            row = oracle.values(line)
            if row is None or row["boot"] in {None, boot}:
                records.append((node, line, at_ms))
    put(topic, records)
    of_segments, of_topic = context(lake, "segments"), context(lake, "topic")

    ingest.drain(of_segments, spool)
    result = ingest.drain(of_topic, topic)

    assert events(of_topic) == events(of_segments)
    bad = rejected(of_topic)
    others = {one: count for one, count in rejected(of_segments).items() if one not in bad}
    assert {one[1] for one in others} == {"foreign"}
    assert bad == rejected(of_segments) - Counter(others)
    assert len({one[1] for one in bad}) >= 8, "the lines are not odd enough"
    assert result.rows_in == len(records)
    assert ingest.run(of_topic, topic).state == "noop"


class Killed(BaseException):
    """Not an error that anybody catches: the process is gone."""


def test_what_comes_again_and_what_is_no_text_is_told_once_with_its_place(
    lake: Lake, topic: KafkaTopic
) -> None:
    armed = ["quarantine"]

    def die(point: str, table: str) -> None:
        if point == "committed" and table in armed:
            armed.clear()
            raise Killed

    ctx = context(lake, "topic", at=die)
    process = Source(random.Random(1), NODE, 7, NOW_MS * 1000 - 60_000_000)
    lines = [encode(process.event(301, code=number)) for number in range(4)]
    put(topic, [(NODE, line, NOW_MS) for line in lines[:3]])
    put(topic, [(NODE, b"\xff\xfe", NOW_MS), (None, lines[3], NOW_MS), (NODE, None, NOW_MS)])
    with pytest.raises(Killed):
        ingest.drain(ctx, topic)  # `quarantine` is ahead now
    ingest.drain(ctx, topic)
    first = events(ctx)

    # Another producer repeats what the lake has, and goes on.
    put(topic, [(NODE, line, NOW_MS) for line in lines])
    ingest.drain(ctx, topic)

    assert {row[4] for row in first} == {0, 1, 2}
    assert {row[4] for row in events(ctx)} == {0, 1, 2, 3}
    places = ctx.lake.read(QUARANTINE).select("reason", "node", "topic", "offset", "segno")
    found = Counter((row.reason, row.node, row.topic) for row in places.collect())
    assert found == Counter(
        {
            ("unreadable", NODE, topic.name): 1,
            ("blank", NODE, topic.name): 1,
            ("foreign", None, topic.name): 1,
            ("seq_seen", NODE, topic.name): 3,
        }
    )
    assert places.where("offset is null or segno is not null").count() == 0
    failed = ctx.lake.read(DQ).where("not ok and check like '%record%'").count()
    assert failed == 0


def test_a_topic_that_is_not_there_is_named(lake: Lake, topic: KafkaTopic) -> None:
    nowhere = KafkaTopic(topic.servers, "no-such-topic")

    with pytest.raises(source.TopicError, match="no-such-topic"):
        ingest.drain(context(lake, "topic"), nowhere)


def test_a_server_tells_its_life_to_the_topic(tmp_path: Path, topic: KafkaTopic) -> None:
    with Serve(
        tmp_path / "data",
        roles=("connect", "endpoint"),
        events__sink="kafka",
        events__kafka_servers=topic.servers,
        events__kafka_topic=topic.name,
    ) as server:
        assert server.stop() == 0

    lines = [json.loads(one.value() or b"") for one in records_of(topic)]
    assert (lines[0]["k"], lines[-1]["k"]) == (300, 301)
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert not list((tmp_path / "data" / "events").glob("*/*"))


def records_of(topic: KafkaTopic) -> list[Message]:
    found = source.plan(topic, lambda _: None, records_max=1 << 30).ranges
    return [one for span in found for records in source._read(topic, span) for one in records]


@pytest.mark.soak
async def test_a_broker_that_is_killed_and_comes_back_has_every_line_once(tmp_path: Path) -> None:
    with running_kafka() as server:
        topic = KafkaTopic(server.servers, server.new_topic())
        log = EventLog(tmp_path, NODE, 1, SystemClock(), sink=KafkaSink(topic, NODE, SystemClock()))
        log.start(asyncio.get_running_loop())
        count = 0
        for _ in range(3):
            for number in range(4000):
                log.emit(PushExpired(mid=str(count)))
                count += 1
                if number % 100 == 0:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(server.stop)
            log.emit(PushExpired(mid=str(count)))
            count += 1
            await asyncio.to_thread(server.start)
        await log.close()

        lines = [json.loads(one.value() or b"") for one in records_of(topic)]
    assert log.lost_total == 0
    assert [line["seq"] for line in lines] == list(range(count))
