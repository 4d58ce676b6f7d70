"""Calls to DynamoDB that are throttled, refused, half done or not answered at all."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
)

from waystation.base.errors import BusyError, StoreUnavailableError
from waystation.storage.dynamodb.session import (
    Dynamo,
    NotAppliedError,
    TransactionRefusedError,
    together,
)
from waystation.storage.settings import Store

KEY = {"uaid": {"S": "x"}}


class Script:
    """A client whose calls end as the script says, one after the other."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Any:
        async def call(**request: Any) -> Any:
            self.requests.append((operation, request))
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            if isinstance(outcome, asyncio.Event):
                await outcome.wait()
                return {}
            return outcome

        return call


def dynamo(script: Script, *, timeout_s: float = 5.0, queue_max: int = 100) -> Dynamo:
    settings = Store(operation_timeout_s=timeout_s, queue_max=queue_max)
    return Dynamo(script, AsyncExitStack(), settings, chance=lambda: 0.0)


def answered(code: str, **more: Any) -> ClientError:
    return ClientError({"Error": {"Code": code}} | more, "Operation")


def closed() -> ConnectionClosedError:
    return ConnectionClosedError(endpoint_url="http://x")


@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "InternalServerError",
        "TransactionConflictException",
    ],
)
async def test_what_is_throttled_or_passing_is_tried_again(code: str) -> None:
    script = Script(answered(code), answered(code), {"Item": KEY})
    client = dynamo(script)

    assert await client.get("t", KEY) == KEY
    assert client.stats.round_trips == 3
    assert client.stats.retries == 2


async def test_a_throttled_conditional_write_is_tried_again_too() -> None:
    """It was not carried out, so nothing can happen twice."""
    script = Script(answered("ThrottlingException"), {})

    assert await dynamo(script).write("put_item", ConditionExpression="x") == {}


async def test_a_store_that_throttles_for_long_is_unavailable() -> None:
    script = Script(*[answered("ThrottlingException")] * 100_000)
    client = dynamo(script, timeout_s=0.05)

    with pytest.raises(StoreUnavailableError, match="Throttling"):
        await client.get("t", KEY)
    assert client.stats.failures == 1
    assert client.stats.throttled > 1


async def test_another_answer_is_not_tried_again() -> None:
    script = Script(answered("ValidationException"))

    with pytest.raises(StoreUnavailableError, match="ValidationException"):
        await dynamo(script).get("t", KEY)


async def test_a_missing_table_says_what_to_do() -> None:
    with pytest.raises(StoreUnavailableError, match="waystation store init"):
        await dynamo(Script(answered("ResourceNotFoundException"))).get("t", KEY)


async def test_a_read_whose_connection_broke_is_sent_again() -> None:
    assert await dynamo(Script(closed(), {"Item": KEY})).get("t", KEY) == KEY


async def test_an_unconditional_put_whose_connection_broke_is_sent_again() -> None:
    assert await dynamo(Script(closed(), {})).write("put_item") == {}


@pytest.mark.parametrize(
    "operation, request_", [("put_item", {"ConditionExpression": "x"}), ("update_item", {})]
)
async def test_a_write_that_may_have_been_carried_out_is_not_sent_again(
    operation: str, request_: dict[str, Any]
) -> None:
    script = Script(closed(), {})

    with pytest.raises(StoreUnavailableError):
        await dynamo(script).write(operation, **request_)
    assert len(script.requests) == 1


async def test_a_write_that_was_never_sent_is_sent_again() -> None:
    script = Script(EndpointConnectionError(endpoint_url="http://x"), {})

    assert await dynamo(script).write("put_item", ConditionExpression="x") == {}


async def test_missing_credentials_are_told_at_once() -> None:
    with pytest.raises(StoreUnavailableError, match="credentials"):
        await dynamo(Script(NoCredentialsError())).get("t", KEY)


async def test_a_condition_that_does_not_hold_tells_what_is_there() -> None:
    script = Script(answered("ConditionalCheckFailedException", Item=KEY))

    with pytest.raises(NotAppliedError) as caught:
        await dynamo(script).write("put_item", ConditionExpression="x")
    assert caught.value.item == KEY


async def test_a_transaction_tells_which_condition_did_not_hold() -> None:
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": KEY}]
    script = Script(answered("TransactionCanceledException", CancellationReasons=reasons))

    with pytest.raises(TransactionRefusedError) as caught:
        await dynamo(script).transact({}, {})
    assert caught.value.refused == [False, True]
    assert caught.value.items == [None, KEY]


async def test_transactions_that_met_are_tried_again_with_the_same_token() -> None:
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}]
    script = Script(
        answered("TransactionCanceledException", CancellationReasons=reasons), closed(), {}
    )
    await dynamo(script).transact({}, {})

    tokens = {request["ClientRequestToken"] for _, request in script.requests}
    assert len(script.requests) == 3
    assert len(tokens) == 1


async def test_a_transaction_that_is_wrong_is_not_tried_again() -> None:
    reasons = [{"Code": "ValidationError"}]
    script = Script(answered("TransactionCanceledException", CancellationReasons=reasons))

    with pytest.raises(StoreUnavailableError):
        await dynamo(script).transact({})


async def test_unprocessed_keys_are_asked_for_again() -> None:
    rest = {"b": {"Keys": [KEY], "ConsistentRead": True}}
    script = Script(
        {"Responses": {"a": [{"x": 1}]}, "UnprocessedKeys": rest},
        {"Responses": {"b": [{"x": 2}]}, "UnprocessedKeys": {}},
    )
    client = dynamo(script)

    assert await client.get_each({"a": KEY, "b": KEY}) == {"a": {"x": 1}, "b": {"x": 2}}
    assert script.requests[1][1]["RequestItems"] == rest
    assert client.stats.unprocessed == 1


async def test_unprocessed_items_are_sent_again() -> None:
    keys = [{"uaid": {"S": str(n)}} for n in range(30)]
    first_rest = {"t": [{"DeleteRequest": {"Key": keys[3]}}]}
    script = Script({"UnprocessedItems": first_rest}, {}, {})
    client = dynamo(script)
    await client.delete_all("t", keys)

    sizes = [len(request["RequestItems"]["t"]) for _, request in script.requests]
    assert sorted(sizes) == [1, 5, 25]
    assert client.stats.unprocessed == 1


async def test_what_stays_unprocessed_is_unavailable() -> None:
    rest = {"t": [{"DeleteRequest": {"Key": KEY}}]}
    script = Script(*[{"UnprocessedItems": rest}] * 100_000)

    with pytest.raises(StoreUnavailableError, match="unprocessed"):
        await dynamo(script, timeout_s=0.05).delete_all("t", [KEY])


async def test_a_store_that_does_not_answer_is_unavailable() -> None:
    silence = asyncio.Event()
    script = Script(*[silence] * 100)

    with pytest.raises(StoreUnavailableError, match="in time"):
        await dynamo(script, timeout_s=0.05).write("update_item")


async def test_more_than_may_wait_is_refused() -> None:
    silence = asyncio.Event()
    client = dynamo(Script(*[silence] * 3), queue_max=2)
    waiting = [asyncio.create_task(client.get("t", KEY)) for _ in range(2)]
    await asyncio.sleep(0)

    with pytest.raises(BusyError, match="queue_max"):
        await client.get("t", KEY)
    silence.set()
    assert await asyncio.gather(*waiting) == [None, None]
    assert client.stats.refused == 1


async def test_of_several_calls_the_first_error_is_told_when_all_have_ended() -> None:
    ended: list[int] = []

    async def call(number: int) -> int:
        await asyncio.sleep(0.001 * number)
        ended.append(number)
        if number == 1:
            raise StoreUnavailableError("one")
        return number

    with pytest.raises(StoreUnavailableError, match="one"):
        await together([call(1), call(2)])
    assert ended == [1, 2]
    assert await together([call(3), call(2)]) == [3, 2]
