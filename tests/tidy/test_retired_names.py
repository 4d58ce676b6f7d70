"""No module, class, setting, role or command has a name that was retired for a plainer one."""

import ast
from pathlib import Path

import pytest

from tests.tidy.repository import SRC
from waystation.app.roles import RETIRED_ROLES, ROLES
from waystation.app.settings import RETIRED, Settings
from waystation.base.settings import describe
from waystation.cli.main import COMMANDS

QUEUE = SRC / "queue"
# Module or package below queue/ -> what it is named instead.
MODULES = {
    "active": "active_queues",
    "answers": "edge/answer_order",
    "asking": "cluster/peer_requests",
    "bars": "server/refused_ids",
    "controlling": "cluster/controller_driver",
    "drafts": "server/uncommitted_queues",
    "duties": "cluster/effects",
    "forwarded": "edge/forwarded_commands",
    "guest": "edge/client_session",
    "keeper": "cluster/replication",
    "keeping": "cluster/replication_driver",
    "lanes": "server/forwarded_order",
    "link_line": "cluster/link_connection",
    "member": "cluster/slot_lease",
    "moderating": "cluster/moderation_routing",
    "notifying": "server/notifiers",
    "outlet": "edge/effects",
    "own_links": "edge/dedicated_links",
    "passage": "edge/command_routing",
    "picture": "cluster/slot_map_text",
    "proxy": "edge",
    "questions": "server/queue_info",
    "referring": "edge/ref_updates",
    "visitor": "edge/client_connection",
    "wishes": "cluster/map_changes",
}
# Class of queue/ or of the roles that run it -> its name now, and the module below src/waystation.
CLASSES = {
    "Asking": "queue/cluster/peer_requests.PeerRequests",
    "Bars": "queue/server/refused_ids.RefusedIds",
    "Controlling": "queue/cluster/controller_driver.ControllerDriver",
    "Creating": "queue/edge/creation.Creations",
    "Drafts": "queue/server/uncommitted_queues.UncommittedQueues",
    "ForwardedDesk": "queue/edge/forwarded_commands.ForwardedCommands",
    "Guest": "queue/edge/client_session.ClientSession",
    "HangUpError": "queue/server/dispatch.DisconnectError",
    "Hears": "queue/edge/upstreams.LinkEvents",
    "Keeper": "queue/cluster/replication.Replication",
    "Keeping": "queue/cluster/replication_driver.ReplicationDriver",
    "Lanes": "queue/server/forwarded_order.ForwardedOrder",
    "LinkLine": "queue/cluster/link_connection.LinkConnection",
    "Moderating": "queue/control.ModerationCommands",
    "Notifying": "queue/server/notifiers.Notifiers",
    "Outlet": "queue/edge/effects.Effects",
    "OwnLinks": "queue/edge/dedicated_links.DedicatedLinks",
    "Passage": "queue/edge/command_routing.CommandRouting",
    "Proxy": "queue/edge/settings.Edge",
    "ProxyMetrics": "app/wiring/edge_metrics.EdgeMetrics",
    "ProxyWorker": "app/wiring/edge_worker.EdgeWorker",
    "Referring": "queue/edge/ref_updates.RefUpdates",
    "Visitor": "queue/edge/client_connection.EdgeClient",
    "Ways": "queue/edge/requests.ServerMap",
    "Wish": "queue/cluster/map_changes.MapChange",
    "Works": "queue/server/server.BlockHandler",
}

# Module below src/waystation -> where its content is now.
MOVED_MODULES = {
    "app/announcement": "app/ready_report",
    "app/background": "app/wiring/worker_tasks",
    "app/bridges_part": "app/wiring/bridges",
    "app/compose": "app/wiring/compose",
    "app/connect_part": "app/wiring/connect_role",
    "app/control": "app/supervisor_protocol",
    "app/descriptors": "app/descriptor_limits",
    "app/endpoint_part": "app/wiring/endpoint_role",
    "app/examination": "ops/doctor",
    "app/machines": "app/machine_watch",
    "app/overview": "ops/status",
    "app/parts": "app/wiring/push_context",
    "app/process": "ops/process_status",
    "app/queue_cluster": "app/wiring/queue_cluster_member",
    "app/queue_page": "ops/queue_information_page",
    "app/queue_part": "app/wiring/queue_service",
    "app/quick_start": "app/structlog_without_rich",
    "app/restarts": "app/restart_backoff",
    "app/serving": "app/serve",
    "app/storage_end": "app/wiring/queue_cluster_links",
    "app/telemetry_part": "app/wiring/process_telemetry",
    "base/heap": "base/memory_trim",
    "base/origins": "base/address_limit",
    "base/unreadable": "base/decode_errors",
    "base/wheel": "base/timer_wheel",
    "cli/cluster_work": "cli/cluster_member",
    "cli/party_screen": "cli/party_display",
    "cli/queue_words": "cli/queue_output",
    "cli/queue_work": "cli/queue_runner",
    "cli/running": "cli/running_server",
    "client/conversation": "client/push_session",
    "push/connect/alarm": "push/connect/session_timers",
    "push/connect/client": "push/connect/user_agent_connection",
    "push/connect/cursor": "push/connect/cursor_window",
    "push/connect/families": "push/connect/user_agent_header",
    "push/connect/handback": "push/connect/unacked_saver",
    "push/connect/rotation": "push/connect/month_switch",
    "push/connect/states": "push/connect/session_states",
    "push/connect/terms": "push/connect/session_context",
    "push/endpoint/bridges/absent": "push/endpoint/bridges/unconfigured",
    "push/endpoint/limits": "push/endpoint/rate_limits",
    "push/endpoint/status": "push/endpoint/message_status",
    "push/link_doors": "push/link_handshake",
    "push/milestones": "push/milestone_writer",
    "push/wire/client": "push/wire/client_messages",
    "storage/dossier": "storage/bulk_rows",
    "storage/dual/graves": "storage/dual/tombstones",
    "storage/dynamodb/agents": "storage/dynamodb/user_agents",
    "storage/dynamodb/site": "storage/dynamodb/context",
    "storage/dynamodb/switch": "storage/dynamodb/month_moves",
    "storage/dynamodb/upkeep": "storage/dynamodb/init",
    "storage/embedded/archive": "storage/embedded/backup_file",
    "storage/embedded/changes": "storage/embedded/push_changes",
    "storage/embedded/cluster": "storage/embedded/cluster_store",
    "storage/embedded/presence_upkeep": "storage/embedded/presence_check",
    "storage/embedded/queue_taps": "storage/embedded/queue_change_feed",
    "storage/embedded/queue_upkeep": "storage/embedded/queue_check",
    "storage/embedded/reads": "storage/embedded/push_reads",
    "storage/embedded/room": "storage/embedded/free_space",
    "storage/embedded/upkeep": "storage/embedded/check",
    "storage/memory/cluster": "storage/memory/cluster_store",
    "storage/open_cluster": "storage/open",
    "storage/open_presence": "storage/open",
    "storage/postgres/cluster": "storage/postgres/cluster_store",
    "storage/postgres/groups": "storage/batching",
    "storage/postgres/upkeep": "storage/postgres/sweep",
    "storage/redis/bell": "storage/redis/subscriber",
    "storage/redis/cluster": "storage/redis/cluster_routing",
    "storage/redis/cluster_map": "storage/redis/cluster_store",
    "storage/redis/link": "storage/redis/connection",
    "storage/redis/upkeep": "storage/redis/sweep",
    "presence/catalogue": "presence/metrics",
    "presence/conversation": "presence/session/client_stream",
    "presence/departures": "presence/session/session_end",
    "presence/desk": "presence/session/delivery_limits",
    "presence/flight": "presence/session/in_flight",
    "presence/following": "presence/party/party_sync",
    "presence/handoff": "presence/cluster/handover_tickets",
    "presence/handover": "presence/cluster/session_handover",
    "presence/keys": "presence/jwk_set",
    "presence/names": "presence/event_ids",
    "presence/neighbours": "presence/cluster/peer_clients",
    "presence/peer": "presence/cluster/peer_link",
    "presence/reception": "presence/session/join",
    "presence/standbys": "presence/session/standby_streams",
    "presence/timekeeper": "presence/periodic_work",
    "presence/wire/broker": "presence/wire/server_messages",
    "presence/wire/client": "presence/wire/client_messages",
    "queue/wire/link_words": "queue/wire/link_messages",
    "client/queue/keeping": "client/queue/queue_file",
    "client/queue/line": "client/queue/reconnecting_connection",
    "client/queue/parties": "client/queue/queue_secrets",
    "client/queue/problems": "client/queue/error_replies",
    "client/party/advice": "client/party/error_actions",
    "client/party/line": "client/party/session_stream",
    "client/party/words": "client/party/outgoing_messages",
    "testing/agents": "../../tests/sim/push/clients",
    "testing/checkers": "../../tests/sim/push/checkers",
    "testing/nodes": "../../tests/sim/push/nodes",
    "testing/network": "../../tests/sim/push/relay",
    "testing/wires": "../../tests/sim/push/websocket_client",
    "testing/world": "../../tests/sim/push/world",
    "testing/cluster_world": "../../tests/sim/queue/replication_world",
    "testing/cluster_server": "../../tests/sim/queue/replicating_server",
    "testing/edge_world": "../../tests/sim/queue/world",
    "testing/edge_world_edges": "../../tests/sim/queue/edges",
    "testing/edge_world_people": "../../tests/sim/queue/clients",
    "testing/edge_world_servers": "../../tests/sim/queue/servers",
    "../../tests/e2e/presence/crowd": "../../tests/e2e/presence/random_clients",
    "../../tests/e2e/presence/visitor": "../../tests/e2e/presence/client_session",
    "testing/sim_sockets": "../../tests/sim/sockets",
    "pipeline/coding": "pipeline/parquet_options",
    "pipeline/gold": "pipeline/results",
    "pipeline/table": "pipeline/delta_table",
    "pipeline/tables": "pipeline/all_tables",
    "pipeline/stores": "pipeline/store_job_tables",
    "pipeline/draws": "pipeline/seeded_random",
    "pipeline/days": "pipeline/due_days",
    "pipeline/identity": "pipeline/id_hashes",
    "pipeline/inspection": "pipeline/lake_queries",
    "pipeline/job": "pipeline/job_context",
    "pipeline/sources/pace": "pipeline/sources/rate_limit",
    "pipeline/jobs/conn": "pipeline/jobs/connections",
    "pipeline/transforms/declared": "pipeline/transforms/output_schema",
}
# Package below src/waystation -> its retired classes -> module and class now.
RENAMED_CLASSES = {
    "app": {
        "Announcement": "app/ready_report.ReadyReport",
        "BridgesPart": "app/wiring/bridges.Bridges",
        "ClusterPart": "app/wiring/queue_cluster_member.QueueClusterMember",
        "ConnectPart": "app/wiring/connect_role.ConnectRole",
        "EndpointPart": "app/wiring/endpoint_role.EndpointRole",
        "Overview": "ops/status.ServerOverview",
        "QueuePart": "app/wiring/queue_service.QueueService",
        "Restarts": "app/restart_backoff.RestartBackoff",
        "Serving": "app/server_info.ServerInfo",
        "StorageEnd": "app/wiring/queue_cluster_links.QueueClusterLinks",
        "TelemetryPart": "app/wiring/process_telemetry.ProcessTelemetry",
    },
    "presence": {
        "Conversation": "presence/session/client_stream.ClientStream",
        "DeliveryDesk": "presence/session/delivery_limits.DeliveryLimits",
        "Departure": "presence/reports.EndedSession",
        "Departures": "presence/session/session_end.SessionEnd",
        "Desk": "presence/session/in_flight.DeliveryPort",
        "Directory": "presence/cluster/directory.NodeDirectory",
        "Flight": "presence/session/in_flight.SentMessage",
        "Following": "presence/party/party_sync.PartySync",
        "Handover": "presence/cluster/session_handover.SessionHandover",
        "Keys": "presence/jwk_set.JwkSet",
        "Names": "presence/event_ids.EventIds",
        "NeighbourError": "presence/errors.PeerError",
        "Neighbours": "presence/cluster/peer_clients.PeerClients",
        "Offer": "presence/cluster/handover_tickets.HandoverOffer",
        "Reception": "presence/session/join.JoinRequests",
        "Standbys": "presence/session/standby_streams.StandbyStreams",
        "Tally": "presence/session/in_flight.DeliveryCounters",
        "Tickets": "presence/cluster/handover_tickets.HandoverTickets",
        "Timekeeper": "presence/periodic_work.PeriodicWork",
    },
    "client/queue": {
        "Kept": "client/queue/queue_file.SavedQueues",
        "KeptFile": "client/queue/queue_file.QueueFile",
        "KeepingError": "client/queue/queue_file.QueueFileError",
        "Line": "client/queue/reconnecting_connection.ReconnectingConnection",
        "LineSettings": "client/queue/connection.ConnectionSettings",
        "Problem": "client/queue/error_replies.ErrorReply",
    },
    "client/party": {
        "Advice": "client/party/error_actions.ErrorAction",
        "Line": "client/party/session_stream.SessionStream",
        "Wishes": "client/party/model.SessionOptions",
        "Words": "client/party/outgoing_messages.OutgoingMessages",
    },
    "storage": {
        "Admittance": "storage/embedded/queue_layout.RecordHead",
        "Bell": "storage/redis/subscriber.Subscriber",
        "Dossier": "storage/bulk_rows.UserAgentSnapshot",
        "Graves": "storage/dual/tombstones.Tombstones",
        "Group": "storage/batching.Batcher",
        "Line": "storage/embedded/queue_layout.MessageRange",
        "Link": "storage/redis/connection.RedisConnection",
        "LinkStats": "storage/redis/connection.RedisStats",
        "Moves": "storage/dual/moves.UserAgentMoves",
        "PagedBulk": "storage/bulk.BulkStore",
        "Part": "storage/embedded/backup.SavedStore",
        "Place": "storage/bulk.StoreConfig",
        "Room": "storage/embedded/free_space.FreeSpace",
        "Site": "storage/dynamodb/context.StoreContext",
        "StorePlace": "storage/dual/url.StoreDsn",
        "Taps": "storage/embedded/queue_change_feed.ChangeFeed",
        "Terms": "storage/embedded/queue_changes.AppendTerms",
        "Waiting": "storage/bulk_rows.StoredNotification",
    },
    "pipeline": {
        "Fate": "pipeline/traffic.MessageKind",
    },
    "base": {
        "OriginLimit": "base/address_limit.AddressLimit",
        "Wheel": "base/timer_wheel.TimerWheel",
    },
    "push": {
        "AbsentBridge": "push/endpoint/bridges/unconfigured.UnconfiguredBridge",
        "Alarm": "push/connect/session_timers.SessionTimers",
        "Client": "push/connect/user_agent_connection.UserAgentConnection",
        "Enter": "push/connect/effects.AddToRegistry",
        "HandBack": "push/connect/unacked_saver.UnackedSaver",
        "SendLimits": "push/endpoint/rate_limits.RateLimits",
        "StatusDesk": "push/endpoint/message_status.MessageStatuses",
        "TakeUp": "push/connect/effects.ReceiveHeld",
        "Terms": "push/connect/session_context.SessionContext",
    },
}


def classes_of(path: Path) -> set[str]:
    """Classes of a module, and the types that it assigns a name to."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize("retired", MODULES)
def test_no_module_of_queue_has_a_retired_name(retired: str) -> None:
    now = QUEUE / MODULES[retired]

    assert now.is_dir() or now.with_suffix(".py").is_file()
    assert not [*QUEUE.rglob(f"{retired}.py")], f"name it {MODULES[retired]}"
    assert not [*QUEUE.rglob(f"{retired}/__init__.py")], f"name it {MODULES[retired]}"


def test_no_class_of_queue_has_a_retired_name() -> None:
    paths = [*QUEUE.rglob("*.py"), *(SRC / "app").rglob("*.py")]
    names = {name: path for path in paths for name in classes_of(path)}

    assert len(names) > 300
    assert not {f"{names[one]}: {one} is {CLASSES[one]} now" for one in CLASSES if one in names}


@pytest.mark.parametrize("retired", CLASSES)
def test_what_replaces_a_retired_class_exists(retired: str) -> None:
    module, _, name = CLASSES[retired].partition(".")

    assert name in classes_of((SRC / module).with_suffix(".py"))


@pytest.mark.parametrize("retired", MOVED_MODULES)
def test_a_moved_module_is_at_its_new_place_only(retired: str) -> None:
    now = SRC / MOVED_MODULES[retired]

    assert now.is_dir() or now.with_suffix(".py").is_file()
    assert not (SRC / retired).with_suffix(".py").exists(), f"name it {MOVED_MODULES[retired]}"


@pytest.mark.parametrize("package", RENAMED_CLASSES)
def test_no_class_of_a_package_has_a_retired_name(package: str) -> None:
    retired = RENAMED_CLASSES[package]
    names = {name for path in (SRC / package).rglob("*.py") for name in classes_of(path)}

    assert retired
    assert names.isdisjoint(retired)
    for now in retired.values():
        module, _, name = now.partition(".")
        assert name in classes_of((SRC / module).with_suffix(".py")), now


def test_no_setting_and_no_role_has_a_retired_name() -> None:
    names = {one.name for one in describe(Settings)}
    names |= {name.partition(".")[0] for name in names}

    assert names.isdisjoint(RETIRED)
    assert set(ROLES).isdisjoint(RETIRED_ROLES)
    assert set(RETIRED_ROLES.values()) <= set(ROLES)


def test_each_setting_of_an_edge_that_a_proxy_had_is_retired_by_its_name() -> None:
    retired = {name.removeprefix("proxy.") for name in RETIRED if name.startswith("proxy.")}

    assert {"port", "ops_port", "refs_max", "upstream_mode"} <= retired
    assert retired <= set(Settings().edge.__struct_fields__)


def test_no_command_has_the_name_of_a_retired_role() -> None:
    assert "cluster" in COMMANDS
    assert RETIRED_ROLES.keys().isdisjoint(COMMANDS)
