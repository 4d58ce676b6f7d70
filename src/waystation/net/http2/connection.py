"""One HTTP/2 connection: the server's side of RFC 9113, and gRPC's rules of keeping it alive.

The loop carries bytes and TLS; this reads frames, keeps windows, and fills the connection's output.

Rule 1: a fault of the connection gives GOAWAY with the last stream that was looked at, and closes;
        a fault of a stream gives RST_STREAM, and the others go on.
Rule 2: a header block is read to its end before anything else of the connection is, and decoded
        even if its stream is refused: the tables of both ends must agree.
Rule 3: DATA counts against the connection's window also when its stream is gone. Frames for a
        stream that we have reset are ignored: the peer may have sent them before it knew. DATA and
        HEADERS on any other closed stream are a fault of the connection.
Rule 4: pings that come closer together than `ping_interval_s` are strikes; whatever we send to a
        stream forgives them. After the third the connection ends with "too_many_pings".
Rule 5: while the kernel takes nothing, DATA waits with its stream. Other answers gather up to
        `blocked_bytes_max`; with the next one the connection is cut off.
Rule 6: a connection is alive while bytes come. Without any for `keepalive_s` we ping; without an
        answer within `keepalive_timeout_s` it is lost.
Rule 7: TLS, the preface, settings and their acknowledgement arrive within `handshake_timeout_s`.
Rule 8: without streams for `idle_timeout_s` the peer is told to go.
Rule 9: a finished stream whose last messages the peer does not take, or whose own side it does not
        end, is reset after `linger_s`.
"""

from collections.abc import Mapping
from typing import NoReturn, Protocol

from waystation.net.connection import ENDING, SHAKING
from waystation.net.connection import Connection as Socket
from waystation.net.http2.port import Gone, GrpcStatus, StreamHandler
from waystation.net.loop import Port

from . import frames
from .call import ANSWERED, ENDED, HALF_WINDOW_BYTES, REMOTE_CLOSED, Call
from .frames import (
    DATA,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    PADDED,
    ConnectionFault,
    ErrorCode,
    StreamFault,
)
from .hpack import Decoder, Field, HpackBombError, HpackError, TooManyHeadersError
from .limits import PING_STRIKES_MAX, Guard, Limits
from .request import (
    MalformedRequestError,
    check_trailers,
    read_request,
)

OUR_PING = b"are-you?"
RESETS_REMEMBERED_MAX = 2048  # streams that we have reset, the newest
_unpack_head = frames.HEAD.unpack_from
_FIXED_LENGTHS = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
_OF_THE_CONNECTION = frozenset((frames.SETTINGS, frames.PING, frames.GOAWAY))


class Host(Protocol):
    """What a connection needs of its server."""

    port: Port
    limits: Limits
    routes: Mapping[bytes, StreamHandler]

    def mono(self) -> float: ...

    def end_soon(self, call: Call, /) -> None:
        """Calls its `release` a moment later."""
        ...

    def left(self, connection: "Connection", /) -> None:
        """The connection is over."""
        ...

    def failed(self, exc: Exception, /) -> None:
        """A handler raised."""
        ...


class Connection(Socket):
    __slots__ = (
        "_block",
        "_continuations",
        "_decoder",
        "_guard",
        "_held",
        "_idle_since",
        "_lingering",
        "_low_window",
        "_needed",
        "_opened_at",
        "_receive_window",
        "_resets",
        "_stalled",
        "_started",
        "_stream_window",
        "alarm",
        "calls",
        "going",
        "held_bytes",
        "host",
        "last_id",
        "limits",
        "mono",
        "ping_at",
        "pinged_at",
        "send_window",
        "settled",
        "strikes",
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host.port)
        self.host = host
        self.limits = host.limits
        self.alarm = 0  # its entry on the server's wheel
        self.calls: dict[int, Call] = {}
        self.going = False  # GOAWAY is out: no new streams
        self.last_id = 0  # the newest stream of the peer's
        self.settled = 0  # 1: the peer's settings have come, 2: and it has acknowledged ours
        self.send_window = frames.WINDOW_DEFAULT_BYTES
        self.held_bytes = 0  # read and not handed over, of all streams
        self.strikes = 0
        self.pinged_at = -1e9  # by the peer
        self.ping_at: float | None = None  # when we asked, while there is no answer
        self.mono = host.mono()  # of the last bytes that came
        self._opened_at = self._idle_since = self.mono
        self._stalled: dict[Call, None] | None = None
        self._lingering: dict[Call, float] | None = None
        self._decoder: Decoder | None = None
        self._guard: Guard | None = None
        self._held: bytearray | None = None  # of a frame that is not complete
        self._needed = 0  # bytes below which `_held` has nothing for us
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, headers so far
        self._continuations = 0
        self._started = False  # the preface has come
        self._stream_window = frames.WINDOW_DEFAULT_BYTES  # what the peer gives a new stream
        self._receive_window = frames.WINDOW_DEFAULT_BYTES
        self._low_window = host.limits.receive_window_bytes // 2
        self._resets: dict[int, None] | None = None  # rule 3

    # --- the loop calls these --------------------------------------------------------------------

    def opened(self) -> None:
        secure = self.secure
        if secure is not None and secure.protocol != "h2":  # RFC 9113, section 3.2
            self.abort()

    def received(self, data: bytes) -> None:
        self.mono = self.host.mono()
        held = self._held
        if held is not None:
            held += data
            if len(held) < self._needed:
                return
            data = bytes(held)
            self._held = None
        end = len(data)
        self._needed = HEADER_BYTES
        try:
            at = 0
            if not self._started:
                at = self._preface(data)
                if not at:
                    self._held = bytearray(data)
                    return
            while end - at >= HEADER_BYTES:
                head, flags, stream_id = _unpack_head(data, at)
                length = head >> 8
                if length > FRAME_BYTES_MAX:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too long")
                begin = at + HEADER_BYTES
                stop = begin + length
                if stop > end:
                    self._needed = stop - at
                    break
                stream_id &= 0x7FFF_FFFF
                try:
                    if head & 0xFF == DATA and self._block is None:
                        self._data(flags, stream_id, data, begin, stop)
                    else:
                        self._frame(head & 0xFF, flags, stream_id, data, begin, stop)
                except StreamFault as fault:
                    self._reset_for(fault)
                if self.flags & ENDING:
                    return
                at = stop
        except ConnectionFault as fault:
            self.go_away(fault.code, fault.reason, close=True)
            return
        if at < end:
            self._held = bytearray(memoryview(data)[at:])
        if self._receive_window <= self._low_window:
            self._open_window()

    def half_closed(self) -> None:
        """A peer that sends nothing more cannot keep HTTP/2 going."""
        self.end()

    def drained(self) -> None:
        self.pump()

    def closed(self) -> None:
        self.host.left(self)
        self._stalled = self._lingering = None
        calls, self.calls = self.calls, {}
        for call in calls.values():
            try:
                call.lost(Gone.TRANSPORT)
            except Exception as exc:  # each of the others must hear of it too
                self.host.failed(exc)

    # --- input -----------------------------------------------------------------------------------

    def _preface(self, data: bytes) -> int:
        """Where the first frame begins; 0 while the preface is not complete."""
        length = len(frames.PREFACE)
        if data[:length] != frames.PREFACE[: len(data)]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < length:
            self._needed = length
            return 0
        self._start()
        return length

    def _open_window(self) -> None:
        """Half of the connection's window is used, or held by streams whose handlers paused."""
        held_back = self.limits.receive_window_bytes - self.held_bytes - self._receive_window
        if held_back >= self._low_window:
            self._receive_window += held_back
            self.send(frames.window_update(0, held_back))

    def _reset_for(self, fault: StreamFault) -> None:
        """A reset that the peer provokes counts like one of its own (`limits`)."""
        call = self.calls.get(fault.stream_id)
        if fault.code == ErrorCode.REFUSED_STREAM:
            self._budget().idle_frame(self.mono)
        elif call is None or not call.state & (ANSWERED | ENDED):
            self._budget().premature_reset(self.mono)
        self.reset(fault.stream_id, fault.code)

    def _start(self) -> None:
        self._started = True
        limits = self.limits
        self.send(
            frames.settings(
                {
                    frames.SETTING_MAX_CONCURRENT_STREAMS: limits.streams_max,
                    frames.SETTING_MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            )
        )

    def _frame(  # noqa: PLR0917 every frame passes here
        self, kind: int, flags: int, stream_id: int, data: bytes, at: int, stop: int
    ) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if not self.settled and kind != frames.SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, data, at, stop)
            return
        self._check(kind, stream_id, stop - at)
        if kind == frames.HEADERS:
            self._headers(flags, stream_id, data, at, stop)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, data, at, stop)
        elif kind == frames.RST_STREAM:
            self._rst_stream(stream_id)
        elif kind == frames.SETTINGS:
            self._settings(flags, data, at, stop)
        elif kind == frames.PING:
            self._ping(flags, data[at:stop])
        elif kind == frames.PRIORITY:
            self._budget().idle_frame(self.mono)
            if frames.number(data, at) == stream_id:
                self._blame(stream_id, ErrorCode.PROTOCOL_ERROR, "it depends on itself")
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients do not push")
        elif kind != frames.GOAWAY:  # of the peer's: it opens no more streams, which is all
            self._budget().idle_frame(self.mono)  # section 5.5: unknown frames are ignored

    def _check(self, kind: int, stream_id: int, length: int) -> None:
        """Whether such a frame may have this stream and this length."""
        if (kind in _OF_THE_CONNECTION) == (stream_id != 0) and kind <= frames.CONTINUATION:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame on the wrong stream")
        fixed = _FIXED_LENGTHS.get(kind)
        if fixed is not None and length != fixed:
            if kind == frames.PRIORITY:
                self._blame(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame of the wrong length")
        if kind == frames.GOAWAY and length < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is too short")

    def _data(self, flags: int, stream_id: int, data: bytes, at: int, stop: int) -> None:
        length = stop - at
        self._receive_window -= length
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        call = self.calls.get(stream_id)
        if call is None:
            self._check_closed(stream_id)
            return
        if call.state & REMOTE_CLOSED:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end")
        call.receive_window -= length
        if call.receive_window < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        if flags & PADDED:
            at, stop = _unpadded(data, at, stop)
        if call.body_left is not None:
            call.body_left -= stop - at
            if call.body_left < 0:
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "more than content-length")
        if at < stop:
            call.receive(data, at, stop)
        elif not flags & END_STREAM:
            self._budget().idle_frame(self.mono)
        if flags & END_STREAM:
            self._remote_closed(call)
        elif call.receive_window <= HALF_WINDOW_BYTES and stream_id in self.calls:
            call.open_window()

    def _remote_closed(self, call: Call) -> None:
        if call.body_left:  # section 8.1.1
            raise StreamFault(call.stream_id, ErrorCode.PROTOCOL_ERROR, "less than content-length")
        call.remote_closed()

    def _was_reset(self, stream_id: int) -> bool:
        """Rule 3."""
        return self._resets is not None and stream_id in self._resets

    def _check_closed(self, stream_id: int) -> None:
        """DATA or HEADERS have come on a stream that is not open."""
        if self._was_reset(stream_id):
            return
        if stream_id > self.last_id or stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that is not open")
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, "the stream was closed before")

    def _headers(self, flags: int, stream_id: int, data: bytes, at: int, stop: int) -> None:
        if flags & frames.PADDED:
            at, stop = _unpadded(data, at, stop)
        if flags & frames.HAS_PRIORITY:
            if stop - at < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no room for the priority")
            if frames.number(data, at) == stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            at += 5
        if flags & frames.END_HEADERS:
            self._block_read(stream_id, flags, data[at:stop])
        else:
            self._block = (stream_id, flags, bytearray(memoryview(data)[at:stop]))
            self._continuations = 0

    def _continuation(self, flags: int, data: bytes, at: int, stop: int) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        stream_id, first_flags, block = self._block
        self._continuations += 1
        block += memoryview(data)[at:stop]
        if (
            self._continuations > self.limits.continuations_max
            or len(block) > self.limits.header_block_bytes_max
        ):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers without end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._block_read(stream_id, first_flags, bytes(block))

    def _block_read(self, stream_id: int, flags: int, block: bytes) -> None:
        decoder = self._decoder
        if decoder is None:
            decoder = Decoder(
                list_bytes_max=self.limits.header_list_bytes_max,
                unpacked_bytes_max=self.limits.header_unpacked_bytes_max,
            )
            self._decoder = decoder
        try:
            fields = decoder.decode(block)
        except HpackError as exc:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(exc)) from None
        except HpackBombError as exc:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, str(exc)) from None
        except TooManyHeadersError:
            fields = None
        call = self.calls.get(stream_id)
        try:
            if call is None:
                self._open(stream_id, flags, fields)
                return
            if not flags & frames.END_STREAM or call.state & REMOTE_CLOSED:
                raise MalformedRequestError("headers in the middle of a stream")
            check_trailers(fields or [])
        except MalformedRequestError as exc:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(exc)) from None
        self._remote_closed(call)

    def _open(self, stream_id: int, flags: int, fields: list[Field] | None) -> None:
        if stream_id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream of the server's")
        if stream_id <= self.last_id or self._was_reset(stream_id):
            self._check_closed(stream_id)
            return
        if self.going:  # section 6.8: streams above the last one we named are not looked at
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "going away")
        self.last_id = stream_id
        if len(self.calls) >= self.limits.streams_max:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "streams_max")
        call = Call(self, stream_id, self._stream_window)
        request = None if fields is None else read_request(fields)
        ends = bool(flags & frames.END_STREAM)
        if request is not None and request.body_bytes is not None:
            call.body_left = request.body_bytes
            if ends and call.body_left:
                raise MalformedRequestError("less than content-length")
        self.calls[stream_id] = call
        call.state |= REMOTE_CLOSED if ends else 0
        if request is None:
            call.refuse(GrpcStatus.RESOURCE_EXHAUSTED, "metadata too large")
            return
        if not request.is_grpc:
            call.refuse_http(with_body=not request.is_head)
            return
        handler = self.host.routes.get(request.path)
        if handler is None:
            call.refuse(GrpcStatus.UNIMPLEMENTED, "unknown method")
            return
        call.handler = handler
        call.authorization = request.authorization
        try:
            handler.opened(call)
        except Exception as exc:  # the handler's own mistake must not end the other streams
            self.call_failed(call, exc)
        if ends:
            call.remote_closed()

    def _rst_stream(self, stream_id: int) -> None:
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id > self.last_id and not self._was_reset(stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
            self._budget().idle_frame(self.mono)
            return
        if not call.state & (ANSWERED | ENDED):
            self._budget().premature_reset(self.mono)
        self.forget(call)
        call.lost(Gone.RESET)

    def _settings(self, flags: int, data: bytes, at: int, stop: int) -> None:
        if flags & frames.ACK:
            if at != stop:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement is empty")
            if not self.settled:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self.settled = 2
            return
        if (stop - at) % frames.SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS come in six bytes each")
        if self.settled:
            self._budget().settings_changed(self.mono)
        else:
            self.settled = 1
        for name, value in frames.SETTING.iter_unpack(data[at:stop]):
            if name == frames.SETTING_INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif name == frames.SETTING_ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            elif name == frames.SETTING_MAX_FRAME_SIZE and not 16_384 <= value < 2**24:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
        self.send(frames.SETTINGS_ACK)
        self.pump()

    def _resize_windows(self, size: int) -> None:
        """Section 6.9.2: the change applies to streams that are open; they may go below zero."""
        change = size - self._stream_window
        self._stream_window = size
        if size > frames.WINDOW_BYTES_MAX or any(
            call.send_window + change > frames.WINDOW_BYTES_MAX for call in self.calls.values()
        ):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")
        for call in self.calls.values():
            call.send_window += change

    def _window_update(self, stream_id: int, data: bytes, at: int, stop: int) -> None:
        if stop - at != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        increment = frames.number(data, at)
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
            self.send_window += increment
            if self.send_window > frames.WINDOW_BYTES_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")
            self.pump()
            return
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id > self.last_id and not self._was_reset(stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
            return
        if increment == 0:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
        call.send_window += increment
        if call.send_window > frames.WINDOW_BYTES_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "beyond 2^31 - 1")
        if call.unsent is not None:
            self.pump_one(call)

    def _ping(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            if payload == OUR_PING:
                self.ping_at = None
            return
        self.send(frames.frame(frames.PING, frames.ACK, 0, payload))
        if self.mono - self.pinged_at < self.limits.ping_interval_s:
            self.strikes += 1
            if self.strikes > PING_STRIKES_MAX:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self.pinged_at = self.mono

    def _blame(self, stream_id: int, code: ErrorCode, reason: str) -> NoReturn:
        """A stream that was never opened cannot be reset: then it is the connection's fault."""
        if stream_id > self.last_id:
            raise ConnectionFault(code, reason)
        raise StreamFault(stream_id, code, reason)

    def _budget(self) -> Guard:
        guard = self._guard
        if guard is None:
            self._guard = guard = Guard(self.limits)
        return guard

    # --- for calls -------------------------------------------------------------------------------

    def wait_for_window(self, call: Call) -> None:
        if self._stalled is None:
            self._stalled = {}
        self._stalled[call] = None

    def linger(self, call: Call) -> None:
        """Rule 9."""
        if self._lingering is None:
            self._lingering = {}
        self._lingering[call] = self.mono + self.limits.linger_s

    def forget(self, call: Call) -> None:
        self.calls.pop(call.stream_id, None)
        if self._stalled is not None:
            self._stalled.pop(call, None)
        if self._lingering is not None:
            self._lingering.pop(call, None)
        if not self.calls:
            self._idle_since = self.mono
            if self.going:
                self.end()

    def call_failed(self, call: Call, exc: Exception) -> None:
        """The handler raised: its own mistake, which ends one call and no more."""
        self.host.failed(exc)
        if not call.state & ENDED:
            call.finish(GrpcStatus.INTERNAL, "INTERNAL_ERROR")
            call.handler.closed(call, Gone.RESET)

    # --- windows ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Windows, or the socket, have room again: first come, first served."""
        stalled = self._stalled
        if stalled:
            for call in list(stalled):
                if self.is_blocked or self.send_window <= 0:
                    return
                self.pump_one(call)

    def pump_one(self, call: Call) -> None:
        if call.pump() and self._stalled is not None:
            self._stalled.pop(call, None)

    # --- ends ------------------------------------------------------------------------------------

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        self.send(frames.rst_stream(stream_id, code))
        resets = self._resets
        if resets is None:
            self._resets = resets = {}
        resets[stream_id] = None
        if len(resets) > RESETS_REMEMBERED_MAX:
            del resets[next(iter(resets))]
        call = self.calls.get(stream_id)
        if call is not None:
            self.forget(call)
            call.lost(Gone.RESET)

    def go_away(
        self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "", *, close: bool = False
    ) -> None:
        """No new streams; with `close`, those that are there are lost as well."""
        if self.flags & ENDING or (self.going and not close):
            return
        for call in list(self.calls.values()) if close else ():
            if call.unsent is None:
                call.release()
        self.going = True
        self.send(frames.goaway(self.last_id, code, reason))
        if close or not self.calls:
            self.end()

    # --- time ------------------------------------------------------------------------------------

    def wake(self, mono: float) -> float | None:
        """Does what is due; returns when to call again, or None if the connection is over."""
        if self.flags & ENDING:
            return None
        limits = self.limits
        if self.settled < 2:
            due = self._opened_at + limits.handshake_timeout_s
            if mono < due:
                return due
            if self.flags & SHAKING:
                self.abort()
            else:
                self.go_away(ErrorCode.SETTINGS_TIMEOUT, "no settings in time", close=True)
            return None
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
            self.send(frames.frame(frames.PING, 0, 0, OUR_PING))
            due = mono + limits.keepalive_timeout_s
        return self._sooner(mono, due)

    def _sooner(self, mono: float, due: float) -> float:
        """Rule 9, between the other deadlines."""
        lingering = self._lingering
        if lingering:
            for call, ends_at in list(lingering.items()):
                if mono >= ends_at:
                    done = call.unsent is None
                    self.reset(call.stream_id, ErrorCode.NO_ERROR if done else ErrorCode.CANCEL)
            if lingering:
                return min(due, *lingering.values())
        return due


def _unpadded(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Sections 6.1 and 6.2: the first byte says how many at the end mean nothing."""
    if at == stop:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no room for the padding's length")
    end = stop - data[at]
    if end < at + 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return at + 1, end
