"""Circuit breaker and condition of one app of a bridge.

Rule 1: after `FAILURES_MAX` failures in a row the vendor is called only after growing pauses, with
        one message at a time. All other messages are refused at once with the last error.
Rule 2: an error about a single message or device does not count as a failure. Requests that fail
        at the same moment, such as those of a broken connection, count once.
Rule 3: the first failure of a kind is logged, and the recovery; a kind at most once a minute.
        `condition` has the current state.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import urlsplit

from structlog.typing import FilteringBoundLogger

from waystation.base.breaker import Breaker
from waystation.base.clock import Clock
from waystation.base.errors import GoneError, RejectedError
from waystation.base.numbers import parse_number
from waystation.base.settings import SettingsError
from waystation.net.http2.client import (
    DEFAULT_PORTS,
    Headers,
    Http2Answer,
    Http2Client,
    Http2FailedError,
)
from waystation.push.errors import (
    BridgeAuthError,
    BridgeConnectError,
    BridgeError,
    BridgeFailedError,
    BridgeTimeoutError,
)

from .bridge import Condition

FAILURES_MAX: Final = 3  # in a row, before the first pause
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
SAME_MOMENT_S: Final = 0.05
LOGGED_EVERY_S: Final = 60.0
PAUSE_S_MAX: Final = 3600  # longest pause that a vendor may request
T = TypeVar("T")


class App:
    """Base class of the apps of all bridges."""

    def __init__(self, app_id: str, *, via: str, clock: Clock, log: FilteringBoundLogger) -> None:
        self.app_id = app_id
        self._via = via
        self._log = log
        self._breaker = Breaker(
            clock,
            failures_max=FAILURES_MAX,
            open_s=FIRST_PAUSE_S,
            open_most_s=LONGEST_PAUSE_S,
            asked_most_s=PAUSE_S_MAX,
        )
        self._clock = clock
        self._trying = False  # one message tries the vendor after a pause
        self._failed_mono = float("-inf")
        self._failure: BridgeError | None = None  # the last one; None while the vendor works
        self._logged = ""  # kind of the failure logged last; empty after recovery
        self._logged_mono: dict[str, float] = {}  # by kind

    @property
    def condition(self) -> Condition:
        failure = self._failure
        return Condition(self.app_id, failure is None, "" if failure is None else str(failure))

    async def attempt(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the vendor. During a pause, raises the last error instead."""
        on_trial = self._breaker.on_trial
        if self._failure is not None and (self._breaker.wait_s() or (on_trial and self._trying)):
            raise type(self._failure)(str(self._failure))
        if not on_trial:
            return await self._judged(ask)
        self._trying = True
        try:
            return await self._judged(ask)
        finally:
            self._trying = False

    async def _judged(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await ask()
        except (
            BridgeAuthError,
            BridgeConnectError,
            BridgeFailedError,
            BridgeTimeoutError,
        ) as failure:
            self._failed(failure)
            raise
        except (BridgeError, GoneError, RejectedError):
            self._worked()
            raise
        self._worked()
        return answer

    def _failed(self, failure: BridgeError) -> None:
        pause_s = failure.pause_s if isinstance(failure, BridgeFailedError) else 0.0
        mono = self._clock.mono()
        if pause_s or mono - self._failed_mono >= SAME_MOMENT_S:
            self._failed_mono = mono
            self._breaker.failed(retry_after_s=pause_s)
        kind = failure.label
        since_s = mono - self._logged_mono.get(kind, float("-inf"))
        if kind != self._logged and since_s >= LOGGED_EVERY_S:
            self._logged, self._logged_mono[kind] = kind, mono
            self._log.error(
                "bridge.failing",
                via=self._via,
                app=self.app_id,
                what=kind,
                reason=str(failure),
            )
        self._failure = failure

    def _worked(self) -> None:
        self._breaker.succeeded()
        self._failure = None
        if self._logged:
            self._logged = ""
            self._log.info("bridge.working", via=self._via, app=self.app_id)


def pause_of(answer: Http2Answer) -> float:
    """The vendor's `Retry-After` in seconds; 0 if there is none."""
    return float(parse_number(answer.headers.get("retry-after", ""), PAUSE_S_MAX) or 0)


async def ask_vendor(
    client: Http2Client, path: str, headers: Headers, body: bytes, *, timeout_s: float
) -> Http2Answer:
    """Send a POST. Raises `BridgeConnectError`, `BridgeTimeoutError`, or `BusyError` at the limit
    of concurrent requests."""
    try:
        return await client.request("POST", path, headers, body, timeout_s=timeout_s)
    except Http2FailedError as exc:
        raise BridgeConnectError(str(exc)) from exc
    except TimeoutError as exc:
        raise BridgeTimeoutError(str(exc)) from exc


def check_url(setting: str, url: str) -> None:
    """Raises `SettingsError` for an unusable URL."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in DEFAULT_PORTS and parts.hostname and parts.port != 0
    except ValueError:  # a port of letters, an address without its bracket
        good = False
    if not good:
        raise SettingsError([f"{setting} is not a URL: {url[:100]!r}"])
