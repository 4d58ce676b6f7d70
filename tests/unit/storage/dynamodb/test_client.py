"""Requests to DynamoDB as they are signed and sent, and answers as they are read."""

import asyncio
import datetime
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import botocore.auth
import botocore.session
import pytest
import uvloop
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from waystation.storage.dynamodb.client import (
    Client,
    Credentials,
    NoAnswerError,
    NotSentError,
    ServiceError,
    Signer,
)

NOW_S = 1_790_000_000
REGION = "eu-central-1"
KEY = {"uaid": {"S": "a" * 32}}
ROW = KEY | {"chidmessageid": {"S": "02:1:é"}}
# One request of every kind that the store sends.
REQUESTS: dict[str, dict[str, Any]] = {
    "BatchGetItem": {"RequestItems": {"router": {"Keys": [KEY], "ConsistentRead": True}}},
    "BatchWriteItem": {"RequestItems": {"message": [{"PutRequest": {"Item": ROW}}]}},
    "PutItem": {"TableName": "message", "Item": ROW, "ReturnValues": "ALL_OLD"},
    "UpdateItem": {
        "TableName": "router",
        "Key": KEY,
        "UpdateExpression": "SET expiry = :e",
        "ConditionExpression": "attribute_exists(uaid)",
        "ExpressionAttributeValues": {":e": {"N": "1"}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    },
    "DeleteItem": {"TableName": "message", "Key": ROW},
    "Query": {
        "TableName": "message",
        "KeyConditionExpression": "uaid = :u",
        "ExpressionAttributeValues": {":u": KEY["uaid"]},
        "ConsistentRead": True,
        "Limit": 11,
    },
    "Scan": {"TableName": "router", "Segment": 0, "TotalSegments": 2},
    "TransactWriteItems": {
        "TransactItems": [{"Put": {"TableName": "message", "Item": ROW}}],
        "ClientRequestToken": "00000000-0000-4000-8000-000000000000",
    },
    "ListTables": {},
    "DescribeTable": {"TableName": "router"},
    "DescribeTimeToLive": {"TableName": "router"},
}


def headers_of(head: bytes) -> dict[str, str]:
    lines = head.decode().split("\r\n")[1:-2]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


@pytest.mark.parametrize("token", [None, "a/session+token=="], ids=["key", "key and token"])
@pytest.mark.parametrize("operation", REQUESTS)
def test_a_signature_is_the_one_that_botocore_makes(
    operation: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = f"dynamodb.{REGION}.amazonaws.com"
    body = json.dumps(REQUESTS[operation], ensure_ascii=False).encode()
    head = Signer(REGION, host).head(
        operation, body, Credentials("AKID", "secret", token), float(NOW_S)
    )
    ours = headers_of(head)
    request = AWSRequest(
        "POST",
        f"https://{host}/",
        headers={
            "Content-Type": ours["content-type"],
            "X-Amz-Target": ours["x-amz-target"],
            "Host": host,
        },
        data=body,
    )
    moment = datetime.datetime.fromtimestamp(NOW_S, datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: moment)
    credentials = BotoCredentials("AKID", "secret", token)
    botocore.auth.SigV4Auth(credentials, "dynamodb", REGION).add_auth(request)

    assert ours["authorization"] == request.headers["Authorization"]
    assert ours["x-amz-date"] == request.headers["X-Amz-Date"]
    assert ours.get("x-amz-security-token") == token


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_request_is_the_one_that_botocore_sends(operation: str) -> None:
    """Its target, its content type and its body, whatever the order of the fields."""
    session = botocore.session.get_session()
    client = session.create_client(
        "dynamodb", region_name=REGION, aws_access_key_id="AKID", aws_secret_access_key="secret"
    )
    model = client.meta.service_model.operation_model(operation)
    theirs = client._convert_to_request_dict(
        REQUESTS[operation], model, endpoint_url="https://x", context={}
    )
    ours = headers_of(Signer(REGION, "x").head(operation, b"{}", Credentials("a", "b"), NOW_S))

    assert json.loads(theirs["body"]) == REQUESTS[operation]
    assert theirs["headers"]["X-Amz-Target"] == ours["x-amz-target"]
    assert theirs["headers"]["Content-Type"] == ours["content-type"]
    assert (theirs["method"], theirs["url_path"]) == ("POST", "/")


class Service:
    """An HTTP server whose answers are those of a script, and which counts connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.answers: list[bytes | None] = []  # None: close without an answer
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(headers_of(head)["content-length"])
            await reader.readexactly(length)
            if not self.answers:
                continue
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)


def answer(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    yield service
    await service.stop()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    client = Client(REGION, await service.start(), None, connect_timeout_s=5.0)
    yield client
    await client.close()


def test_calls_work_on_the_loop_of_the_servers() -> None:
    async def two_calls() -> list[dict[str, Any]]:
        service = Service()
        client = Client(REGION, await service.start(), None, connect_timeout_s=5.0)
        service.answers = [answer(200, b'{"a":1}'), answer(200, b'{"a":2}')]
        try:
            return [await client.call("ListTables", {}) for _ in range(2)]
        finally:
            await client.close()
            await service.stop()

    assert uvloop.run(two_calls()) == [{"a": 1}, {"a": 2}]


async def test_a_connection_is_used_again(service: Service, client: Client) -> None:
    service.answers = [answer(200, b'{"a":1}'), answer(200, b'{"a":2}')]

    assert await client.call("ListTables", {}) == {"a": 1}
    assert await client.call("ListTables", {}) == {"a": 2}
    assert service.connections == 1


async def test_a_cancelled_call_does_not_leave_its_answer_to_the_next_one(
    service: Service, client: Client
) -> None:
    waiting = asyncio.create_task(client.call("ListTables", {}))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    service.answers = [answer(200, b'{"a":2}')]

    assert await client.call("ListTables", {}) == {"a": 2}
    assert service.connections == 2


async def test_a_refusal_has_its_code_and_its_body(service: Service, client: Client) -> None:
    body = json.dumps(
        {
            "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
            "Item": ROW,
        }
    ).encode()
    service.answers = [answer(400, body)]

    with pytest.raises(ServiceError) as caught:
        await client.call("PutItem", {})
    assert caught.value.code == "ConditionalCheckFailedException"
    assert caught.value.answer["Item"] == ROW


@pytest.mark.parametrize(
    "status,code", [(502, "ServiceUnavailable"), (500, "ServiceUnavailable"), (403, "403")]
)
async def test_an_answer_of_another_server_has_a_code_too(
    service: Service, client: Client, status: int, code: str
) -> None:
    service.answers = [answer(status, b"<html>")]

    with pytest.raises(ServiceError) as caught:
        await client.call("PutItem", {})
    assert caught.value.code == code


async def test_a_damaged_answer_is_no_answer(service: Service, client: Client) -> None:
    body = b'{"a":1}'
    right, wrong = zlib.crc32(body), zlib.crc32(body) ^ 1
    service.answers = [
        answer(200, body, f"x-amz-crc32: {right}"),
        answer(200, body, f"x-amz-crc32: {wrong}"),
    ]

    assert await client.call("ListTables", {}) == {"a": 1}
    with pytest.raises(NoAnswerError, match="checksum"):
        await client.call("ListTables", {})


async def test_a_connection_that_closes_after_the_request_is_no_answer(
    service: Service, client: Client
) -> None:
    service.answers = [None]

    with pytest.raises(NoAnswerError):
        await client.call("ListTables", {})


async def test_a_service_that_is_not_there_was_not_sent_the_request(
    service: Service, client: Client
) -> None:
    await service.stop()

    with pytest.raises(NotSentError):
        await client.call("ListTables", {})
