"""Output of `waystation queue`: lines for people, JSON for programs, QR codes."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .terminal import complain, harmless, pass_on, say

if TYPE_CHECKING:
    from waystation.client.queue.events import Received
    from waystation.client.queue.queue_file import SavedQueues

MODES = {"M": "one sender", "C": "contact address", None: "one sender"}


def show_json(**fields: Any) -> None:
    import msgspec

    pass_on(msgspec.json.encode(fields).decode())


def show_qr(text: str, *, wanted: bool | None) -> None:
    """Show a QR code; None shows it on a terminal only."""
    if wanted is None:
        wanted = sys.stdout.isatty()
    if wanted:
        import segno

        segno.make(text, error="l").terminal(compact=True)


def show_queue(name: str, kept: "SavedQueues", *, qr: bool | None, json: bool) -> None:
    """Show the address or link that the owner gives to a sender."""
    queue = kept.queue(name).queue
    address, link = str(queue.address), str(queue.link_address or "")
    if json:
        show_json(name=name, mode=queue.mode, address=address, link=link)
        return
    invitation = link or address
    say(f"queue      {name} ({MODES[queue.mode]})")
    say(f"{'link' if link else 'address':10} {invitation}")
    show_qr(invitation, wanted=qr)
    say(f"try        waystation queue send '{invitation}' hello")
    say(f"           waystation queue receive {name}")


def when(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


class Opened:
    """A message after our own seal was taken off."""

    def __init__(self, received: "Received") -> None:
        from waystation.client.queue.envelope import EnvelopeError, open_message

        try:
            self.body = open_message(received.body, received.queue.inbox_key)
            self.sealed = True
        except EnvelopeError:
            self.body = received.body
            self.sealed = False

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def show_received(name: str, received: "Received", *, json: bool, named: bool) -> None:
    opened = Opened(received)
    if json:
        from waystation.client.queue.encoding import to_base64

        fields: dict[str, Any] = {"event": "received", "queue": name, "text": opened.text}
        if opened.text.encode() != opened.body:
            fields["base64"] = to_base64(opened.body)
        show_json(**fields, sealed=opened.sealed, sent_at=when(received.sent_at_s))
        return
    text = harmless(opened.text)
    pass_on(f"{name}: {text}" if named else text)
    if not opened.sealed:
        complain("this message was not sealed: the server could read it")


def show_event(name: str, event: str, text: str, *, json: bool) -> None:
    if json:
        show_json(event=event, queue=name, text=text)
    else:
        complain(f"{name}: {text}")
