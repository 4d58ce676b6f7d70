"""Calls to DynamoDB: batches of a loop turn, limits, retries, and the mapping of its errors.

Rule 1: at most `queue_max` operations are under way or waiting; one more is refused. At most
        CONNECTIONS_MAX are on the wire, and an operation waits at most `operation_timeout_s` for
        one of these places.
Rule 2: throttling, unprocessed items, conflicts of transactions and errors of the service are
        tried again, after a pause of full jitter, until `operation_timeout_s` is over.
Rule 3: a call without an answer may have been carried out. It is sent again only if that changes
        nothing: reads, unconditional writes, and transactions, which have a token.
Rule 4: `store_error` alone turns exceptions of the client into the store's own. A condition that
        does not hold is no error: it is `NotAppliedError`, and stays in this folder.
Rule 5: consistent reads of whole rows, and unconditional writes of rows, that are asked in one
        turn of the loop go out together (`BatchGetItem`, `BatchWriteItem`). Two writes of one
        row are never in one batch.
"""

import asyncio
import contextlib
import random
import uuid
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import msgspec

from waystation.base.errors import BusyError, StoreUnavailableError, WaystationError
from waystation.storage.batching import Batcher, by_row
from waystation.storage.calls import too_many_waiting
from waystation.storage.dynamodb.client import (
    Client,
    CredentialsError,
    NoAnswerError,
    NotSentError,
    ServiceError,
)
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
Row = tuple[str, tuple[str, ...]]  # a table, and the values of a key

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
_FAILURES = (ServiceError, NotSentError, NoAnswerError, CredentialsError, TimeoutError)
_NEVER_REPEATED = frozenset({"UpdateItem"})  # an ADD would be added twice


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
    """What an exception of the client means to the caller of the store."""
    if isinstance(exc, ServiceError):
        if exc.code == "ResourceNotFoundException":
            return StoreUnavailableError("a table is missing: run waystation store init")
        return StoreUnavailableError(f"DynamoDB answered {exc.code}")
    if isinstance(exc, TimeoutError):
        return StoreUnavailableError("DynamoDB did not answer in time")
    return StoreUnavailableError(f"DynamoDB cannot be reached: {exc}")


class Dynamo:
    """One client of one region, shared by everything in this process."""

    def __init__(
        self, client: Client, settings: Store, *, chance: Callable[[], float] = random.random
    ) -> None:
        self.stats = DynamoStats()
        self.chance = chance
        self._client = client
        self._timeout_s = settings.operation_timeout_s
        self._queue_max = settings.queue_max
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        self._under_way = 0
        limits: dict[str, Any] = {
            "server": "DynamoDB",
            "queue_max": settings.queue_max,
            "in_flight_max": CONNECTIONS_MAX,
        }
        self._reads = Batcher[tuple[Row, Key], Item | None](
            by_row(self._send_reads), group_max=BATCH_GET_MAX, **limits
        )
        self._puts = Batcher[tuple[Row, Item], None](
            by_row(self._send_puts), group_max=BATCH_WRITE_MAX, **limits
        )

    @classmethod
    async def open(cls, url: DynamoUrl, settings: Store) -> "Dynamo":
        try:
            client = await Client.open(
                url.region, url.endpoint, connect_timeout_s=settings.connect_timeout_s
            )
        except CredentialsError as exc:
            raise store_error(exc) from exc
        return cls(client, settings)

    async def close(self) -> None:
        await self._client.close()

    # Calls

    async def read(self, operation: str, **request: Any) -> dict[str, Any]:
        with self._counted():
            return await self._call(operation, request, repeatable=True)

    async def write(self, operation: str, **request: Any) -> dict[str, Any]:
        """Conditional or not; `NotAppliedError` if its condition does not hold."""
        repeatable = "ConditionExpression" not in request and operation not in _NEVER_REPEATED
        with self._counted():
            return await self._call(operation, request, repeatable=repeatable)

    async def transact(self, *parts: Mapping[str, Any]) -> None:
        """All or nothing; `TransactionRefusedError` if a condition does not hold."""
        request = {"TransactItems": list(parts), "ClientRequestToken": str(uuid.uuid4())}
        with self._counted():
            await self._call("TransactWriteItems", request, repeatable=True)

    @contextlib.contextmanager
    def _counted(self) -> Generator[None]:
        """Rule 1, for one operation of a caller."""
        if self._under_way >= self._queue_max:
            self.stats.refused += 1
            raise too_many_waiting(self._queue_max, "DynamoDB")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    async def get(self, table: str, key: Key) -> Item | None:
        """One row, as it is now; with the other rows that this turn of the loop asks for."""
        with self._counted():
            return await self._reads.ask(((table, _values(key)), key))

    async def get_each(self, wanted: Mapping[str, Key]) -> dict[str, Item]:
        """One row of each table, in one round trip; those that exist, by table."""
        with self._counted():
            asked = [self._reads.ask(((table, _values(key)), key)) for table, key in wanted.items()]
            rows = await together(asked)
        return {table: row for table, row in zip(wanted, rows, strict=True) if row is not None}

    async def put(self, table: str, key: Key, item: Item) -> None:
        """Write a row, whatever stands there; with the other rows of this turn of the loop."""
        with self._counted():
            await self._puts.ask(((table, _values(key)), item))

    async def _send_reads(self, asked: Mapping[Row, Key]) -> dict[Row, Item | None]:
        names = {table: tuple(key) for (table, _), key in asked.items()}
        found: dict[Row, Item | None] = dict.fromkeys(asked)
        request: dict[str, Any] = {}
        for (table, _), key in asked.items():
            request.setdefault(table, {"Keys": [], "ConsistentRead": True})["Keys"].append(key)
        deadline = self._retry_deadline()
        while True:
            answer = await self._call("BatchGetItem", {"RequestItems": request}, repeatable=True)
            for table, rows in answer["Responses"].items():
                for row in rows:
                    found[table, tuple(row[name]["S"] for name in names[table])] = row
            request = answer.get("UnprocessedKeys") or {}
            if not request:
                return found
            self.stats.unprocessed += sum(len(left["Keys"]) for left in request.values())
            await deadline.pause("DynamoDB leaves keys unprocessed")

    async def _send_puts(self, asked: Mapping[Row, Item]) -> dict[Row, WaystationError | None]:
        request: dict[str, Any] = {}
        for (table, _), item in asked.items():
            request.setdefault(table, []).append({"PutRequest": {"Item": item}})
        deadline = self._retry_deadline()
        while request:
            try:
                answer = await self._call(
                    "BatchWriteItem", {"RequestItems": request}, repeatable=True
                )
            except StoreUnavailableError as exc:
                if len(asked) == 1 or not _invalid(exc):
                    raise
                return await self._put_alone(asked)
            request = answer.get("UnprocessedItems") or {}
            if request:
                self.stats.unprocessed += sum(map(len, request.values()))
                await deadline.pause("DynamoDB leaves items unprocessed")
        return dict.fromkeys(asked)

    async def _put_alone(self, asked: Mapping[Row, Item]) -> dict[Row, WaystationError | None]:
        """One bad row refuses a whole batch: the others are written without it."""
        calls = (
            self._call("PutItem", {"TableName": table, "Item": item}, repeatable=True)
            for (table, _), item in asked.items()
        )
        results = await asyncio.gather(*calls, return_exceptions=True)
        return {
            row: result if isinstance(result, WaystationError) else None
            for row, result in zip(asked, results, strict=True)
        }

    async def get_many(self, table: str, keys: Sequence[Key]) -> list[Item]:
        """Those of many rows of a table that exist, in any order; a hundred to a call."""
        found: list[Item] = []
        for at in range(0, len(keys), BATCH_GET_MAX):
            asked: dict[str, Any] = {
                table: {"Keys": list(keys[at : at + BATCH_GET_MAX]), "ConsistentRead": True}
            }
            deadline = self._retry_deadline()
            while asked:
                answer = await self.read("BatchGetItem", RequestItems=asked)
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
            answer = await self.write("BatchWriteItem", RequestItems=asked)
            asked = answer.get("UnprocessedItems") or {}
            if not asked:
                return
            self.stats.unprocessed += len(asked[table])
            await deadline.pause("DynamoDB leaves items unprocessed")

    async def _call(
        self, operation: str, request: Mapping[str, Any], *, repeatable: bool
    ) -> dict[str, Any]:
        # An eager task (`tasks.eager`) takes its first step inside another task; timeouts need
        # a current task of their own.
        await asyncio.sleep(0)
        deadline = self._retry_deadline()
        while True:
            try:
                return await self._once(operation, request)
            except _FAILURES as exc:
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

    async def _once(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._places.acquire()
        except TimeoutError:
            self.stats.refused += 1
            raise BusyError("all connections to DynamoDB are taken") from None
        try:
            self.stats.round_trips += 1
            async with asyncio.timeout(self._timeout_s):
                return await self._client.call(operation, request)
        except ServiceError as exc:
            if exc.code == "ConditionalCheckFailedException":
                raise NotAppliedError(exc.answer.get("Item")) from None
            if exc.code == "TransactionCanceledException":
                reasons: list[dict[str, Any]] = exc.answer.get("CancellationReasons", [])
                if any(reason.get("Code") == "ConditionalCheckFailed" for reason in reasons):
                    raise TransactionRefusedError(reasons) from None
            raise
        finally:
            self._places.release()

    def _worth_another(self, exc: Exception, repeatable: bool) -> bool:
        if isinstance(exc, ServiceError):
            codes = {exc.code}
            if "TransactionCanceledException" in codes:  # not by a condition: see `_once`
                reasons: list[dict[str, Any]] = exc.answer.get("CancellationReasons", [])
                codes = {str(reason.get("Code")) for reason in reasons} - {"None"}
            if not codes <= _BUSY_CODES:
                return False
            self.stats.throttled += bool(codes & _THROTTLED_CODES)
            return True
        if isinstance(exc, CredentialsError):
            return False
        return repeatable or isinstance(exc, NotSentError)

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


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Their results in order. All have ended when this returns or raises the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def _values(key: Key) -> tuple[str, ...]:
    return tuple(value["S"] for value in key.values())


def _invalid(exc: StoreUnavailableError) -> bool:
    cause = exc.__cause__
    return isinstance(cause, ServiceError) and cause.code == "ValidationException"
