"""State of one user agent's connection in the driver."""

from collections import deque

from waystation.net.websocket.connection import WebSocket
from waystation.net.websocket.frames import text_frame
from waystation.push.model import Notification, Uaid, Update
from waystation.push.wire import client_messages as wire

from .session import Session
from .session_states import CLOSED


class UserAgentConnection:
    """One connection; kept small, because a worker holds very many."""

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


def client_of(connection: WebSocket) -> UserAgentConnection:
    client = connection.handler_state
    assert isinstance(client, UserAgentConnection)
    return client


def uaid_of(client: UserAgentConnection) -> Uaid:
    uaid = client.session.uaid
    assert uaid is not None
    return uaid


def frame_of(notification: Notification | Update) -> bytes:
    if isinstance(notification, Update):
        return text_frame(wire.updates_message([notification]))
    return text_frame(wire.notification_message(notification))
