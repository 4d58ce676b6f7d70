"""One user agent's connection, as the driver holds it."""

from collections import deque

from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.frames import text_frame
from waystation.push.connect.session import Session
from waystation.push.connect.states import CLOSED
from waystation.push.model import Notification, Uaid, Update
from waystation.push.wire import client as wire


class Client:
    """One connection's state; there are very many of these."""

    __slots__ = ("connection", "note", "session", "timer", "waiting")

    def __init__(self, connection: WebSocket, session: Session, note: object) -> None:
        self.connection: WebSocket | None = connection
        self.session = session
        self.waiting: deque[bytes] | None = None
        self.timer = 0
        self.note = note

    @property
    def alive(self) -> bool:
        return self.session.state is not CLOSED


def client_of(connection: WebSocket) -> Client:
    client = connection.handler_state
    assert isinstance(client, Client)
    return client


def uaid_of(client: Client) -> Uaid:
    uaid = client.session.uaid
    assert uaid is not None
    return uaid


def frame_of(notification: Notification | Update) -> bytes:
    if isinstance(notification, Update):
        return text_frame(wire.updates_message([notification]))
    return text_frame(wire.notification_message(notification))
