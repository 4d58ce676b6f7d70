"""The metrics of presence: name, labels and help text of each."""

from typing import Final

from waystation.telemetry.catalogue import Spec, counter, gauge, histogram

CATALOGUE: Final[tuple[Spec, ...]] = (
    gauge("presence_sessions", "Sessions of this node.", "state=active|detached"),
    gauge("presence_parties", "Parties that this node follows."),
    gauge(
        "presence_streams",
        "Open streams. waiting: without a session yet.",
        "kind=waiting|joined",
    ),
    counter(
        "presence_joins",
        "JOINs by result: created, resumed, or the status of the refusal.",
        "result",
    ),
    counter("presence_leaves", "Sessions that ended, by the status told to others.", "reason"),
    counter(
        "presence_messages_sent",
        "Messages to parties, one for each message and not for each recipient.",
        "type=join|leave|signal",
    ),
    counter("presence_deliveries", "Messages written to sessions, first deliveries only."),
    counter("presence_acks", "Acknowledged ids.", "kind=new|repeat|unknown"),
    counter("presence_retries", "Messages delivered again because no ack came."),
    counter("presence_drops", "Messages given up.", "cause=max_deliveries|superseded"),
    counter("presence_resumes", "Sessions resumed.", "how=detached|takeover|promote|handoff"),
    histogram("presence_ack_latency_seconds", "From the first delivery to the ack."),
    histogram("presence_fanout_seconds", "From a message's entry to its last write."),
    counter(
        "presence_resync",
        "LISTs that replaced messages.",
        "cause=reset|store_reset|repair",
    ),
    gauge("presence_wheel_lag_seconds", "How late the timers of sessions are."),
    histogram("presence_store_seconds", "Operations of the store.", "op"),
    counter("presence_log_gaps", "Entries that a subscription lost and the store gave."),
    gauge("presence_lease_age_seconds", "Since this node renewed its lease."),
    counter(
        "presence_handoffs",
        "Sessions handed to other nodes at a drain.",
        "result=offered|refused|moved",
    ),
    counter("presence_auth", "Tokens checked.", "result=accepted|refused|renewed|rejected"),
    counter("presence_errors", "ERROR messages by their code.", "code"),
)
