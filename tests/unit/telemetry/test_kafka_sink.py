"""Event lines into Kafka, as far as it can be seen without a broker: nothing is lost silently."""

import asyncio
from pathlib import Path

import pytest

from tests.ports import free_ports
from waystation.base.clock import ManualClock, SystemClock
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.events import PushExpired
from waystation.telemetry.kafka_sink import KafkaSink
from waystation.telemetry.kafka_topic import KafkaTopic
from waystation.telemetry.sink import Portion

NODE = "home.connect.0"
NOBODY = KafkaTopic("127.0.0.1:1", "events")  # a port on which nothing listens
LINES = Portion(b"{}\n{}\n{}\n", first_seq=0, count=3, missing=0)


def test_what_no_broker_took_when_the_process_ends_is_counted() -> None:
    sink = KafkaSink(NOBODY, NODE, SystemClock(), close_within_s=0.0)
    sink.append(LINES)
    sink.append(Portion(b"{}\n{}\n", first_seq=3, count=2, missing=7))
    sink.close()

    assert sink.lost == 3 + 2 + 7, "a lost gap takes with it what it told of"


def test_a_full_queue_is_waited_for_until_the_process_ends() -> None:
    clock = ManualClock()
    sink = KafkaSink(NOBODY, NODE, clock, queued_max=2, close_within_s=0.0)
    sink.hasten()
    sink.append(LINES)
    at_once = sink.lost
    sink.close()

    assert at_once == 1, "two wait, and there is no time left for the third"
    assert sink.lost == 3


def test_what_is_not_delivered_in_time_is_given_up_and_counted() -> None:
    sink = KafkaSink(NOBODY, NODE, SystemClock(), delivery_timeout_s=0.1)
    sink.append(LINES)
    for _ in range(2000):
        sink.look()
        if sink.lost:
            break
        sink._producer.poll(0.01)

    assert sink.lost == 3
    sink.close()


async def test_an_event_log_counts_what_its_sink_gave_up(tmp_path: Path) -> None:
    sink = KafkaSink(NOBODY, NODE, SystemClock(), close_within_s=0.0)
    log = EventLog(tmp_path, NODE, 1, SystemClock(), sink=sink)
    log.start(asyncio.get_running_loop())
    for index in range(5):
        log.emit(PushExpired(mid=str(index)))
    await log.close()

    assert log.lost_total == 5
    assert not list(tmp_path.iterdir()), "no segment beside the topic"


def test_a_setting_that_clients_do_not_know_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("no.such.thing = 1\n")
    topic = KafkaTopic(f"127.0.0.1:{free_ports(1)}", config_file=str(file))

    with pytest.raises(ValueError, match=r"no\.such\.thing"):
        KafkaSink(topic, NODE, SystemClock())
