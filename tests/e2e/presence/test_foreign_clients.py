"""Clients that others have written take part: Node.js, Go and a second HTTP/2 in Python."""

import asyncio
import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.presence.h2_client import H2Client
from tests.e2e.presence.node import Node
from tests.unit.waiting import until
from tools.prepare_tests import PARTY_IN_NODE, SENDERS
from waystation.client.party.member import PartyMember
from waystation.presence.wire import party_presence_pb2 as pb

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 30.0
_parties = itertools.count(1000)


class NodeJs:
    """The example, running."""

    def __init__(self, party: int, client: int, node: Node) -> None:
        self._child = subprocess.Popen(
            ["node", PARTY_IN_NODE / "join.mjs", str(party), str(client), node.address],
            stdout=subprocess.PIPE,
            text=True,
        )

    async def line(self) -> str:
        assert self._child.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await asyncio.to_thread(self._child.stdout.readline)).strip()

    async def leave(self) -> tuple[int, str]:
        self._child.send_signal(signal.SIGINT)
        out, _ = await asyncio.to_thread(self._child.communicate, timeout=PATIENCE_S)
        return self._child.returncode, out

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.communicate()


@pytest.mark.node
async def test_a_client_in_node_with_the_smallest_definition_takes_part(node: Node) -> None:
    """P-035: it knows nine fields, is told of everything, and everybody is told of it."""
    party = next(_parties)
    async with PartyMember(node.address, party_id=party, client_id=5) as ada:
        await ada.joined()
        other = NodeJs(party, 2**63 + 1, node)
        try:
            assert await other.line() == "welcome; present: 5"
            await until(lambda: [one.client_id for one in ada.participants] == [2**63 + 1])
            async with PartyMember(node.address, party_id=party, client_id=6) as grace:
                await grace.joined()
                assert await other.line() == "6 joined; present: 5 6"
            assert await other.line() == "6 left; present: 5"
            code, out = await other.leave()
            await until(lambda: ada.participants == ())

            assert (code, out.splitlines()[-1]) == (0, "left")
        finally:
            other.kill()


def buf(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SENDERS / "node_modules" / ".bin" / "buf", "curl", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.node
def test_a_client_in_go_takes_part(node: Node) -> None:
    """`buf curl`: its HTTP/2 is that of Go."""
    party = next(_parties)
    join = {"messageType": "JOIN", "sessionId": "7", "clientId": "8", "partyId": str(party)}
    said = [{**join, "messageId": "1"}, {"messageType": "LEAVE", "messageId": "2"}]
    done = buf(
        *("--protocol", "grpc", "--http2-prior-knowledge"),
        *("--schema", ROOT / "src/waystation/presence/wire/party_presence.proto"),
        *("-d", "".join(map(json.dumps, said))),
        f"http://{node.address}/ClientMessagingEndpoint/beginStream",
    )

    assert done.returncode == 0, done.stderr
    heard = _json_values(done.stdout)
    assert [one["messageType"] for one in heard] == ["ACK", "LIST", "ACK"]
    assert heard[0]["ackMessageIds"] == ["1"]


def _json_values(text: str) -> list[dict[str, object]]:
    decoder = json.JSONDecoder()
    found: list[dict[str, object]] = []
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def test_a_client_on_another_http2_takes_part(node: Node) -> None:
    """Two sessions over one connection of h2."""
    party = next(_parties)
    with H2Client(node.port) as client:
        first, second = client.open(), client.open()
        ids = {"party_id": party, "client_id": 3}
        client.say(first, message_type=pb.JOIN, session_id=31, message_id=1, **ids)
        assert client.hear(first).resume_token
        assert client.hear(first).message_type == pb.LIST
        client.say(second, message_type=pb.JOIN, session_id=32, message_id=1, **ids)
        assert client.hear(second).message_type == pb.ACK
        (entry,) = client.hear(second).participant_client_ids
        assert (entry.client_id, list(entry.session_id)) == (3, [31])
        joined = client.hear(first)
        assert (joined.message_type, joined.session_id) == (pb.JOIN, 32)
        client.say(first, message_type=pb.ACK, ack_message_ids=[joined.message_id])
        client.say(second, message_type=pb.LEAVE, message_id=2)

        assert client.hear(second).message_type == pb.ACK
        assert client.end_of(second)["grpc-status"] == "0"
        assert client.hear(first).message_type == pb.LEAVE
        client.say(first, message_type=pb.LEAVE, message_id=2)
        assert client.end_of(first)["grpc-status"] == "0"


def test_noise_ends_one_stream_and_no_more(node: Node) -> None:
    """P-027: bytes that are no message."""
    party = next(_parties)
    with H2Client(node.port) as client:
        quiet, loud = client.open(), client.open()
        for stream, session in ((quiet, 41), (loud, 42)):
            client.say(
                stream,
                message_type=pb.JOIN,
                session_id=session,
                client_id=session,
                party_id=party,
                message_id=1,
            )
            assert client.hear(stream).message_type == pb.ACK
        client._h2.send_data(loud, b"\x00\x00\x00\x00\x04\xff\xff\xff\xff")
        client._flush()

        assert client.end_of(loud)["grpc-status"] == "3"
        client.say(quiet, message_type=pb.PING, message_id=2)
        kinds = {client.hear(quiet).message_type for _ in range(3)}
        assert kinds == {pb.LIST, pb.JOIN, pb.ACK}
