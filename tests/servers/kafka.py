"""A Kafka broker of its own for the tests of one process: free ports, one node, nothing kept."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.servers.java_process import JavaProcess
from tests.servers.shared import Shared
from tools.prepare_tests import JARS
from waystation.pipeline.java import find_java

STARTED_WITHIN_S = 90.0  # a Java program on a busy machine
ASKED_WITHIN_S = 5.0
_ANY_ID = "d2F5c3RhdGlvbi10ZXN0cw"  # 16 bytes


class KafkaServer:
    """Broker and controller in one process; `stop` and `start` keep the port and what is there.
    Tests are kept apart by their topics."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(2)
        self._folder = folder
        self._data = folder / "data"
        self._java = JavaProcess("Kafka", folder)
        self._topics = count()
        self._data.mkdir()
        # What Kafka's own program would write to format a disk; it would take a JVM more.
        (self._data / "meta.properties").write_text(
            f"version=1\ncluster.id={_ANY_ID}\nnode.id=1\ndirectory.id={_ANY_ID}\n"
        )
        (folder / "server.properties").write_text(self._properties())

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _properties(self) -> str:
        controller = f"127.0.0.1:{self.port + 1}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._data),
            "auto.create.topics.enable": "false",
            "log.retention.ms": "-1",  # records of tests may be from any year
            "offsets.topic.replication.factor": "1",
            "num.network.threads": "1",
            "num.io.threads": "2",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def new_topic(self, partitions: int = 2) -> str:
        """One that nobody has used yet."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        name = f"events{next(self._topics)}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(STARTED_WITHIN_S)
        return name

    def start(self) -> None:
        java = find_java(None, os.environ)
        command = [str(java.binary), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", f"{JARS}/*", "kafka.Kafka", str(self._folder / "server.properties")]
        self._java.start(command, self._answers, within_s=STARTED_WITHIN_S)

    def _answers(self) -> bool:
        """It knows itself as a broker: a port that listens is not enough."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        quiet = {"bootstrap.servers": self.servers, "log_level": 0}
        try:
            return bool(AdminClient(quiet).list_topics(timeout=ASKED_WITHIN_S).brokers)
        except KafkaException:
            return False

    def stop(self) -> None:
        self._java.stop()


@contextmanager
def running_kafka() -> Iterator[KafkaServer]:
    if not JARS.is_dir():
        raise RuntimeError("Kafka's jars are missing: run tools/prepare_tests.py")
    folder = Path(tempfile.mkdtemp(prefix="waystation-kafka-"))
    server = KafkaServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


_shared = Shared(running_kafka)


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with _shared.held() as server:
        yield server
