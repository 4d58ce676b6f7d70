"""What a user agent must remember between two starts: who it is and what it subscribed to.

Rule 1: the file holds private keys: mode 0600, replaced as a whole (write beside, fsync, rename).
Rule 2: a file that cannot be read is an error that names it; it is never overwritten silently.
"""

import os
from pathlib import Path

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.errors import RejectedError

from .encryption import AgentKeys, PublicKeys, b64url, from_b64url


class StateFileError(RejectedError):
    """The file is not one of ours."""

    label = "state_file"


class Subscription(msgspec.Struct, frozen=True):
    """One app server's way to this user agent."""

    channel_id: str
    endpoint: str
    keys: AgentKeys
    app_server_key: str = ""  # the VAPID public key it is bound to, if any

    @property
    def public_keys(self) -> PublicKeys:
        return self.keys.public

    def to_json(self) -> dict[str, object]:
        """As a browser gives it to its page: `PushSubscription.toJSON()`."""
        return {
            "endpoint": self.endpoint,
            "expirationTime": None,
            "keys": self.public_keys.to_json(),
        }


class AgentState(msgspec.Struct):
    uaid: str = ""
    subscriptions: dict[str, Subscription] = {}  # by channel id; msgspec copies the default

    def by_endpoint(self, endpoint: str) -> Subscription | None:
        for subscription in self.subscriptions.values():
            if subscription.endpoint == endpoint:
                return subscription
        return None


class _SavedSubscription(msgspec.Struct, frozen=True):
    channel_id: str
    endpoint: str
    private: str
    auth: str
    app_server_key: str = ""


class _Saved(msgspec.Struct, frozen=True):
    uaid: str
    subscriptions: list[_SavedSubscription]
    format: int = 1


class StateFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> AgentState:
        """An empty state if there is no file yet."""
        try:
            saved = msgspec.json.decode(self.path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            return AgentState()
        except DECODE_ERRORS as exc:
            raise StateFileError(f"{self.path} is not the state of a user agent: {exc}") from exc
        if saved.format != 1:
            raise StateFileError(f"{self.path} was written by another version")
        return AgentState(
            saved.uaid,
            {
                one.channel_id: Subscription(
                    one.channel_id,
                    one.endpoint,
                    AgentKeys(from_b64url(one.private, "private"), from_b64url(one.auth, "auth")),
                    one.app_server_key,
                )
                for one in saved.subscriptions
            },
        )

    def save(self, state: AgentState) -> None:
        saved = _Saved(
            state.uaid,
            [
                _SavedSubscription(
                    one.channel_id,
                    one.endpoint,
                    b64url(one.keys.private),
                    b64url(one.keys.auth),
                    one.app_server_key,
                )
                for one in state.subscriptions.values()
            ],
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(saved)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
