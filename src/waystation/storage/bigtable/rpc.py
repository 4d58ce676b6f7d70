"""Calls of Bigtable's data API with its own protobuf messages, over the library's channel.

The library wraps each message, each cell and each call (ADR 14); channel, credentials and the
hourly exchange of the channel stay its own. An error is one of `google.api_core.exceptions`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import grpc
from google.api_core import exceptions
from google.api_core.gapic_v1 import client_info, routing_header
from google.cloud.bigtable.data import BigtableDataClientAsync
from google.cloud.bigtable_v2 import types

from waystation.storage.bigtable.cells import Cell, Mutation, Row, raw
from waystation.storage.bigtable.filters import RowFilter

_ReadRows: Final = raw(types.ReadRowsRequest)
_MutateRow: Final = raw(types.MutateRowRequest)
_MutateRows: Final = raw(types.MutateRowsRequest)
_CheckAndMutate: Final = raw(types.CheckAndMutateRowRequest)
_EOF: Final = cast(Any, grpc.aio).EOF  # missing in the type stubs
_untyped: Final = cast(Any, exceptions)
_SERVICE: Final = "/google.bigtable.v2.Bigtable/"
_STREAMS: Final = {
    "ReadRows": raw(types.ReadRowsResponse),
    "MutateRows": raw(types.MutateRowsResponse),
}
_CALLS: Final = {
    "MutateRow": raw(types.MutateRowResponse),
    "CheckAndMutateRow": raw(types.CheckAndMutateRowResponse),
}


class Rpc:
    """One table over one client's channel."""

    def __init__(
        self, client: BigtableDataClientAsync, table_name: str, app_profile_id: str | None
    ) -> None:
        self._channel: Any = client.transport.grpc_channel
        self._stubs: dict[str, Any] = {}
        self._stubs_of: Any = None  # the inner channel that they belong to
        self._names = {"table_name": table_name, "app_profile_id": app_profile_id or ""}
        self._metadata = (
            cast(Any, routing_header).to_grpc_metadata(self._names),
            client_info.ClientInfo().to_grpc_metadata(),
        )

    async def read_rows(
        self,
        row_filter: RowFilter,
        *,
        keys: Sequence[bytes],
        after: tuple[bytes, bytes] | None,
        limit: int | None,
        timeout_s: float,
    ) -> list[Row]:
        request = _ReadRows(filter=row_filter, rows_limit=limit or 0, **self._names)
        if keys:
            request.rows.row_keys.extend(keys)
        if after is not None:
            start, end = after
            span = request.rows.row_ranges.add(start_key_open=start)
            if end:
                span.end_key_open = end
        merger = RowMerger()
        try:
            call = self._stub("ReadRows")(request, timeout=timeout_s, metadata=self._metadata)
            while (response := await call.read()) is not _EOF:
                merger.take(response.chunks)
        except grpc.aio.AioRpcError as exc:
            raise _untyped.from_grpc_error(exc) from exc
        return merger.finish()

    async def mutate_row(self, key: bytes, mutations: Iterable[Mutation], timeout_s: float) -> None:
        await self._call("MutateRow", _MutateRow(row_key=key, mutations=mutations), timeout_s)

    async def mutate_rows(
        self, rows: Sequence[tuple[bytes, Sequence[Mutation]]], timeout_s: float
    ) -> list[Exception | None]:
        """Why each row was not written, or None; in the order of the rows."""
        request = _MutateRows(**self._names)
        for key, mutations in rows:
            request.entries.add(row_key=key, mutations=mutations)
        missing = exceptions.ServiceUnavailable("Bigtable said nothing of this row")
        results: list[Exception | None] = [missing] * len(rows)
        try:
            call = self._stub("MutateRows")(request, timeout=timeout_s, metadata=self._metadata)
            while (response := await call.read()) is not _EOF:
                for entry in response.entries:
                    results[entry.index] = _refusal(entry.status)
        except grpc.aio.AioRpcError as exc:
            raise _untyped.from_grpc_error(exc) from exc
        return results

    async def check_and_mutate_row(
        self,
        key: bytes,
        predicate: RowFilter,
        then: Iterable[Mutation],
        otherwise: Iterable[Mutation],
        timeout_s: float,
    ) -> bool:
        request = _CheckAndMutate(
            row_key=key,
            predicate_filter=predicate,
            true_mutations=then,
            false_mutations=otherwise,
        )
        answer = await self._call("CheckAndMutateRow", request, timeout_s)
        return answer.predicate_matched

    async def _call(self, name: str, request: Any, timeout_s: float) -> Any:
        for field, value in self._names.items():
            setattr(request, field, value)
        try:
            return await self._stub(name)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as exc:
            raise _untyped.from_grpc_error(exc) from exc

    def _stub(self, name: str) -> Any:
        inner = self._channel._channel  # noqa: SLF001 the library exchanges it every hour
        if inner is not self._stubs_of:
            self._stubs_of = inner
            self._stubs = {
                one: inner.unary_stream(_SERVICE + one, _serialize, response.FromString)
                for one, response in _STREAMS.items()
            } | {
                one: inner.unary_unary(_SERVICE + one, _serialize, response.FromString)
                for one, response in _CALLS.items()
            }
        return self._stubs[name]


def _refusal(status: Any) -> Exception | None:
    if not status.code:
        return None
    return _untyped.from_grpc_status(status.code, status.message)


def _serialize(message: Any) -> bytes:
    return message.SerializeToString()


class RowMerger:
    """Rows from the chunks of a stream: a chunk names only what differs from the one before."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._key = b""
        self._cells: dict[tuple[str, bytes], Cell] = {}
        self._family = ""
        self._qualifier = b""
        self._ends_at_ms = 0
        self._parts: list[bytes] = []  # of a value that comes in several chunks

    def take(self, chunks: Iterable[Any]) -> None:
        for chunk in chunks:
            if chunk.reset_row:
                self._begin(b"")
                continue
            if chunk.row_key and not self._key:
                self._begin(chunk.row_key)
            if not self._parts:
                if chunk.HasField("family_name"):
                    self._family = chunk.family_name.value
                if chunk.HasField("qualifier"):
                    self._qualifier = chunk.qualifier.value
                self._ends_at_ms = chunk.timestamp_micros // 1000
            if chunk.value_size:  # there is more of this value
                self._parts.append(chunk.value)
                continue
            value = chunk.value
            if self._parts:
                value = b"".join((*self._parts, value))
                self._parts = []
            self._cells[self._family, self._qualifier] = Cell(value, self._ends_at_ms)
            if chunk.commit_row:
                self._rows.append(Row(self._key, self._cells))
                self._begin(b"")

    def finish(self) -> list[Row]:
        if self._key:
            raise exceptions.ServiceUnavailable("the stream of rows ended within a row")
        return self._rows

    def _begin(self, key: bytes) -> None:
        self._key = key
        self._cells: dict[tuple[str, bytes], Cell] = {}
        self._parts = []
        self._family, self._qualifier = "", b""
