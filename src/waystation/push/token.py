"""Endpoint tokens, message ids, and the keys that encrypt both.

Rule 1: the first key seals and every key opens; an endpoint is valid while its key is listed.
Rule 2: a message id contains user agent and sort key, so that an ack or a DELETE needs no index.
Rule 3: no two messages share a sort key unless they share a topic. Autopush's keys end with the
        millisecond. Ours add a tie-breaker: a counter within the millisecond, which keeps the order
        of acceptance within a worker, and a random mark of the worker.
Rule 4: Autopush's message ids are accepted too: three-part keys, and the legacy `m:` form.
Rule 5: with `sort_keys = "autopush"` keys have three parts. They are unique within a worker;
        between workers the store detects a key that is in use.
"""

import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
import pybase64
from pybase64 import b64encode_as_string

from waystation.base.clock import Clock
from waystation.base.ids import dashed, parse_uuid
from waystation.base.limits import BoundedLru
from waystation.push.errors import InvalidMessageIdError, InvalidTokenError
from waystation.push.fernet import KEY_BYTES, Fernet
from waystation.push.model import ChannelId, MessageId, SortKey, Uaid

V1_BYTES: Final = 32  # uaid, channel id
PUBLIC_KEY_BYTES: Final = 65  # an uncompressed point of P-256
V2_BYTES: Final = 64  # and the SHA-256 of the app server's public key
SEALED_LETTERS_MAX: Final = 1024  # far above the length of any token of ours

# Tie-breakers that are formatted in advance; formatting one takes 0.11 to 0.18 us.
_COUNTS_MAX: Final = 256
_RECENT_CHANNELS_MAX: Final = 65_536
_INVALID: Final = "Invalid message ID"


class InvalidKeyError(ValueError):
    """An invalid key list. The text names the entry and the reason, never the key."""


class EndpointToken(msgspec.Struct, frozen=True, gc=False):
    """The contents of an endpoint URL: its subscription, and the key of its app server."""

    uaid: Uaid
    channel_id: ChannelId
    key_hash: bytes | None = None
    # Common parts of the ids and sort keys of all its messages.
    id_start: str = ""
    dashed_channel: str = ""

    def __post_init__(self) -> None:
        start = f"02:{self.uaid.hex()}:{self.channel_id.hex()}:"
        msgspec.structs.force_setattr(self, "id_start", start)
        msgspec.structs.force_setattr(self, "dashed_channel", dashed(self.channel_id))


class Keys:
    """The keys of `push.crypto_keys`, newest first."""

    __slots__ = ("_clock", "_fernets", "seal_raw")

    def __init__(self, raw_keys: Sequence[bytes], clock: Clock) -> None:
        assert raw_keys
        self._fernets = [Fernet(key) for key in raw_keys]
        self.seal_raw = self._fernets[0].seal  # raw token; takes the time in seconds
        self._clock = clock

    @classmethod
    def parse(cls, text: str, clock: Clock) -> "Keys":
        return cls(parse_key_list(text), clock)

    def seal(self, plain: bytes, at_ms: int | None = None) -> str:
        """Base64url with padding. The time in the token is `at_ms`, or now."""
        at_s = (self._clock.now_ms() if at_ms is None else at_ms) // 1000
        return b64encode_as_string(self.seal_raw(plain, at_s), b"-_")

    def open(self, sealed: bytes) -> bytes | None:
        """Open a token with or without padding. None if none of the keys sealed it."""
        if len(sealed) > SEALED_LETTERS_MAX:
            return None
        try:
            raw = pybase64.b64decode(sealed.rstrip(b"="), b"-_", validate=True, padded=False)
        except ValueError:
            return None
        for fernet in self._fernets:
            plain = fernet.open(raw)
            if plain is not None:
                return plain
        return None

    def endpoint_token(
        self, uaid: Uaid, channel_id: ChannelId, key_hash: bytes | None = None
    ) -> str:
        """A new token; every call returns a different one."""
        return self.seal(uaid + channel_id + (key_hash or b"")).rstrip("=")

    def open_token(self, token: bytes) -> bytes:
        """Step 2 of a POST: decrypt a token of any version."""
        plain = self.open(token)
        if plain is None:
            raise InvalidTokenError("Invalid token")
        return plain

    def open_endpoint(self, version: str, token: bytes) -> EndpointToken:
        return split_token(version, self.open_token(token))


def split_token(version: str, plain: bytes) -> EndpointToken:
    """Step 6 of a POST: check the length that the version in the path requires."""
    if len(plain) != (V1_BYTES if version == "v1" else V2_BYTES):
        raise InvalidTokenError("Invalid token")
    return EndpointToken(
        Uaid(plain[:16]), ChannelId(plain[16:32]), plain[32:] if version == "v2" else None
    )


class ParsedId(msgspec.Struct, frozen=True, gc=False):
    uaid: Uaid
    sort_key: SortKey
    channel_id: ChannelId


class MessageIds:
    """Creates and parses message ids for one worker."""

    __slots__ = (
        "_breakers",
        "_clock",
        "_count",
        "_keys",
        "_last_ms",
        "_last_s",
        "_mark",
        "_ms_text",
        "_random_bytes",
        "_recent",
        "_seal_raw",
    )

    def __init__(
        self,
        keys: Keys,
        clock: Clock,
        *,
        sort_keys: Literal["unique", "autopush"] = "unique",
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._keys = keys
        self._seal_raw = keys.seal_raw
        self._clock = clock
        self._random_bytes = random_bytes
        self._new_mark()
        self._last_ms = self._last_s = 0
        self._ms_text = "0"
        self._count = 0
        self._recent: BoundedLru[tuple[Uaid, ChannelId], int] | None = (
            BoundedLru(_RECENT_CHANNELS_MAX) if sort_keys == "autopush" else None
        )

    @property
    def shared(self) -> bool:
        """Whether another worker may use the same key, so that the store must check it."""
        return self._recent is not None

    def for_topic(self, uaid: Uaid, channel_id: ChannelId, topic: str) -> tuple[MessageId, SortKey]:
        text = f"01:{uaid.hex()}:{channel_id.hex()}:{topic}"
        return MessageId(self._keys.seal(text.encode())), SortKey(
            f"01:{dashed(channel_id)}:{topic}"
        )

    def for_timestamp(
        self, uaid: Uaid, channel_id: ChannelId, at_ms: int
    ) -> tuple[MessageId, SortKey]:
        return self.for_endpoint(EndpointToken(uaid, channel_id), at_ms)

    def for_endpoint(self, endpoint: EndpointToken, at_ms: int) -> tuple[MessageId, SortKey]:
        """Id and sort key of a message without a topic."""
        if self._recent is not None:
            return self._three_parts(endpoint.uaid, endpoint.channel_id, at_ms)
        if at_ms == self._last_ms:
            self._count = count = self._count + 1
            n = self._breakers[count] if count < _COUNTS_MAX else f"{count:04x}{self._mark}"
        else:
            n = self._tie_breaker(at_ms)
        ms = self._ms_text
        sealed = self._seal_raw(f"{endpoint.id_start}{ms}:{n}".encode(), self._last_s)
        # `Any` instead of calling the `NewType`s, which would cost two calls.
        message_id: Any = b64encode_as_string(sealed, b"-_")
        sort_key: Any = f"02:{ms}:{endpoint.dashed_channel}:{n}"
        return message_id, sort_key

    def again(self, uaid: Uaid, channel_id: ChannelId, taken: SortKey) -> tuple[MessageId, SortKey]:
        """Another id, in the next millisecond, because `taken` is in use by another worker."""
        return self.for_timestamp(uaid, channel_id, key_ms(taken) + 1)

    def _tie_breaker(self, at_ms: int) -> str:
        """Tie-breaker of the first message in a millisecond."""
        if at_ms < self._last_ms:
            # The wall clock went back: our mark was already used in these milliseconds.
            self._new_mark()
        self._last_ms, self._last_s = at_ms, at_ms // 1000
        self._ms_text = str(at_ms)
        self._count = 0
        return self._breakers[0]

    def _new_mark(self) -> None:
        """Tie-breakers end with the mark, so they are formatted again."""
        self._mark = self._random_bytes(4).hex()
        self._breakers = [f"{count:04x}{self._mark}" for count in range(_COUNTS_MAX)]

    def _three_parts(
        self, uaid: Uaid, channel_id: ChannelId, at_ms: int
    ) -> tuple[MessageId, SortKey]:
        """Autopush's form; a millisecond that this worker has used is replaced by the next one."""
        assert self._recent is not None
        last_ms = self._recent.get((uaid, channel_id))
        # A time far ahead is from before the clock was set back, and is ignored.
        if last_ms is not None and at_ms <= last_ms < at_ms + 60_000:
            at_ms = last_ms + 1
        self._recent.put((uaid, channel_id), at_ms)
        text = f"02:{uaid.hex()}:{channel_id.hex()}:{at_ms}"
        return MessageId(self._keys.seal(text.encode())), SortKey(
            f"02:{at_ms}:{dashed(channel_id)}"
        )

    def parse(self, message_id: str | bytes) -> ParsedId:
        """Parse an id of any generation. Raises `InvalidMessageIdError`."""
        try:
            sealed = message_id.encode("ascii") if isinstance(message_id, str) else message_id
            plain = self._keys.open(sealed)
            parts = plain.decode("ascii").split(":") if plain is not None else []
        except UnicodeError:
            raise InvalidMessageIdError(_INVALID) from None
        if len(parts) < 3:
            raise InvalidMessageIdError(_INVALID)
        uaid, channel = parse_uuid(parts[1]), parse_uuid(parts[2])
        if uaid is None or channel is None:
            raise InvalidMessageIdError(_INVALID)
        match parts:
            case ["01", _, _, topic] if topic:
                sort_key = f"01:{dashed(channel)}:{topic}"
            case ["02", _, _, ms] if ms.isdigit():
                sort_key = f"02:{ms}:{dashed(channel)}"
            case ["02", _, _, ms, n] if ms.isdigit() and n.isalnum():
                sort_key = f"02:{ms}:{dashed(channel)}:{n}"
            case ["m", _, _]:
                text = message_id if isinstance(message_id, str) else message_id.decode("ascii")
                sort_key = f"{dashed(channel)}:{text}"
            case _:
                raise InvalidMessageIdError(_INVALID)
        return ParsedId(Uaid(uaid), SortKey(sort_key), ChannelId(channel))


def key_ms(sort_key: str) -> int:
    """The millisecond in the sort key of a message without a topic."""
    kind, ms, _ = sort_key.split(":", 2)
    assert kind == "02"
    return int(ms)


def fresh_key(channel_id: ChannelId, at_ms: int) -> SortKey:
    """A key in Autopush's form, for a message that keeps its id."""
    return SortKey(f"02:{at_ms}:{dashed(channel_id)}")


def new_key() -> str:
    """A new key in the form of `push.crypto_keys`."""
    return b64encode_as_string(secrets.token_bytes(KEY_BYTES), b"-_")


def parse_list(text: str) -> list[str]:
    """Accepts `[a, b]`, `a,b`, `"a" 'b'` and JSON lists."""
    inner = text.strip().removeprefix("[").removesuffix("]")
    for noise in "\"'":
        inner = inner.replace(noise, " ")
    return inner.replace(",", " ").split()


def parse_public_key(text: str) -> bytes | None:
    """A VAPID public key in either base64 alphabet, padded or not; else None."""
    plain = text.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        raw = pybase64.b64decode(plain, b"-_", validate=True, padded=False)
    except ValueError:
        return None
    return raw if len(raw) == PUBLIC_KEY_BYTES else None


def parse_key_list(text: str) -> list[bytes]:
    """Parser of `push.crypto_keys`, shared by both daemons."""
    keys: list[bytes] = []
    for position, entry in enumerate(parse_list(text), start=1):
        try:
            key = pybase64.b64decode(
                entry.rstrip("=").replace("+", "-").replace("/", "_"),
                b"-_",
                validate=True,
                padded=False,
            )
        except ValueError:
            raise InvalidKeyError(
                f"crypto key {position} is not base64url; generate one with `waystation keys`"
            ) from None
        if len(key) != KEY_BYTES:
            raise InvalidKeyError(
                f"crypto key {position} has {len(key)} bytes; a Fernet key has {KEY_BYTES}"
                " (44 characters of base64url)"
            )
        keys.append(key)
    if not keys:
        raise InvalidKeyError(
            "the list of crypto keys is empty; generate one with `waystation keys`"
        )
    return keys
