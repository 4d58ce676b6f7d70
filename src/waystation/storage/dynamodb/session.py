"""Calls to DynamoDB with limits, timeouts and retries, and the mapping of its errors.

Rule 1: at most `queue_max` operations are under way or waiting; one more is refused. At most
        CONNECTIONS_MAX are on the wire, and an operation waits at most `operation_timeout_s` for
        one of these places.
Rule 2: throttling, unprocessed items, conflicts of transactions and errors of the service are
        tried again, after a pause of full jitter, until `operation_timeout_s` is over.
Rule 3: a call without an answer may have been carried out. It is sent again only if that changes
        nothing: reads, unconditional writes, and transactions, which have a token.
Rule 4: `store_error` alone turns exceptions of the driver into the store's own. A condition that
        does not hold is no error: it is `NotAppliedError`, and stays in this folder.
"""

import asyncio
import functools
import os
import random
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

import msgspec
from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs]
from aiobotocore.session import (  # pyright: ignore[reportMissingTypeStubs]
    get_session,  # pyright: ignore[reportUnknownVariableType]
)
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)

from waystation.base.errors import BusyError, StoreUnavailableError
from waystation.storage.calls import too_many_waiting
from waystation.storage.dynamodb.url import DynamoUrl
from waystation.storage.settings import Store

CONNECTIONS_MAX = 64
PAUSE_FIRST_S = 0.025
PAUSE_LAST_S = 1.0
BATCH_WRITE_MAX = 25
BATCH_GET_MAX = 100
BATCHES_AT_ONCE = 8

Item = dict[str, Any]  # attribute -> {"S": "..."} as DynamoDB writes it
Key = dict[str, Any]

T = TypeVar("T")

_THROTTLED_CODES = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded",
        "ThrottlingException",
        "ThrottlingError",
        "RequestLimitExceeded",
        "LimitExceededException",
    }
)
_BUSY_CODES = _THROTTLED_CODES | frozenset(
    {
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
        "InternalServerError",
        "ServiceUnavailable",
        "ResourceInUseException",
        "ReplicatedWriteConflictException",
    }
)
_NEVER_REPEATED = frozenset({"update_item"})  # an ADD would be added twice
# Never sent, so it may always be sent again.
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError)


@functools.cache
def _driver() -> Any:
    """It reads DynamoDB's description from files, once: half a second."""
    return get_session()


class NotAppliedError(Exception):
    """A condition did not hold; `item` is what stands there, if it was asked for."""

    def __init__(self, item: Item | None) -> None:
        super().__init__()
        self.item = item


class TransactionRefusedError(Exception):
    """Conditions of a transaction did not hold: for each of its parts, whether, and its item."""

    def __init__(self, reasons: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.refused = [reason.get("Code") == "ConditionalCheckFailed" for reason in reasons]
        self.items: list[Item | None] = [reason.get("Item") for reason in reasons]


class DynamoStats(msgspec.Struct):
    round_trips: int = 0
    retries: int = 0
    throttled: int = 0
    unprocessed: int = 0  # items of batches that had to be sent again
    failures: int = 0
    refused: int = 0
    undecodable: int = 0


def store_error(exc: Exception) -> StoreUnavailableError:
    """What an exception of the driver means to whoever asked the store."""
    if isinstance(exc, ClientError):
        code = _code(exc)
        if code == "ResourceNotFoundException":
            return StoreUnavailableError("a table is missing: run waystation store init")
        return StoreUnavailableError(f"DynamoDB answered {code}")
    if isinstance(exc, TimeoutError):
        return StoreUnavailableError("DynamoDB did not answer in time")
    return StoreUnavailableError(f"DynamoDB cannot be reached: {exc}")


class Dynamo:
    """One client of one region, shared by everything in this process."""

    def __init__(
        self,
        client: Any,
        stack: AsyncExitStack,
        settings: Store,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.stats = DynamoStats()
        self.chance = chance
        self._client = client
        self._stack = stack
        self._timeout_s = settings.operation_timeout_s
        self._queue_max = settings.queue_max
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        self._under_way = 0

    @classmethod
    async def open(cls, url: DynamoUrl, settings: Store) -> "Dynamo":
        config = AioConfig(
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.operation_timeout_s,
            max_pool_connections=CONNECTIONS_MAX,
            parameter_validation=False,  # our requests are written here, and DynamoDB checks them
            retries={"total_max_attempts": 1, "mode": "standard"},  # ours know what is repeatable
            tcp_keepalive=True,
        )
        options: dict[str, Any] = {"region_name": url.region, "config": config}
        if url.endpoint:
            options["endpoint_url"] = url.endpoint
            if not {"AWS_ACCESS_KEY_ID", "AWS_PROFILE"} & os.environ.keys():
                # DynamoDB Local wants a signature by any key.
                options |= {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
        stack = AsyncExitStack()
        try:
            client = await stack.enter_async_context(_driver().create_client("dynamodb", **options))
        except BotoCoreError as exc:
            await stack.aclose()
            raise store_error(exc) from exc
        return cls(client, stack, settings)

    async def close(self) -> None:
        await self._stack.aclose()

    # Calls

    async def read(self, operation: str, **request: Any) -> dict[str, Any]:
        return await self._call(operation, request, repeatable=True)

    async def write(self, operation: str, **request: Any) -> dict[str, Any]:
        """Conditional or not; `NotAppliedError` if its condition does not hold."""
        repeatable = "ConditionExpression" not in request and operation not in _NEVER_REPEATED
        return await self._call(operation, request, repeatable=repeatable)

    async def transact(self, *parts: Mapping[str, Any]) -> None:
        """All or nothing; `TransactionRefusedError` if a condition does not hold."""
        request = {"TransactItems": list(parts), "ClientRequestToken": str(uuid.uuid4())}
        await self._call("transact_write_items", request, repeatable=True)

    async def get(self, table: str, key: Key, *names: str) -> Item | None:
        request: dict[str, Any] = {"TableName": table, "Key": key, "ConsistentRead": True}
        if names:
            request["ProjectionExpression"] = ", ".join(names)
        return (await self.read("get_item", **request)).get("Item")

    async def get_each(self, wanted: Mapping[str, Key]) -> dict[str, Item]:
        """One row of each table, in one round trip; those that exist, by table."""
        asked: dict[str, Any] = {
            table: {"Keys": [key], "ConsistentRead": True} for table, key in wanted.items()
        }
        found: dict[str, Item] = {}
        deadline = self._retry_deadline()
        while True:
            answer = await self.read("batch_get_item", RequestItems=asked)
            for table, rows in answer["Responses"].items():
                for row in rows:
                    found[table] = row
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                return found
            self.stats.unprocessed += len(asked)
            await deadline.pause("DynamoDB leaves keys unprocessed")

    async def get_many(self, table: str, keys: Sequence[Key]) -> list[Item]:
        """Those of many rows of a table that exist, in any order; a hundred to a call."""
        found: list[Item] = []
        for at in range(0, len(keys), BATCH_GET_MAX):
            asked: dict[str, Any] = {
                table: {"Keys": list(keys[at : at + BATCH_GET_MAX]), "ConsistentRead": True}
            }
            deadline = self._retry_deadline()
            while asked:
                answer = await self.read("batch_get_item", RequestItems=asked)
                found += answer["Responses"].get(table, [])
                asked = answer.get("UnprocessedKeys") or {}
                if asked:
                    self.stats.unprocessed += len(asked[table]["Keys"])
                    await deadline.pause("DynamoDB leaves keys unprocessed")
        return found

    async def delete_all(self, table: str, keys: Sequence[Key]) -> None:
        """Unconditionally, 25 to a call and a few calls at once."""
        batches = [keys[at : at + BATCH_WRITE_MAX] for at in range(0, len(keys), BATCH_WRITE_MAX)]
        for at in range(0, len(batches), BATCHES_AT_ONCE):
            await together(
                self._delete_batch(table, batch) for batch in batches[at : at + BATCHES_AT_ONCE]
            )

    async def _delete_batch(self, table: str, keys: Sequence[Key]) -> None:
        asked: dict[str, Any] = {table: [{"DeleteRequest": {"Key": key}} for key in keys]}
        deadline = self._retry_deadline()
        while True:
            answer = await self.write("batch_write_item", RequestItems=asked)
            asked = answer.get("UnprocessedItems") or {}
            if not asked:
                return
            self.stats.unprocessed += len(asked[table])
            await deadline.pause("DynamoDB leaves items unprocessed")

    async def _call(
        self, operation: str, request: Mapping[str, Any], *, repeatable: bool
    ) -> dict[str, Any]:
        if self._under_way >= self._queue_max:
            self.stats.refused += 1
            raise too_many_waiting(self._queue_max, "DynamoDB")
        method = getattr(self._client, operation)
        self._under_way += 1
        try:
            # An eager task (`tasks.eager`) takes its first step inside another task; the driver
            # and timeouts need a current task of their own.
            await asyncio.sleep(0)
            deadline = self._retry_deadline()
            while True:
                try:
                    return await self._once(method, request)
                except (ClientError, BotoCoreError, TimeoutError) as exc:
                    if not self._worth_another(exc, repeatable):
                        self.stats.failures += 1
                        raise store_error(exc) from exc
                    why = exc
                self.stats.retries += 1
                try:
                    await deadline.pause("")
                except StoreUnavailableError:
                    self.stats.failures += 1
                    raise store_error(why) from why
        finally:
            self._under_way -= 1

    async def _once(self, method: Any, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._places.acquire()
        except TimeoutError:
            self.stats.refused += 1
            raise BusyError("all connections to DynamoDB are taken") from None
        try:
            self.stats.round_trips += 1
            async with asyncio.timeout(self._timeout_s):
                return await method(**request)
        except ClientError as exc:
            code, response = _code(exc), _response(exc)
            if code == "ConditionalCheckFailedException":
                raise NotAppliedError(response.get("Item")) from None
            if code == "TransactionCanceledException":
                reasons: list[dict[str, Any]] = response.get("CancellationReasons", [])
                if any(reason.get("Code") == "ConditionalCheckFailed" for reason in reasons):
                    raise TransactionRefusedError(reasons) from None
            raise
        finally:
            self._places.release()

    def _worth_another(self, exc: Exception, repeatable: bool) -> bool:
        if isinstance(exc, ClientError):
            codes = {_code(exc)}
            if "TransactionCanceledException" in codes:  # not by a condition: see `_once`
                reasons: list[dict[str, Any]] = _response(exc).get("CancellationReasons", [])
                codes = {str(reason.get("Code")) for reason in reasons} - {"None"}
            if not codes <= _BUSY_CODES:
                return False
            self.stats.throttled += bool(codes & _THROTTLED_CODES)
            return True
        if isinstance(exc, _NOT_SENT):
            return True
        return repeatable and isinstance(exc, (HTTPClientError, TimeoutError))

    def _retry_deadline(self) -> "_RetryDeadline":
        return _RetryDeadline(self._timeout_s, self.chance)


class _RetryDeadline:
    """Pauses of full jitter between the attempts of one operation, until its time is over."""

    def __init__(self, timeout_s: float, chance: Callable[[], float]) -> None:
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._chance = chance
        self._longest_s = PAUSE_FIRST_S

    async def pause(self, why: str) -> None:
        if asyncio.get_running_loop().time() >= self._deadline:
            raise StoreUnavailableError(why)
        await asyncio.sleep(self._longest_s * self._chance())
        self._longest_s = min(2 * self._longest_s, PAUSE_LAST_S)


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order. All have ended when this returns or raises the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def _response(exc: ClientError) -> dict[str, Any]:
    return cast("Any", exc).response


def _code(exc: ClientError) -> str:
    return str(_response(exc).get("Error", {}).get("Code", ""))
