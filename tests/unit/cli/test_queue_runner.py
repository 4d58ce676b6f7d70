"""What `waystation queue` decides before it asks a server, and how it shows what came."""

import json
from pathlib import Path

import pytest

from tests.unit.client.queue.peer import SERVER, a_queue
from waystation.cli import queue_output, queue_runner
from waystation.client.queue.address import AddressError, QueueAddress, ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.envelope import seal_message
from waystation.client.queue.events import Received
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.links import renewed
from waystation.client.queue.queue_file import QueueFile, QueueFileError, SavedQueue, SavedQueues
from waystation.client.queue.relay import Relay
from waystation.client.queue.tls import client_context

OTHER = ServerAddress(b"o" * 32, ("other.test",), 443)
NOWHERE = Path("/nowhere")


@pytest.fixture
def file(tmp_path: Path) -> QueueFile:
    return QueueFile(tmp_path / "queues.json")


def received(body: bytes) -> Received:
    return Received(a_queue(), b"m" * 24, 1_700_000_000, False, body)


def sealed(text: bytes) -> bytes:
    return seal_message(text, a_queue().inbox_key.public, PrivateKey.generate("x25519"))


def test_the_server_is_the_one_named_or_that_of_the_last_queue_or_the_one_here(
    tmp_path: Path,
) -> None:
    kept = SavedQueues(queues={"inbox": SavedQueue(a_queue())})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "serve.json").write_text(json.dumps({"queue_address": str(OTHER)}))

    assert queue_runner.server_of(str(OTHER), kept, NOWHERE) == OTHER
    assert queue_runner.server_of("", kept, tmp_path) == SERVER
    assert queue_runner.server_of("", SavedQueues(), tmp_path) == OTHER


@pytest.mark.parametrize("content", ["", "{}", "nonsense"])
def test_without_any_server_the_question_is_asked(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    if content:
        (tmp_path / "run" / "serve.json").write_text(content)

    with pytest.raises(AddressError, match="which server"):
        queue_runner.server_of("", SavedQueues(), tmp_path)


async def test_a_sender_is_kept_with_its_key_before_any_server_hears_of_it(file: QueueFile) -> None:
    address = str(a_queue().address)
    first = await queue_runner.sender(file, address, "", "")
    second = await queue_runner.sender(file, address, "another-name", "")
    by_name = await queue_runner.sender(file, first, "", "")
    kept = file.load().senders[first]

    assert first == second == by_name == "contact1"
    assert kept.sender.key is not None
    assert not kept.secured


async def test_a_contact_address_is_sent_to_without_a_key(file: QueueFile) -> None:
    queue = a_queue()
    address = QueueAddress(queue.server, queue.sender_id, queue.inbox_key.public, "C")
    name = await queue_runner.sender(file, str(address), "support", "")

    assert name == "support"
    assert file.load().senders["support"].sender.key is None


@pytest.mark.parametrize("to", ["nobody", "https://example.org", str(SERVER)])
async def test_what_leads_nowhere_is_refused(file: QueueFile, to: str) -> None:
    with pytest.raises(AddressError):
        await queue_runner.sender(file, to, "", "")
    assert not file.path.exists() or file.load() == SavedQueues()


async def test_a_name_that_is_taken_is_refused(file: QueueFile) -> None:
    await queue_runner.sender(file, str(a_queue(1).address), "friend", "")

    with pytest.raises(QueueFileError, match="friend is in use already"):
        await queue_runner.sender(file, str(a_queue(2).address), "friend", "")


async def test_receiving_from_nothing_says_how_to_begin(file: QueueFile) -> None:
    with pytest.raises(QueueFileError, match="waystation queue new"):
        await queue_runner.receive(file, [], 0, 0, json=False)
    with pytest.raises(QueueFileError, match="there is no queue inbox"):
        await queue_runner.receive(file, ["inbox"], 0, 0, json=False)


async def test_a_proxy_is_used_only_for_another_server() -> None:
    client = QueueClient(OTHER, tls=client_context(any_suite=True))

    assert queue_runner.via(SERVER, "") == SERVER
    assert queue_runner.via(SERVER, str(OTHER)) == OTHER
    assert queue_runner.way(client, OTHER) is client
    assert isinstance(queue_runner.way(client, SERVER), Relay)


def test_a_message_is_shown_as_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    queue_output.show_received("box", received(sealed(b"hello")), json=False, named=False)
    queue_output.show_received("box", received(sealed(b"hello")), json=False, named=True)
    queue_output.show_received("box", received(b"open"), json=False, named=False)
    shown = capsys.readouterr()

    assert shown.out == "hello\nbox: hello\nopen\n"
    assert "not sealed" in shown.err


def test_a_message_that_is_no_text_keeps_its_bytes_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue_output.show_received("box", received(sealed(b"\xff\x00")), json=True, named=False)
    told = json.loads(capsys.readouterr().out)

    assert told == {
        "event": "received",
        "queue": "box",
        "text": "�\x00",
        "base64": "_wA=",
        "sealed": True,
        "sent_at": "2023-11-14 22:13:20",
    }


def test_a_short_link_is_shown_instead_of_the_long_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from msgspec.structs import replace

    queue = replace(a_queue(), link=renewed(a_queue(), "text"))
    kept = SavedQueues(queues={"long": SavedQueue(a_queue()), "short": SavedQueue(queue)})
    for name in ("long", "short"):
        queue_output.show_queue(name, kept, qr=True, json=False)
    shown = capsys.readouterr().out

    assert f"address    {a_queue().address}" in shown
    assert f"link       {queue.link_address}" in shown
    assert "█" in shown
