"""Requests to Bigtable are those of the library, and rows are read as it reads them."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import pytest
from google.api_core.exceptions import PermissionDenied, ServiceUnavailable
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigtable.data import (
    DeleteAllFromRow,
    DeleteRangeFromColumn,
    ReadRowsQuery,
    RowMutationEntry,
    RowRange,
    SetCell,
)
from google.cloud.bigtable.data import row_filters as library_filters
from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup
from google.cloud.bigtable_v2 import types

from tests.ports import free_ports
from waystation.storage.bigtable import filters
from waystation.storage.bigtable.cells import drop_column, drop_row, raw, set_cell
from waystation.storage.bigtable.client import new_client
from waystation.storage.bigtable.rpc import RowMerger, Rpc
from waystation.storage.bigtable.url import parse_bigtable_url

KEY = b"\x00key\xff"
FILTER = filters.holds("f", b"c", b".*")
LIBRARY_FILTER = library_filters.RowFilterChain(
    [
        library_filters.CellsColumnLimitFilter(1),
        library_filters.ColumnRangeFilter("f", b"c", b"c"),
        library_filters.ValueRangeFilter(b".*", b".*"),
    ]
)
MUTATIONS = [drop_row(), drop_column("f", b"c"), set_cell("f", b"c", b"v", 1_700_000_000_000)]
LIBRARY_MUTATIONS = [
    DeleteAllFromRow(),
    DeleteRangeFromColumn("f", b"c"),
    SetCell("f", b"c", b"v", 1_700_000_000_000_000),
]


class Asked(NamedTuple):
    method: str
    request: bytes
    routing: str


class Recorder(grpc.GenericRpcHandler):
    """A server that keeps what it is asked and answers as a test says."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, list[Any]] = {}
        self.failure: grpc.StatusCode | None = None

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method.rpartition("/")[2]

        async def one(request: bytes, context: Any) -> bytes:
            answers = [answer async for answer in many(request, context)]
            return answers[0]

        async def many(request: bytes, context: Any) -> AsyncIterator[bytes]:
            metadata = dict(context.invocation_metadata())
            self.asked.append(Asked(method, request, metadata.get("x-goog-request-params", "")))
            if self.failure is not None:
                await context.abort(self.failure, "as the test says")
            for answer in self.answers.get(method, [b""]):
                yield answer

        if method in ("ReadRows", "MutateRows"):
            return grpc.unary_stream_rpc_method_handler(many)
        return grpc.unary_unary_rpc_method_handler(one)


class Both(NamedTuple):
    rpc: Rpc
    table: Any
    recorder: Recorder


@pytest.fixture(params=["", "some-profile"], ids=["no profile", "profile"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    """Our calls and the library's, to one server."""
    recorder = Recorder()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((recorder,))
    port = free_ports(1)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    url = parse_bigtable_url(f"bigtable://p/i/t?emulator=127.0.0.1:{port}")
    client = new_client(url, AnonymousCredentials(), 5.0)
    profile = request.param or None
    table: Any = client.get_table("i", "t", app_profile_id=profile)
    yield Both(Rpc(client, url.table_name, profile), table, recorder)
    await table.close()
    await client.close()
    await server.stop(None)


async def sent(call: Awaitable[Any]) -> None:
    """The library raises when rows are missing in an answer; the request was sent all the same."""
    with contextlib.suppress(MutationsExceptionGroup):
        await call


Calls = tuple[Callable[[Both], Awaitable[Any]], Callable[[Both], Awaitable[Any]]]
CALLS: dict[str, Calls] = {
    "read rows by keys": (
        lambda b: b.rpc.read_rows(FILTER, keys=[KEY, b"b"], after=None, limit=7, timeout_s=5),
        lambda b: b.table.read_rows(
            ReadRowsQuery(row_keys=[KEY, b"b"], limit=7, row_filter=LIBRARY_FILTER)
        ),
    ),
    "read rows of a range": (
        lambda b: b.rpc.read_rows(FILTER, keys=(), after=(b"a", b"b"), limit=None, timeout_s=5),
        lambda b: b.table.read_rows(
            ReadRowsQuery(
                row_ranges=[RowRange(b"a", b"b", start_is_inclusive=False)],
                row_filter=LIBRARY_FILTER,
            )
        ),
    ),
    "mutate a row": (
        lambda b: b.rpc.mutate_row(KEY, MUTATIONS, 5),
        lambda b: b.table.mutate_row(KEY, LIBRARY_MUTATIONS),
    ),
    "mutate rows": (
        lambda b: b.rpc.mutate_rows([(KEY, MUTATIONS), (b"b", MUTATIONS[:1])], 5),
        lambda b: b.table.bulk_mutate_rows(
            [
                RowMutationEntry(KEY, LIBRARY_MUTATIONS),
                RowMutationEntry(b"b", LIBRARY_MUTATIONS[:1]),
            ],
            operation_timeout=5,
            attempt_timeout=5,
            retryable_errors=(),
        ),
    ),
    "check and mutate a row": (
        lambda b: b.rpc.check_and_mutate_row(KEY, FILTER, MUTATIONS, MUTATIONS[:1], 5),
        lambda b: b.table.check_and_mutate_row(
            KEY,
            LIBRARY_FILTER,
            true_case_mutations=LIBRARY_MUTATIONS,
            false_case_mutations=LIBRARY_MUTATIONS[:1],
        ),
    ),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_request_has_the_bytes_and_the_route_that_the_library_sends(
    both: Both, name: str
) -> None:
    ours, theirs = CALLS[name]
    await sent(ours(both))
    await sent(theirs(both))

    first, second, *_ = both.recorder.asked
    assert first == second


async def test_an_error_is_the_librarys_exception(both: Both) -> None:
    both.recorder.failure = grpc.StatusCode.PERMISSION_DENIED

    with pytest.raises(PermissionDenied):
        await both.rpc.mutate_row(KEY, MUTATIONS, 5)
    with pytest.raises(PermissionDenied):
        await both.rpc.read_rows(FILTER, keys=[KEY], after=None, limit=1, timeout_s=5)


async def test_each_row_that_is_not_written_says_why(both: Both) -> None:
    response = raw(types.MutateRowsResponse)()
    response.entries.add(index=0)
    response.entries.add(index=2).status.code = grpc.StatusCode.UNAVAILABLE.value[0]
    both.recorder.answers["MutateRows"] = [response.SerializeToString()]
    rows = [(key, MUTATIONS) for key in (b"a", b"b", b"c")]

    first, second, third = await both.rpc.mutate_rows(rows, 5)

    assert first is None
    assert isinstance(second, ServiceUnavailable)  # nothing was said of it
    assert isinstance(third, ServiceUnavailable)


# Rows


def chunk(**fields: Any) -> Any:
    made = raw(types.ReadRowsResponse).CellChunk()
    for name, value in fields.items():
        if name in ("family_name", "qualifier"):
            getattr(made, name).value = value
        else:
            setattr(made, name, value)
    return made


def chunks_of(rows: dict[bytes, dict[tuple[str, bytes], bytes]], rng: random.Random) -> list[Any]:
    """Rows as Bigtable sends them: what stays the same is left out, values may be split."""
    found: list[Any] = []
    for key, cells in rows.items():
        family = ""
        for number, ((of, name), value) in enumerate(cells.items()):
            fields: dict[str, Any] = {"qualifier": name, "timestamp_micros": 5_000}
            if number == 0:
                fields["row_key"] = key
            if of != family:
                fields["family_name"] = family = of
            parts = [value]
            while len(parts[-1]) > 1 and rng.random() < 0.5:
                cut = rng.randrange(1, len(parts[-1]))
                parts[-1:] = [parts[-1][:cut], parts[-1][cut:]]
            for part in parts[:-1]:
                found.append(chunk(**fields, value=part, value_size=len(value)))
                fields = {}
            last = chunk(**fields, value=parts[-1])
            last.commit_row = number == len(cells) - 1
            found.append(last)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_put_together_from_any_chunks(seed: int) -> None:
    rng = random.Random(seed)
    rows = {
        f"key{n}".encode(): {
            (rng.choice("fg"), f"c{m}".encode()): rng.randbytes(rng.randrange(9))
            for m in range(rng.randrange(1, 6))
        }
        for n in range(4)
    }
    chunks = chunks_of(rows, rng)
    merger = RowMerger()
    while chunks:  # responses cut the stream anywhere
        size = rng.randrange(1, 4)
        merger.take(chunks[:size])
        chunks = chunks[size:]

    found = merger.finish()
    values = {row.key: {name: cell.value for name, cell in row.cells.items()} for row in found}
    assert values == rows
    assert {cell.ends_at_ms for row in found for cell in row.cells.values()} == {5}


def test_a_row_that_is_begun_anew_forgets_what_came_before() -> None:
    merger = RowMerger()
    merger.take(
        [
            chunk(row_key=b"a", family_name="f", qualifier=b"x", value=b"1"),
            chunk(reset_row=True),
            chunk(row_key=b"a", family_name="f", qualifier=b"y", value=b"2", commit_row=True),
        ]
    )

    (row,) = merger.finish()
    assert list(row.cells) == [("f", b"y")]


def test_a_stream_that_ends_within_a_row_is_tried_again() -> None:
    merger = RowMerger()
    merger.take([chunk(row_key=b"a", family_name="f", qualifier=b"x", value=b"1")])

    with pytest.raises(ServiceUnavailable):
        merger.finish()
