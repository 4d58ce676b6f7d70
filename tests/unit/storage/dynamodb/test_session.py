"""Calls to DynamoDB that are throttled, refused, half done or not answered at all."""

import asyncio
from typing import Any

import pytest

from waystation.base.errors import BusyError, StoreUnavailableError
from waystation.storage.dynamodb.client import (
    CredentialsError,
    NoAnswerError,
    NotSentError,
    ServiceError,
)
from waystation.storage.dynamodb.session import (
    Dynamo,
    NotAppliedError,
    TransactionRefusedError,
    together,
)
from waystation.storage.settings import Store

KEY = {"uaid": {"S": "x"}}
FOUND = {"Responses": {"t": [KEY]}}
NOTHING: dict[str, Any] = {"Responses": {}}


class Script:
    """A client whose calls end as the script says, one after the other."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[tuple[str, dict[str, Any]]] = []

    async def call(self, operation: str, request: dict[str, Any]) -> Any:
        self.requests.append((operation, request))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, asyncio.Event):
            await outcome.wait()
            return NOTHING
        return outcome


def dynamo(script: Any, *, timeout_s: float = 5.0, queue_max: int = 100) -> Dynamo:
    settings = Store(operation_timeout_s=timeout_s, queue_max=queue_max)
    return Dynamo(script, settings, chance=lambda: 0.0)


def answered(code: str, **more: Any) -> ServiceError:
    return ServiceError(code, more)


def closed() -> NoAnswerError:
    return NoAnswerError("the connection was closed")


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
    script = Script(answered(code), answered(code), FOUND)
    client = dynamo(script)

    assert await client.get("t", KEY) == KEY
    assert client.stats.round_trips == 3
    assert client.stats.retries == 2


async def test_a_throttled_conditional_write_is_tried_again_too() -> None:
    """It was not carried out, so nothing can happen twice."""
    script = Script(answered("ThrottlingException"), {})

    assert await dynamo(script).write("PutItem", ConditionExpression="x") == {}


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
    assert await dynamo(Script(closed(), FOUND)).get("t", KEY) == KEY


async def test_an_unconditional_put_whose_connection_broke_is_sent_again() -> None:
    assert await dynamo(Script(closed(), {})).write("PutItem") == {}


@pytest.mark.parametrize(
    "operation, request_", [("PutItem", {"ConditionExpression": "x"}), ("UpdateItem", {})]
)
async def test_a_write_that_may_have_been_carried_out_is_not_sent_again(
    operation: str, request_: dict[str, Any]
) -> None:
    script = Script(closed(), {})

    with pytest.raises(StoreUnavailableError):
        await dynamo(script).write(operation, **request_)
    assert len(script.requests) == 1


async def test_a_write_that_was_never_sent_is_sent_again() -> None:
    script = Script(NotSentError("refused"), {})

    assert await dynamo(script).write("PutItem", ConditionExpression="x") == {}


async def test_missing_credentials_are_told_at_once() -> None:
    with pytest.raises(StoreUnavailableError, match="credentials"):
        await dynamo(Script(CredentialsError("there are no AWS credentials"))).get("t", KEY)


async def test_a_condition_that_does_not_hold_tells_what_is_there() -> None:
    script = Script(answered("ConditionalCheckFailedException", Item=KEY))

    with pytest.raises(NotAppliedError) as caught:
        await dynamo(script).write("PutItem", ConditionExpression="x")
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
    first, second = KEY | {"x": {"N": "1"}}, KEY | {"x": {"N": "2"}}
    script = Script(
        {"Responses": {"a": [first]}, "UnprocessedKeys": rest},
        {"Responses": {"b": [second]}, "UnprocessedKeys": {}},
    )
    client = dynamo(script)

    assert await client.get_each({"a": KEY, "b": KEY}) == {"a": first, "b": second}
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
        await dynamo(script, timeout_s=0.05).write("UpdateItem")


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


class TestATurnOfTheLoop:
    async def test_reads_of_one_turn_are_one_request(self) -> None:
        keys = [{"uaid": {"S": str(n)}} for n in range(3)]
        script = Script({"Responses": {"t": [keys[2], keys[0]]}})
        client = dynamo(script)

        found = await asyncio.gather(*(client.get("t", key) for key in keys))

        assert found == [keys[0], None, keys[2]]
        assert [operation for operation, _ in script.requests] == ["BatchGetItem"]
        assert client.stats.round_trips == 1

    async def test_two_who_ask_for_one_row_share_a_key(self) -> None:
        """DynamoDB refuses a batch that names a key twice."""
        script = Script(FOUND)
        client = dynamo(script)

        assert await asyncio.gather(client.get("t", KEY), client.get("t", KEY)) == [KEY, KEY]
        assert script.requests[0][1]["RequestItems"]["t"]["Keys"] == [KEY]

    async def test_a_batch_has_at_most_a_hundred_keys(self) -> None:
        keys = [{"uaid": {"S": str(n)}} for n in range(150)]
        script = Script(NOTHING, NOTHING)
        client = dynamo(script, queue_max=200)
        await asyncio.gather(*(client.get("t", key) for key in keys))

        sizes = [len(request["RequestItems"]["t"]["Keys"]) for _, request in script.requests]
        assert sorted(sizes) == [50, 100]

    async def test_rows_that_are_written_in_one_turn_are_one_request(self) -> None:
        script = Script({})
        client = dynamo(script)
        items = [{"uaid": {"S": str(n)}} for n in range(3)]
        await asyncio.gather(*(client.put("t", item, item) for item in items))

        ((operation, request),) = script.requests
        assert operation == "BatchWriteItem"
        assert request["RequestItems"] == {"t": [{"PutRequest": {"Item": item}} for item in items]}

    async def test_two_writes_of_one_row_are_in_different_requests(self) -> None:
        script = Script({}, {})
        client = dynamo(script)
        rows = [KEY | {"x": {"N": str(n)}} for n in range(2)]
        await asyncio.gather(*(client.put("t", KEY, row) for row in rows))

        assert len(script.requests) == 2

    async def test_a_bad_row_does_not_refuse_the_others_of_its_batch(self) -> None:
        invalid = answered("ValidationException")
        script = Script(invalid, {}, invalid)
        client = dynamo(script)
        good, bad = {"uaid": {"S": "good"}}, {"uaid": {"S": "bad"}}

        results = await asyncio.gather(
            client.put("t", good, good), client.put("t", bad, bad), return_exceptions=True
        )

        assert results[0] is None
        assert isinstance(results[1], StoreUnavailableError)
        assert [operation for operation, _ in script.requests[1:]] == ["PutItem", "PutItem"]

    async def test_a_cancelled_caller_does_not_disturb_the_others_of_its_batch(self) -> None:
        script = Script(FOUND)
        client = dynamo(script)
        first = asyncio.create_task(client.get("t", {"uaid": {"S": "other"}}))
        second = asyncio.create_task(client.get("t", KEY))
        await asyncio.sleep(0)
        first.cancel()

        assert await second == KEY
        assert first.cancelled()
