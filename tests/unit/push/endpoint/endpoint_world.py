"""An endpoint node on the memory store, with a relay that records and answers as told."""

import asyncio
import inspect
import json
from typing import Any, Literal

import msgspec

from tests.unit.push.vapid_tokens import AUDIENCE, AppServer
from waystation.base.clock import ManualClock
from waystation.base.errors import WaystationError
from waystation.net.http1.message import Request, Response
from waystation.push.auth_keys import AuthKeys
from waystation.push.endpoint.bridge_router import BridgeRouter, Bridges
from waystation.push.endpoint.intake import Intake
from waystation.push.endpoint.matrix import MatrixGateway
from waystation.push.endpoint.message_status import MessageStatuses
from waystation.push.endpoint.observer import Observer
from waystation.push.endpoint.rate_limits import RateLimits
from waystation.push.endpoint.registration import Registration
from waystation.push.endpoint.router import Router
from waystation.push.endpoint.server import EndpointServer
from waystation.push.endpoint.simplepush import SimplePushIntake
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.model import ChannelId, Notification, Uaid, Update, UserAgent
from waystation.push.settings import Endpoint
from waystation.push.store import PushStore
from waystation.push.token import Keys, MessageIds
from waystation.push.vapid import Vapid
from waystation.push.wire.relay import Answer
from waystation.storage.memory.push import MemoryPushStore

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
UAID = Uaid(bytes.fromhex("0f1e2d3c4b5a469788796a5b4c3d2e1f"))
CHID = ChannelId(bytes.fromhex("c0ffee0012344abc8def0123456789ab"))
NODE = "http://10.0.0.7:8081"
OTHER_NODE = "http://10.0.0.8:8081"


class RecordingRelay:
    """Answers what it was told to, and runs `during` while a push is under way."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, Uaid, Any]] = []
        self.checked: list[tuple[str, Uaid]] = []
        self.push_answer = Answer.TAKEN
        self.check_answer = Answer.TAKEN
        self.during: Any = None

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        self.pushed.append((node_id, uaid, notification))
        if self.during is not None:
            await self.during()
        return self.push_answer

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        self.checked.append((node_id, uaid))
        return self.check_answer

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer:
        return Answer.ABSENT


PUSH_STORE_CALLS = frozenset(name for name in vars(PushStore) if not name.startswith("_"))


class FailingStore(MemoryPushStore):
    """Notes its calls, and raises what it was told to when one of its methods is called."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.failures: dict[str, WaystationError] = {}
        self.calls: list[str] = []  # of the contract

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        failures = own.get("failures", {})
        if name in PUSH_STORE_CALLS:
            own["calls"].append(name)
        if name in failures:

            async def fail(*_args: Any, **_kwargs: Any) -> None:
                raise failures[name]

            return fail
        return super().__getattribute__(name)


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def errno(self) -> int | None:
        return self.json["errno"] if self.body else None

    @property
    def message(self) -> str:
        return self.json["message"]


class World:
    def __init__(
        self,
        settings: Endpoint | None = None,
        *,
        dialect: Any = "p",
        tracked: frozenset[bytes] = frozenset(),
        workers: int = 1,
        observer: Observer | None = None,
        bridges: Bridges | None = None,
        auth_keys: str = "[first, second]",
        channels_max: int = 10,
        sort_keys: Literal["unique", "autopush"] = "unique",
    ) -> None:
        self.clock = ManualClock()
        self.settings = msgspec.structs.replace(settings or Endpoint(), url=AUDIENCE)
        self.store = FailingStore(self.clock)
        self.relay = RecordingRelay()
        self.keys = Keys.parse(KEY, self.clock)
        self.ids = MessageIds(self.keys, self.clock, sort_keys=sort_keys)
        self.vapid = Vapid(AUDIENCE)
        self.sender = AppServer()
        self.bugs: list[BaseException] = []
        loop = asyncio.get_running_loop()
        self.milestones = MilestoneWriter(self.store, self.clock, loop, interval_s=3600)
        router = Router(self.store, self.relay, self.milestones, observer, ids=self.ids)
        self.bridges: Bridges = {} if bridges is None else bridges
        self.intake = Intake(
            self.settings,
            store=self.store,
            router=router,
            bridges=BridgeRouter(
                self.bridges,
                store=self.store,
                milestones=self.milestones,
                clock=self.clock,
                observer=observer,
            ),
            keys=self.keys,
            ids=self.ids,
            vapid=self.vapid,
            limits=RateLimits(self.settings, workers=workers),
            milestones=self.milestones,
            clock=self.clock,
            tracked=tracked,
            observer=observer,
        )
        auth = AuthKeys.parse(auth_keys)
        assert auth is not None
        self.server = EndpointServer(
            self.settings,
            intake=self.intake,
            status=MessageStatuses(self.store, self.ids, self.vapid, self.clock),
            simplepush=None
            if dialect == "off"
            else SimplePushIntake(
                dialect,
                intake=self.intake,
                router=router,
                keys=self.keys,
                clock=self.clock,
                observer=observer,
            ),
            matrix=MatrixGateway(self.settings, self.intake),
            registration=Registration(
                self.settings,
                bridges=self.bridges,
                store=self.store,
                keys=self.keys,
                auth_keys=auth,
                channels_max=channels_max,
                clock=self.clock,
                workers=workers,
                observer=observer,
            ),
            on_bug=self.bugs.append,
        )

    @property
    def now_s(self) -> int:
        return self.clock.now_ms() // 1000

    async def subscribe(
        self,
        *,
        node_id: str | None = None,
        connected_at_ms: int = 1000,
        uaid: Uaid = UAID,
        router_type: str = "webpush",
    ) -> None:
        user_agent = UserAgent(
            uaid=uaid,
            connected_at_ms=connected_at_ms,
            node_id=node_id,
            router_type=router_type,
        )
        assert await self.store.claim_route(user_agent)
        assert await self.store.add_channel(uaid, CHID, channels_max=10)

    def path(self, version: str = "v1", key_hash: bytes | None = None) -> str:
        return f"/wpush/{version}/{self.keys.endpoint_token(UAID, CHID, key_hash)}"

    def signed(self, **claims: Any) -> dict[str, Any]:
        return {"authorization": self.sender.authorization(self.now_s, **claims)}

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: bytes | str) -> Reply:
        named = {
            name.replace("_", "-").lower().encode(): v.encode() if isinstance(v, str) else v
            for name, v in headers.items()
        }
        target, _, query = path.partition("?")
        request = Request(method.encode(), target.encode(), named, query.encode(), body)
        if len(body) > self.server.body_limit(request):
            request.body, request.oversize = b"", True
        try:
            answer = self.server.handle(request)
            response = await answer if inspect.iscoroutine(answer) else answer
        except Exception as error:
            response = self.server.failure(request, error)
        assert isinstance(response, Response)
        status_line, *lines = response.head.decode().rstrip("\r\n").split("\r\n")
        assert int(status_line.split()[1]) == response.status
        return Reply(response.status, dict(line.split(": ", 1) for line in lines), response.body)

    async def post(self, path: str | None = None, body: bytes = b"", **headers: Any) -> Reply:
        headers.setdefault("ttl", "300")
        if body:
            headers.setdefault("content_encoding", "aes128gcm")
        present = {name: value for name, value in headers.items() if value is not None}
        return await self.ask("POST", path or self.path(), body, **present)

    async def stored(self, uaid: Uaid = UAID) -> list[Notification]:
        rows = await self.store.fetch(uaid, now_ms=self.clock.now_ms(), after=None, limit=1000)
        return list(rows)

    async def node_of(self, uaid: Uaid = UAID) -> str | None:
        user_agent = await self.store.get_user_agent(uaid)
        return None if user_agent is None else user_agent.node_id
