"""What a peer's frames do to an HTTP/2 connection: the server's side of RFC 9113, without I/O.

Rule 1: a fault of the connection gives GOAWAY with the last stream that we looked at, and closes;
        a fault of a stream gives RST_STREAM, and the others go on.
Rule 2: a header block is read to its end before anything else of the connection is, and decoded
        even if its stream is refused: the tables of both ends must agree.
Rule 3: DATA counts against the connection's window also when its stream is gone. Otherwise frames
        for a stream that is gone are ignored: they may have crossed our RST_STREAM or trailers.
Rule 4: pings that come closer together than `ping_interval_s` are strikes; whatever we send to a
        stream forgives them. After the third the connection ends with "too_many_pings".
"""

from collections.abc import Callable, Collection
from typing import NoReturn

from waystation.presence.transport.port import Gone, GrpcStatus, StreamHandler

from . import frames
from .call import ANSWERED, ENDED, HALF_WINDOW_BYTES, NOT_NOW, PREFIX_BYTES, REMOTE_CLOSED, Call
from .frames import ConnectionFault, ErrorCode, StreamFault
from .hpack import Decoder, HpackError, TooManyHeadersError
from .limits import PING_STRIKES_MAX, Guard, Limits
from .link import OUR_PING, Link
from .request import MalformedRequestError, NotServedError, RequestReader, check_trailers

_FIXED_LENGTHS = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
_OF_THE_CONNECTION = frozenset((frames.SETTINGS, frames.PING, frames.GOAWAY))


class Connection(Link):
    __slots__ = (
        "_block",
        "_continuations",
        "_decoder",
        "_guard",
        "_held",
        "_message_bytes_max",
        "_needed",
        "_receive_window",
        "_requests",
        "_started",
        "_stream_window",
    )

    def __init__(
        self,
        handler: StreamHandler,
        paths: Collection[bytes],
        limits: Limits,
        peer: str,
        mono: float,
        *,
        on_output: Callable[[Link], None],
        on_failure: Callable[[Exception], None],
        on_hold: Callable[[Call], None] | None = None,
    ) -> None:
        super().__init__(
            handler,
            limits,
            peer,
            mono,
            on_output=on_output,
            on_failure=on_failure,
            on_hold=on_hold,
        )
        self._requests = RequestReader(paths)
        whole = frames.FRAME_BYTES_MAX - PREFIX_BYTES
        self._message_bytes_max = min(limits.message_bytes_max, whole)  # in one frame
        self._decoder: Decoder | None = None
        self._guard: Guard | None = None
        self._held: bytearray | None = None  # of a frame that is not complete
        self._needed = 0  # bytes below which `_held` has nothing for us
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, headers so far
        self._continuations = 0
        self._started = False  # the preface has come
        self._stream_window = frames.WINDOW_DEFAULT_BYTES  # what the peer gives a new stream
        self._receive_window = frames.WINDOW_DEFAULT_BYTES

    # --- input -----------------------------------------------------------------------------------

    def feed(self, data: bytes, mono: float) -> None:
        if self.closing:
            return
        self.mono = mono
        held = self._held
        if held is not None:
            held += data
            if len(held) < self._needed:
                return
            data = bytes(held)
            self._held = None
        try:
            at = self._read(data)
        except ConnectionFault as fault:
            self.go_away(fault.code, fault.reason, close=True)
            return
        if at < len(data):
            self._held = bytearray(memoryview(data)[at:])
        held_back = self.limits.receive_window_bytes - self.held_bytes - self._receive_window
        if held_back >= self.limits.receive_window_bytes // 2 and self._started:
            self._receive_window += held_back
            self.write(frames.window_update(0, held_back))

    def _read(self, data: bytes) -> int:
        """Every whole frame; where the rest begins."""
        at = 0
        end = len(data)
        if not self._started:
            at = len(frames.PREFACE)
            if data[:at] != frames.PREFACE[:end]:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
            if end < at:
                self._needed = at
                return 0
            self._start()
        unpack = frames.HEAD.unpack_from
        while end - at >= frames.HEADER_BYTES:
            at = self._messages(data, at, end)
            if self.closing:
                return end
            if end - at < frames.HEADER_BYTES:
                break
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 8 | low
            if length > frames.FRAME_BYTES_MAX:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too long")
            stop = at + frames.HEADER_BYTES + length
            if stop > end:
                self._needed = stop - at
                return at
            try:
                if kind == frames.DATA and self._block is None:
                    self._data(flags, stream_id & 0x7FFF_FFFF, data, stop - length, stop)
                else:
                    self._frame(kind, flags, stream_id & 0x7FFF_FFFF, data, stop - length, stop)
            except StreamFault as fault:
                self.reset(fault.stream_id, fault.code)
            if self.closing:
                return end
            at = stop
        self._needed = frames.HEADER_BYTES
        return at

    def _messages(self, data: bytes, at: int, end: int) -> int:
        """Nearly every frame is DATA with one whole message for a call that takes it: all of these
        that come in a row. Where the next other frame begins; what is unusual is left to `_data`.
        """
        if self._block is not None:
            return at
        unpack, message = frames.MESSAGE_HEAD.unpack_from, self.handler.message
        size_max, head_bytes = self._message_bytes_max, frames.MESSAGE_HEAD.size
        room = self._receive_window  # nobody else counts it meanwhile
        while end - at >= head_bytes:
            head, flags, stream_id, compressed, size = unpack(data, at)
            length = size + PREFIX_BYTES
            begin = at + head_bytes
            stop = begin + size
            call = self.calls.get(stream_id)  # nobody is there once the connection is closing
            if (
                head != length << 8  # not DATA, or not one message and no more
                or (flags or compressed or stop > end)
                or size > size_max
                or length > room
                or call is None
                or call.state & NOT_NOW
                or (window := call.receive_window - length) < 0
            ):
                break
            room -= length
            call.receive_window = window
            try:
                message(call, data[begin:stop])
            except Exception as exc:  # the broker's own mistake must not end the other streams
                self.failed(call, exc)
            if window <= HALF_WINDOW_BYTES and stream_id in self.calls:
                call.open_window()
            at = stop
        self._receive_window = room
        return at

    def _start(self) -> None:
        self._started = True
        limits = self.limits
        self.write(
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
        if stream_id > self.last_id or stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on a stream that is not open")
        self._receive_window -= length
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        call = self.calls.get(stream_id)
        if call is None:
            return  # rule 3
        if call.state & REMOTE_CLOSED:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end")
        call.receive_window -= length
        if call.receive_window < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        if flags & frames.PADDED:
            at, stop = _unpadded(data, at, stop)
        if at < stop:
            call.receive(data, at, stop)
        elif not flags & frames.END_STREAM:
            self._budget().idle_frame(self.mono)
        if flags & frames.END_STREAM:
            call.remote_closed()
        elif call.receive_window <= HALF_WINDOW_BYTES and stream_id in self.calls:
            call.open_window()

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
            decoder = Decoder(list_bytes_max=self.limits.header_list_bytes_max)
            self._decoder = decoder
        try:
            fields = decoder.decode(block)
        except HpackError as exc:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(exc)) from None
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
        call.remote_closed()

    def _open(self, stream_id: int, flags: int, fields: list[tuple[bytes, bytes]] | None) -> None:
        if stream_id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream of the server's")
        if stream_id <= self.last_id:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "the stream was closed before")
        if self.going:  # section 6.8: streams above the last one we named are not looked at
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "going away")
        self.last_id = stream_id
        if len(self.calls) >= self.limits.streams_max:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "streams_max")
        call = Call(self, stream_id, self._stream_window, None)
        try:
            request = None if fields is None else self._requests.read(fields)
        except NotServedError as exc:
            self.calls[stream_id] = call
            call.state |= REMOTE_CLOSED if flags & frames.END_STREAM else 0
            call.refuse(GrpcStatus.UNIMPLEMENTED, str(exc))
            return
        self.calls[stream_id] = call
        if flags & frames.END_STREAM:
            call.state |= REMOTE_CLOSED
        if request is None:
            call.refuse(GrpcStatus.RESOURCE_EXHAUSTED, "metadata too large")
            return
        call.authorization = request.authorization
        try:
            self.handler.opened(call)
        except Exception as exc:  # the broker's own mistake must not end the other streams
            self.failed(call, exc)
        if flags & frames.END_STREAM:
            call.remote_closed()

    def _rst_stream(self, stream_id: int) -> None:
        if stream_id > self.last_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        call = self.calls.get(stream_id)
        if call is None:
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
        self.write(frames.SETTINGS_ACK)
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
        if stream_id > self.last_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
        call = self.calls.get(stream_id)
        if call is None:
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
        self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
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


def _unpadded(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Sections 6.1 and 6.2: the first byte says how many at the end mean nothing."""
    if at == stop:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no room for the padding's length")
    end = stop - data[at]
    if end < at + 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return at + 1, end
