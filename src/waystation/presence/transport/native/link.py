"""What a connection still has to write, whom it carries, and when it has lived long enough.

Output gathers in `out`; `on_output` is told when it stops being empty, and the shell writes all of
it at the end of the turn. Time comes in with `wake`, which says when it wants to be called next.

Rule 1: a connection is alive while frames come. Without any for `keepalive_s` we ping; without an
        answer within `keepalive_timeout_s` it is lost.
Rule 2: preface, settings and their acknowledgement arrive within `handshake_timeout_s`.
Rule 3: without streams for `idle_timeout_s` the peer is told to go.
Rule 4: a finished stream whose last messages the peer does not take, or whose own side it does not
        end, is reset after `linger_s`.
"""

from collections.abc import Callable

from waystation.presence.transport.port import Gone, GrpcStatus, StreamHandler

from . import frames
from .call import ENDED, Call
from .frames import ErrorCode
from .limits import Limits

OUR_PING = b"are-you?"


class Link:
    __slots__ = (
        "_idle_since",
        "_lingering",
        "_on_failure",
        "_on_hold",
        "_on_output",
        "_opened_at",
        "_stalled",
        "blocked",
        "calls",
        "closing",
        "going",
        "handler",
        "held_bytes",
        "last_id",
        "limits",
        "mono",
        "out",
        "peer",
        "ping_at",
        "pinged_at",
        "send_window",
        "settled",
        "shell",
        "strikes",
    )

    def __init__(
        self,
        handler: StreamHandler,
        limits: Limits,
        peer: str,
        mono: float,
        *,
        on_output: Callable[["Link"], None],
        on_failure: Callable[[Exception], None],
        on_hold: Callable[[Call], None] | None = None,
    ) -> None:
        """Whoever takes calls by `on_hold` calls their `release` a moment later."""
        self.handler = handler
        self.limits = limits
        self.peer = peer
        self.shell: object = None  # whoever writes `out`
        self.calls: dict[int, Call] = {}
        self.out: list[bytes] = []
        self.blocked = False  # the socket takes no more for now
        self.closing = False  # write what is in `out`, then close
        self.going = False  # GOAWAY is out: no new streams
        self.last_id = 0  # the newest stream of the peer's
        self.settled = 0  # 1: the peer's settings have come, 2: and it has acknowledged ours
        self.send_window = frames.WINDOW_DEFAULT_BYTES
        self.held_bytes = 0  # read and not handed over, of all streams
        self.strikes = 0
        self.pinged_at = -1e9  # by the peer
        self.ping_at: float | None = None  # when we asked, while there is no answer
        self.mono = mono  # of the last bytes that came
        self._opened_at = self._idle_since = mono
        self._on_output = on_output
        self._on_failure = on_failure
        self._on_hold = on_hold
        self._stalled: dict[Call, None] | None = None
        self._lingering: dict[Call, float] | None = None

    # --- for calls -------------------------------------------------------------------------------

    def has_output(self) -> None:
        self._on_output(self)

    def write(self, data: bytes) -> None:
        out = self.out
        if not out:
            self._on_output(self)
        out.append(data)

    def wait_for_window(self, call: Call) -> None:
        if self._stalled is None:
            self._stalled = {}
        self._stalled[call] = None

    def linger(self, call: Call) -> None:
        if self._lingering is None:
            self._lingering = {}
        self._lingering[call] = self.mono + self.limits.linger_s

    def hold(self, call: Call) -> bool:
        if self._on_hold is None:
            return False
        self._on_hold(call)
        return True

    def forget(self, call: Call) -> None:
        self.calls.pop(call.stream_id, None)
        if self._stalled is not None:
            self._stalled.pop(call, None)
        if self._lingering is not None:
            self._lingering.pop(call, None)
        if not self.calls:
            self._idle_since = self.mono
            if self.going and not self.closing:
                self.write(b"")  # somebody must come by to close
                self.closing = True

    def failed(self, call: Call, exc: Exception) -> None:
        """The broker raised: its own mistake, which ends one call and no more."""
        self._on_failure(exc)
        if not call.state & ENDED:
            call.finish(GrpcStatus.INTERNAL, "INTERNAL_ERROR")
            self.handler.closed(call, Gone.RESET)

    # --- windows ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Windows, or the socket, have room again: first come, first served."""
        stalled = self._stalled
        if stalled:
            for call in list(stalled):
                if self.blocked or self.send_window <= 0:
                    return
                self.pump_one(call)

    def pump_one(self, call: Call) -> None:
        if call.pump() and self._stalled is not None:
            self._stalled.pop(call, None)

    def block(self) -> None:
        self.blocked = True

    def unblock(self) -> None:
        self.blocked = False
        self.pump()

    # --- ends ------------------------------------------------------------------------------------

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        self.write(frames.rst_stream(stream_id, code))
        call = self.calls.get(stream_id)
        if call is not None:
            self.forget(call)
            call.lost(Gone.RESET)

    def go_away(
        self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "", *, close: bool = False
    ) -> None:
        """No new streams; with `close`, those that are there are lost as well."""
        if not self.closing and (close or not self.going):
            for call in list(self.calls.values()) if close else ():
                if call.unsent is None:
                    call.release()
            self.going = True
            self.closing = close or not self.calls
            self.write(frames.goaway(self.last_id, code, reason))
            if close:
                self.lost()

    def lost(self) -> None:
        """The connection is gone: every call hears of it, once."""
        self.closing = True
        self._stalled = self._lingering = None
        calls, self.calls = self.calls, {}
        for call in calls.values():
            try:
                call.lost(Gone.TRANSPORT)
            except Exception as exc:  # each of the others must hear of it too
                self._on_failure(exc)

    # --- time ------------------------------------------------------------------------------------

    def wake(self, mono: float) -> float | None:
        """Does what is due; returns when to call again, or None if the connection is over."""
        if self.closing:
            return None
        limits = self.limits
        if self.settled < 2:
            due = self._opened_at + limits.handshake_timeout_s
            if mono >= due:
                self.go_away(ErrorCode.SETTINGS_TIMEOUT, "no settings in time", close=True)
                return None
            return due
        if self.ping_at is not None and self.mono <= self.ping_at:
            if mono >= self.ping_at + limits.keepalive_timeout_s:
                self.go_away(ErrorCode.NO_ERROR, "no answer to a ping", close=True)
                return None
            return self._sooner(mono, self.ping_at + limits.keepalive_timeout_s)
        self.ping_at = None  # anything that came since is as good as an answer
        if not self.calls and mono >= self._idle_since + limits.idle_timeout_s:
            self.go_away(ErrorCode.NO_ERROR, "idle", close=True)
            return None
        due = self.mono + limits.keepalive_s
        if mono >= due:
            self.ping_at = mono
            self.write(frames.frame(frames.PING, 0, 0, OUR_PING))
            due = mono + limits.keepalive_timeout_s
        return self._sooner(mono, due)

    def _sooner(self, mono: float, due: float) -> float:
        """Rule 4, between the other deadlines."""
        lingering = self._lingering
        if lingering:
            for call, ends_at in list(lingering.items()):
                if mono >= ends_at:
                    done = call.unsent is None
                    self.reset(call.stream_id, ErrorCode.NO_ERROR if done else ErrorCode.CANCEL)
            if lingering:
                return min(due, *lingering.values())
        return due
