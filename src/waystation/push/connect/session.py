"""Session of one user agent: answers its messages, decides when to read storage and when to close.

Rule 1: the first message is a hello, within `open_handshake_timeout_s`. A second hello, an
        unreadable message or a bad channel id closes the connection.
Rule 2: a known uaid is claimed before the hello reply; an unknown one is replaced by a new one.
        A new user agent is stored with its first subscription, not before.
Rule 3: the session is registered under its uaid before the claim is written, so that no endpoint
        node clears the route of a user agent that is connecting. Until the hello reply,
        direct notifications are refused.
Rule 4: commands run one at a time; while `busy`, the driver queues further ones.
Rule 5: every ping tick sends changed broadcasts, or a Ping whose Pong must come in time. It also
        checks the route: one that was cleared because this node answered late is set again, and
        storage is read. The same happens when an endpoint node stopped waiting for an answer.
Rule 6: notifications that are unacked when the session ends are saved.
Rule 7: a user agent with more than `msg_limit` stored notifications gets those up to the limit and
        is reset with their last ack. One row beyond the limit is read in advance, so that closing
        right after that ack does not avoid the reset.
Rule 8: a user agent on the table of an earlier month is moved first; see `month_switch`.

The core has no clock: `now_ms` and `mono` are passed with each input, and `wake_at` is the time to
call `woken`. It moves to an earlier time only with `Greeted`, in `ponged` and in `woken`.
"""

from collections.abc import Sequence

from waystation.base.ids import is_canonical_dashed, parse_uuid, simple
from waystation.push.connect import broadcasts as _broadcasts
from waystation.push.connect import effects as do
from waystation.push.connect import session_states as states
from waystation.push.connect.effects import Direct, Effect
from waystation.push.connect.limits import NO_PING_YET, ping_allowed
from waystation.push.connect.month_switch import MonthSwitch, Stage
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.session_states import ALREADY_CONNECTED, INTERNAL, NORMAL, UNSUPPORTED
from waystation.push.connect.simplepush import UpdateWindow
from waystation.push.connect.window import DeliveryWindow
from waystation.push.errors import BadFrameError
from waystation.push.model import (
    RECORD_VERSION,
    SIMPLEPUSH,
    WEBPUSH,
    ChannelId,
    Notification,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.wire import client_messages as wire

UNREGISTER_MANUAL = 200
CODE_MAX = 65_535  # of an unregister; the limit of the event's column
NACK_CODES = frozenset({301, 302, 303})


class Session:
    """The protocol state of one connection; kept small, because a worker holds very many."""

    __slots__ = (
        "_command",
        "_context",
        "_hello_broadcasts",
        "_last_ping",
        "_pong_due",
        "_record",
        "_reset_after_pass",
        "_subscriptions",
        "_switch",
        "_too_many",
        "_window",
        "connected_at_ms",
        "direct_acked",
        "greeted",
        "handed_back",
        "known",
        "nacks",
        "registers",
        "reset",
        "state",
        "stored_acked",
        "stored_retrieved",
        "uaid",
        "unregisters",
        "wake_at",
    )

    def __init__(self, context: SessionContext, *, mono: float) -> None:
        self._context = context
        self.state = states.UNIDENTIFIED
        self.uaid: Uaid | None = None
        self.connected_at_ms = 0
        self.wake_at = mono + context.settings.open_handshake_timeout_s
        self._window: DeliveryWindow | UpdateWindow = _NO_WINDOW
        self._record: UserAgent | None = None  # not stored yet, or being claimed
        self._command: wire.Register | wire.Unregister | wire.Hello | None = None
        self._hello_broadcasts: dict[str, str] | None = None
        self._subscriptions = _broadcasts.NONE
        self._switch: MonthSwitch | None = None
        self._last_ping = NO_PING_YET
        self._pong_due = self.greeted = self.known = self.reset = self._reset_after_pass = False
        self._too_many = False  # in storage; the last of what was sent is being acked
        self.direct_acked = self.stored_retrieved = self.stored_acked = self.handed_back = 0
        self.nacks = self.registers = self.unregisters = 0

    @property
    def busy(self) -> bool:
        """A command is in progress; the driver queues further messages meanwhile."""
        if self._command is not None or self.state is states.DROPPING:
            return True
        return self._switch is not None and self._moving

    @property
    def simple(self) -> bool:
        return isinstance(self._window, UpdateWindow)

    # The peer

    def received(self, text: bytes, *, now_ms: int, mono: float) -> list[Effect]:
        if self.state is states.CLOSED:
            return []
        try:
            message = wire.decode_client(text)
        except BadFrameError as exc:
            if self.state is states.IDENTIFIED and self._context.settings.ws_error_replies:
                return [self._error_reply(wire.message_type(text), str(exc))]
            return self._close(INTERNAL, "Json")
        if self.state is states.UNIDENTIFIED:
            if not isinstance(message, wire.Hello):
                return self._close(INTERNAL, "SM")
            return self._hello(message, now_ms=now_ms, mono=mono)
        match message:
            case wire.Ack():
                return self._window.acked(message.updates) + self._look()
            case wire.Register() | wire.Unregister() if self._switch and self._draining:
                return [] if self._switch.hold(text) else self._close(INTERNAL, "SM")
            case wire.Ping():
                return self._ping(mono)
            case wire.Register():
                return self._register(message)
            case wire.Unregister():
                return self._unregister(message)
            case wire.Nack():
                self.nacks += 1
                code = message.code if message.code in NACK_CODES else 0
                return [do.Nacked(str(message.version), code or 0)]
            case wire.BroadcastSubscribe():
                return self._subscribe_broadcasts(message)
            case wire.Hello():
                return self._refuse("hello", "duplicate hello")

    def received_binary(self) -> list[Effect]:
        return self._close(UNSUPPORTED, "UnsupportedMessage")

    def ponged(self, *, mono: float) -> None:
        if self._pong_due:
            self._pong_due = False
            self.wake_at = mono + self._context.settings.auto_ping_interval_s

    def woken(self, *, mono: float) -> list[Effect]:
        if self.state is states.CLOSED or mono < self.wake_at:
            return []
        if self.state < states.IDENTIFIED:
            return self._close(INTERNAL, "HandshakeTimeout")
        if self._pong_due:
            return self._close(INTERNAL, "PongTimeout")
        settings = self._context.settings
        self._subscriptions, frame = self._context.broadcasts.frame(self._subscriptions)
        if frame is not None:
            self.wake_at = mono + settings.auto_ping_interval_s
            return [do.SendFrame(frame), *self._confirm()]
        self._pong_due = True
        self.wake_at = mono + settings.auto_ping_timeout_s
        return [do.SendPing(), *self._confirm()]

    def confirmed(self, record: UserAgent | None) -> list[Effect]:
        if self.state is not states.IDENTIFIED:
            return []
        if record is None or record.connected_at_ms > self.connected_at_ms:
            return self._close(INTERNAL, "Ghosted")  # removed, or connected elsewhere
        return [do.Reclaim(self._own_record(record))] if record.node_id is None else []

    def reclaimed(self, applied: bool) -> list[Effect]:
        if self.state is not states.IDENTIFIED or not applied:
            return []
        self._window.check()
        return self._look()

    def acked_at_last(self, text: bytes) -> list[Effect]:
        """A message still queued when the connection ended: an ack in it counts."""
        try:
            message = wire.decode_client(text)
        except BadFrameError:
            return []
        return self._window.acked(message.updates) if isinstance(message, wire.Ack) else []

    def closed(self) -> list[Effect]:
        """The connection is closed, by either side."""
        self.state = states.CLOSED
        window, self._window = self._window, _NO_UPDATES if self.simple else _NO_WINDOW
        self.direct_acked, self.stored_acked = window.direct_acked, window.stored_acked
        self.stored_retrieved = window.stored_sent
        self.handed_back = len(window.unacked_directs)
        return [do.SaveUnacked(window.unacked_directs)] if self.handed_back else []

    # The relay

    def direct(self, notification: Notification | Update) -> Direct:
        if self.state is not states.IDENTIFIED:
            return Direct.REFUSED  # it is stored instead, and read after the hello reply
        return self._window.direct(notification)

    def congested(self) -> list[Effect]:
        """The driver refused a direct notification: send buffer or journal is full."""
        if self.state is states.IDENTIFIED:
            self._window.refuse()
        return self._look()  # with nothing unacked, no ack would trigger it

    def check_stored(self) -> tuple[bool, list[Effect]]:
        """Whether storage is read now; otherwise it is read later."""
        if self.state is not states.IDENTIFIED:
            return False, []
        return self._window.check(), self._look()

    def push_abandoned(self, taken: Notification | Update | None) -> list[Effect]:
        """An endpoint node stopped waiting for this node: it stores, and clears the route."""
        if self.state is not states.IDENTIFIED:
            return []
        if taken is not None:
            self._window.mark_also_stored(taken)
        self._window.check()
        return self._look() + self._confirm()

    def _confirm(self) -> list[Effect]:
        stored = self.state is states.IDENTIFIED and self._record is None
        return [do.Confirm()] if stored else []

    # Hello

    def _hello(self, hello: wire.Hello, *, now_ms: int, mono: float) -> list[Effect]:
        for channel_id in hello.channelIDs or ():
            if parse_uuid(channel_id) is None:
                return self._close(INTERNAL, "SM")
        settings = self._context.settings
        if not hello.use_webpush and settings.simplepush != "off":
            self._window = UpdateWindow()
        self._hello_broadcasts = hello.broadcasts
        self.connected_at_ms = now_ms
        claimed_uaid = parse_uuid(hello.uaid) if hello.uaid else None
        if claimed_uaid is None:
            return self._greet_newcomer(mono)
        self.state = states.GREETING
        self._command = hello
        return [do.LookUp(Uaid(claimed_uaid))]

    def looked_up(self, record: UserAgent | None, *, now_ms: int, mono: float) -> list[Effect]:
        if self.state is states.CLOSED:
            return []
        self._command = None
        if record is None or record.router_type not in (WEBPUSH, SIMPLEPUSH):
            self.reset = True
            return self._greet_newcomer(mono)
        if record.connected_at_ms > now_ms:
            return self._close(INTERNAL, ALREADY_CONNECTED)  # newer elsewhere, or a wrong clock
        self.uaid = record.uaid
        self.connected_at_ms = now_ms
        self._record = record
        self._reset_after_pass = (record.record_version or 0) < RECORD_VERSION
        self._command = _CLAIMING
        return [do.AddToRegistry(record.uaid), do.Claim(self._own_record(record))]

    def claimed(self, applied: bool, *, mono: float) -> list[Effect]:
        if self.state is states.CLOSED:
            return []
        self._command = None
        before, self._record = self._record, None
        assert before is not None
        assert self.uaid is not None
        if not applied:
            return self._close(INTERNAL, ALREADY_CONNECTED)
        self.known = True
        effects = self._greet(self.uaid, mono)
        if before.node_id is not None and before.node_id != self._context.node_id:
            effects.append(do.Displace(before.node_id, before.connected_at_ms))
        self._switch = self._switch_of(before)
        self._window.check()
        return effects + self._look()

    def _greet_newcomer(self, mono: float) -> list[Effect]:
        uaid = self._context.new_uaid()
        self.uaid = uaid
        self._record = self._own_record(UserAgent(uaid=uaid, connected_at_ms=0))
        return [do.AddToRegistry(uaid), *self._greet(uaid, mono)]

    def _own_record(self, record: UserAgent) -> UserAgent:
        return UserAgent(
            uaid=record.uaid,
            connected_at_ms=self.connected_at_ms,
            router_type=SIMPLEPUSH if self.simple else WEBPUSH,
            node_id=self._context.node_id,
            # An old record stays old until it is reset, even if the connection breaks before.
            record_version=record.record_version,
            current_timestamp_ms=record.current_timestamp_ms,
            row_version=record.row_version,
        )

    def _greet(self, uaid: Uaid, mono: float) -> list[Effect]:
        settings = self._context.settings
        self.state = states.IDENTIFIED
        self.greeted = True
        self.wake_at = mono + settings.auto_ping_interval_s
        if not self.simple:
            self._window = self._context.new_window()
        wanted, self._hello_broadcasts = self._hello_broadcasts or {}, None
        self._subscriptions, delta = self._context.broadcasts.subscribe(
            _broadcasts.NONE,
            {} if self.simple else wanted,  # SimplePush's hello reply has no broadcasts
        )
        reply = wire.hello_reply(simple(uaid), delta, webpush=not self.simple)
        return [do.Greeted(new=not self.known), do.Send(reply)]

    # Subscriptions

    def _register(self, message: wire.Register) -> list[Effect]:
        channel_id = message.channelID
        if channel_id is None or not is_canonical_dashed(channel_id):
            return self._refuse("register", "Invalid channelID")
        if message.key is not None and wire.public_key(message.key) is None:
            # Not a curve point: refuse now, not at the first POST.
            reply = wire.register_reply(channel_id, 400, "Failed to generate endpoint")
            return [do.Send(reply)]
        raw = parse_uuid(channel_id)
        assert raw is not None
        self._command = message
        return [do.Subscribe(ChannelId(raw), self._record)]

    def subscribed(self, applied: bool) -> list[Effect]:
        """Not applied: `max_channels_per_uaid` is reached."""
        message = self._command
        self._command = None
        if self.state is not states.IDENTIFIED:
            return []
        assert isinstance(message, wire.Register)
        assert message.channelID is not None
        assert self.uaid is not None
        if not applied:
            return [do.Send(wire.register_reply(message.channelID, 500, ""))]
        self._record = None  # stored now
        self.registers += 1
        raw = parse_uuid(message.channelID)
        assert raw is not None
        key = wire.public_key(message.key) if message.key is not None else None
        endpoint = self._context.endpoint_for(self.uaid, ChannelId(raw), key, self.simple)
        return [do.Send(wire.register_reply(message.channelID, 200, endpoint)), *self._look()]

    def _unregister(self, message: wire.Unregister) -> list[Effect]:
        raw = parse_uuid(message.channelID) if message.channelID is not None else None
        if raw is None:
            return self._refuse("unregister", "Invalid channelID")
        self._command = message
        code = UNREGISTER_MANUAL if message.code is None else message.code
        return [do.Unsubscribe(ChannelId(raw), code if 0 <= code <= CODE_MAX else 0)]

    def unsubscribed(self) -> list[Effect]:
        message = self._command
        self._command = None
        if self.state is not states.IDENTIFIED:
            return []
        assert isinstance(message, wire.Unregister)
        assert message.channelID is not None
        raw = parse_uuid(message.channelID)
        assert raw is not None
        self.unregisters += 1
        effects: list[Effect] = [do.Send(wire.unregister_reply(message.channelID, 200))]
        return effects + self._window.drop_channel(ChannelId(raw)) + self._look()

    # Pings and broadcasts

    def _ping(self, mono: float) -> list[Effect]:
        settings = self._context.settings
        if not ping_allowed(self._last_ping, mono, min_interval_s=settings.min_ping_interval_s):
            return self._close(settings.excessive_ping_code, "SM")
        self._last_ping = mono
        return [do.Send(wire.PING)]

    def _subscribe_broadcasts(self, message: wire.BroadcastSubscribe) -> list[Effect]:
        self._subscriptions, delta = self._context.broadcasts.subscribe(
            self._subscriptions, message.broadcasts
        )
        return [do.Send(wire.broadcast_message(delta))] if delta else []

    # Storage

    def _look(self) -> list[Effect]:
        if self.state is not states.IDENTIFIED or (self._switch is not None and self._moving):
            return []
        window, settings = self._window, self._context.settings
        if not isinstance(window, DeliveryWindow):
            # SimplePush sends all versions in one message; there is one row per channel.
            return window.look(settings.max_channels_per_uaid)
        if self._too_many and not window.unacked:
            return self._drop("too_many_messages")
        batch, left = settings.stored_batch_max, settings.msg_limit - window.sent_in_pass
        if settings.msg_limit and batch <= left < 2 * batch:
            return window.look(left + 1)  # one beyond the limit tells that there are too many
        return window.look(batch)

    def fetched(self, rows: Sequence[Notification]) -> list[Effect]:
        window = self._window
        if self.state is not states.IDENTIFIED or not isinstance(window, DeliveryWindow):
            return []
        limit, batch = self._context.settings.msg_limit, self._context.settings.stored_batch_max
        if limit and window.sent_in_pass + len(rows) > limit:
            if window.sent_in_pass + min(len(rows), batch) > limit:
                return self._drop("too_many_messages")
            self._too_many = True
        effects = window.read(rows[:batch])
        if window.pass_over and self._reset_after_pass:
            return self._drop("old_record_version")
        through = window.pass_over and self._draining
        return effects + (self._read_through() if through else self._look())

    def fetched_updates(self, rows: Sequence[Update]) -> list[Effect]:
        window = self._window
        if self.state is not states.IDENTIFIED or not isinstance(window, UpdateWindow):
            return []
        return window.read(rows) + (self._read_through() if self._draining else self._look())

    def forgotten(self, rows: int) -> list[Effect]:
        if self.state is not states.IDENTIFIED:
            return []
        self._window.forgotten(rows)
        return self._look()

    def _drop(self, reason: str) -> list[Effect]:
        self.reset = True
        self.state = states.DROPPING
        return [do.DropUserAgent(reason)]

    def dropped(self) -> list[Effect]:
        return self._close(NORMAL, "SM")

    # The switch to a new month; see `month_switch`

    @property
    def _draining(self) -> bool:
        return self._switch is not None and self._switch.stage is Stage.DRAINING

    @property
    def _moving(self) -> bool:
        return self._switch is not None and self._switch.stage is Stage.MOVING

    def _switch_of(self, record: UserAgent) -> MonthSwitch | None:
        limit = self._context.settings.max_commands
        return MonthSwitch(held_max=limit) if record.behind else None

    def _read_through(self) -> list[Effect]:
        """All rows of the old month have been read."""
        assert self._switch is not None
        if self._window.unacked or self.busy:
            self._window.refuse()  # storage is read again once nothing is unacked
            return []
        self._switch.move()
        return [do.SwitchMonth(self.connected_at_ms)]

    def switched(self, applied: bool) -> list[Effect]:
        """Not applied: the user agent has connected again, and that connection moves it."""
        switch, self._switch = self._switch, None
        if self.state is not states.IDENTIFIED or switch is None:
            return []
        self._window.check()
        return [do.ReceiveHeld(switch.release()), *self._look()]

    def _switch_later(self) -> list[Effect]:
        assert self._switch is not None
        self._switch.postpone()
        later = do.SwitchLater(self._context.switch_after_s())
        return [do.ReceiveHeld(self._switch.release()), later, *self._look()]

    def switch_due(self) -> list[Effect]:
        if self.state is not states.IDENTIFIED or self._switch is None:
            return []
        self._switch.drain()
        self._window.check()
        return self._look()

    # Endings

    def failed(self, effect: Effect) -> list[Effect]:
        """The store failed. Commands answer with an error and a month switch is postponed; any
        other failure closes the connection, and the next hello continues from storage."""
        if isinstance(effect, do.Confirm | do.Reclaim | do.AdvanceCursor):
            return []  # the next ping tick, or the next pass, tries again
        command, self._command = self._command, None
        if self.state is states.CLOSED:
            return []
        match effect, command:
            case do.Subscribe(), wire.Register(channelID=str(channel_id)):
                return [do.Send(wire.register_reply(channel_id, 500, "")), *self._look()]
            case do.Unsubscribe(), wire.Unregister(channelID=str(channel_id)):
                return [do.Send(wire.unregister_reply(channel_id, 500)), *self._look()]
            case do.SwitchMonth(), _ if self.state is states.IDENTIFIED:
                return self._switch_later()
            case _:
                return self._close(INTERNAL, "Store")

    def ended(self, code: int, reason: str) -> list[Effect]:
        """The node is stopping, or the same user agent has connected again."""
        return self._close(code, reason)

    def _refuse(self, kind: str, reason: str) -> list[Effect]:
        if not self._context.settings.ws_error_replies:
            return self._close(INTERNAL, "SM")
        effects: list[Effect] = [self._error_reply(kind, reason)]
        return effects + (self._close(INTERNAL, "SM") if kind == "hello" else [])

    def _error_reply(self, kind: str, reason: str) -> do.Send:
        return do.Send(wire.error_reply(kind, 401, reason, self._context.more_info_url))

    def _close(self, code: int, reason: str) -> list[Effect]:
        if self.state is states.CLOSED:
            return []
        self.state = states.CLOSED  # unacked notifications are saved once the socket is closed
        return [do.Close(code, reason)]


_CLAIMING = wire.Hello()
_NO_WINDOW, _NO_UPDATES = DeliveryWindow(unacked_max=1), UpdateWindow()
