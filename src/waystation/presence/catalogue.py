"""The numbers of presence: name, labels and sentence of each."""

from typing import Final

from msgspec.structs import replace

from waystation.telemetry.catalogue import Spec, counter, gauge, histogram

_OWN: Final = (
    gauge("presence_sessions", "Sessions of this node, by state: active, detached.", "state"),
    gauge("presence_parties", "Parties that this node follows."),
    gauge("presence_streams", "Open streams: waiting, primary, standby.", "kind"),
    counter("presence_joins", "JOINs by result: created, resumed, or the status.", "result"),
    counter("presence_leaves", "Sessions that ended, by reason.", "reason"),
    counter("presence_messages_sent", "Party messages by type, one for each broadcast.", "type"),
    counter("presence_deliveries", "Messages written to sessions, first deliveries only."),
    counter("presence_acks", "Acknowledged ids: new, repeat, unknown.", "kind"),
    counter("presence_retries", "Messages delivered again because no ack came."),
    counter("presence_drops", "Messages given up: max_deliveries, superseded.", "cause"),
    counter("presence_resumes", "Sessions resumed: detached, takeover, promote, handoff.", "how"),
    histogram("presence_ack_latency_seconds", "From the first delivery to the ack."),
    histogram("presence_fanout_seconds", "From an entry to the last write of it."),
    counter("presence_resync", "LISTs that replaced messages.", "cause"),
    gauge("presence_wheel_lag_seconds", "How late timers come out."),
    gauge("presence_loop_lag_seconds", "How late the event loop is."),
    histogram("presence_store_seconds", "Operations of the store.", "op"),
    counter("presence_log_gaps", "Entries that a subscription lost and the store gave."),
    gauge("presence_lease_age_seconds", "Since this node renewed its lease."),
    counter("presence_handoffs", "Sessions handed to other nodes.", "result"),
    counter("presence_auth", "Tokens checked.", "result"),
    counter("presence_errors", "ERROR messages by their code.", "code"),
    counter("presence_events_lost", "Events that reached no file."),
)  # fmt: skip

# The names of the specification stand without our prefix.
CATALOGUE: Final[tuple[Spec, ...]] = tuple(replace(spec, prefix="") for spec in _OWN)
