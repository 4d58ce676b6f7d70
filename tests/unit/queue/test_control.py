"""The protocol of the control port, without a port."""

from collections.abc import Mapping, Sequence

import pytest

from waystation.queue.control import (
    NOT_HTTP,
    ControlConversation,
    Outcome,
    Role,
    decode_id,
    parse_blocking,
)
from waystation.queue.model import Blocking, BlockReason, Notice

ID = "A" * 32


class Recorded:
    """Operations that remember what was asked of them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, object]] = []

    def stats(self) -> Sequence[str]:
        return ["msgSent=3"]

    def process(self) -> Mapping[str, object]:
        return {"threads": 4}

    def connections(self) -> Mapping[str, object]:
        return {"accepted": 7, "connections": 2}

    def about(self) -> Sequence[str]:
        return ["version: 1"]

    async def status(self, entity_id: bytes) -> str:
        return "active"

    async def block(self, entity_id: bytes, blocking: Blocking) -> Outcome:
        self.done.append(("block", blocking))
        return Outcome.DONE

    async def unblock(self, entity_id: bytes) -> Outcome:
        self.done.append(("unblock", entity_id))
        return Outcome.NOT_BLOCKED

    async def delete(self, entity_id: bytes) -> Outcome:
        self.done.append(("delete", entity_id))
        return Outcome.DONE

    async def save(self) -> Outcome:
        self.done.append(("save", None))
        return Outcome.DONE


@pytest.fixture
def operations() -> Recorded:
    return Recorded()


def conversation(operations: Recorded, role: Role = Role.NONE) -> ControlConversation:
    talk = ControlConversation(operations, admin_password="admin", user_password="user")
    talk.role = role
    return talk


async def test_without_a_role_commands_are_refused(operations: Recorded) -> None:
    talk = conversation(operations)
    for line in ("stats", f"block {ID} reason=spam", f"delete {ID}", "save", "anything"):
        assert await talk.line(line) == ["AUTH"]

    assert operations.done == []
    assert len(await talk.line("help")) > 5


async def test_a_role_is_taken_once(operations: Recorded) -> None:
    talk = conversation(operations)
    assert await talk.line("auth nobody") == ["AUTH"]
    assert await talk.line("auth user") == ["Current role is user"]

    assert await talk.line("auth admin") == ["Current role is user"]
    assert talk.role is Role.USER


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "POST /auth%20admin HTTP/1.1\r",
        "OPTIONS * HTTP/1.0",
        "PRI * HTTP/2.0",
        "auth / HTTP/1.1",
        "Host: 127.0.0.1:5224",
        "Content-Length: 12",
        "X-Empty:",
        "\x16\x03\x01\x02\x00\x01\x00\x01\ufffd",
    ],
)
async def test_a_browser_is_turned_away_before_its_page_can_say_a_line(
    operations: Recorded, line: str
) -> None:
    """The body of a form sent as `text/plain` is lines of the page's choice."""
    talk = conversation(operations)

    assert await talk.line(line) == [NOT_HTTP]
    assert talk.over
    for said in ("auth admin", f"delete {ID}", "save"):
        assert await talk.line(said) == []
    assert operations.done == []
    assert talk.role is Role.NONE


async def test_a_line_of_http_ends_a_conversation_that_has_a_role(operations: Recorded) -> None:
    talk = conversation(operations, Role.ADMIN)
    await talk.line("GET / HTTP/1.1")

    assert await talk.line(f"delete {ID}") == []
    assert operations.done == []


async def test_an_empty_password_gives_no_role(operations: Recorded) -> None:
    talk = ControlConversation(operations, admin_password="", user_password="")

    assert await talk.line("auth ") == ["AUTH"]
    assert talk.role is Role.NONE


async def test_a_user_blocks_and_an_admin_deletes(operations: Recorded) -> None:
    talk = conversation(operations, Role.USER)
    assert await talk.line(f"block {ID} reason=content") == ["ok"]
    assert await talk.line(f"delete {ID}") == ["AUTH"]
    assert await talk.line("save") == ["AUTH"]
    admin = conversation(operations, Role.ADMIN)
    assert await admin.line(f"delete {ID}") == ["ok"]
    assert await admin.line(f"unblock {ID}") == ["error: the queue is not blocked"]
    assert await admin.line("save") == ["ok"]

    assert [what for what, _ in operations.done] == ["block", "delete", "unblock", "save"]


@pytest.mark.parametrize(
    "line",
    ["block", f"block {ID}", f"block {ID} reason=other", "delete x", f"delete {ID} {ID}", "status"],
)
async def test_a_mistyped_line_changes_nothing(operations: Recorded, line: str) -> None:
    answer = await conversation(operations, Role.ADMIN).line(line)

    assert answer[0].startswith("error")
    assert operations.done == []


async def test_numbers_come_as_lines_or_as_csv(operations: Recorded) -> None:
    talk = conversation(operations, Role.USER)

    assert await talk.line("clients") == ["accepted,connections", "7,2"]
    assert await talk.line("sockets") == ["accepted: 7", "connections: 2"]
    assert await talk.line("stats") == ["msgSent=3"]
    assert await talk.line("threads") == ["threads: 4"]
    assert await talk.line("server-info") == ["version: 1"]
    assert await talk.line(f"status {ID}") == ["active"]
    assert await talk.line("") == []
    assert (await talk.line("nonsense"))[0].startswith("error: unknown")
    assert await talk.line("quit") == ["bye"]
    assert talk.over


@pytest.mark.parametrize(
    "text,blocking",
    [
        ("reason=spam", Blocking(BlockReason.SPAM)),
        ('reason=content,notice={"ttl":60}', Blocking(BlockReason.CONTENT, Notice(ttl=60))),
        ("reason=content,notice={}", Blocking(BlockReason.CONTENT, Notice())),
        ("reason=content,notice={ttl}", None),
        ("spam", None),
        ("", None),
    ],
)
def test_a_reason_is_read_strictly(text: str, blocking: Blocking | None) -> None:
    assert parse_blocking(text) == blocking


@pytest.mark.parametrize("text", ["", "short", ID + "A", "ä" * 32, "!" * 32])
def test_what_is_no_id_is_none(text: str) -> None:
    assert decode_id(text) is None
    assert decode_id(ID) == bytes(24)
