"""Objects that the roles of one push worker share."""

import socket
from collections.abc import Mapping

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.app.data_dir import DataDir
from waystation.app.descriptor_limits import Shares
from waystation.app.keys import Secrets
from waystation.app.settings import Settings
from waystation.base.clock import Clock
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop
from waystation.ops.health import Health
from waystation.push.endpoint.relay_client import RelayClient
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.node_names import NodeNames
from waystation.push.store import PushStore
from waystation.push.token import Keys
from waystation.telemetry.events import EventSink
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics


class PushContext(msgspec.Struct, frozen=True, kw_only=True):
    """Settled settings, and the objects built from them before a role starts."""

    settings: Settings
    secrets: Secrets
    data: DataDir
    index: int
    count: int
    node_id: str
    shares: Shares
    clock: Clock
    net: NetLoop
    tasks: Tasks
    store: PushStore
    keys: Keys
    relay: RelayClient
    milestones: MilestoneWriter
    events: EventSink
    hashes: EventHashes
    names: NodeNames
    metrics: Metrics
    health: Health
    log: FilteringBoundLogger
    listening_sockets: Mapping[str, socket.socket]  # opened early, by setting
