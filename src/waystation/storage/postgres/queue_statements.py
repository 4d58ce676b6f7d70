"""Every statement of the queue store: one per operation, so one round trip each.

Statements with arrays serve several callers; `n` is the caller's position. They change queues in
the order of ids, and within a queue in the order of callers, so concurrent statements cannot
deadlock.
"""

from waystation.storage.postgres.queue_layout import QUEUE_COLUMNS
from waystation.storage.postgres.queue_schema import QueueTables

_COLUMNS = ", ".join(QUEUE_COLUMNS)
_Q_COLUMNS = ", ".join(f"q.{column}" for column in QUEUE_COLUMNS)
_PLACES = ", ".join(f"${n}" for n in range(1, len(QUEUE_COLUMNS) + 1))

_CREATE = f"INSERT INTO {{queue}} ({_COLUMNS}) VALUES ({_PLACES}) RETURNING 1"  # noqa: S608

# LIMIT makes the planner use one index look-up per caller.
_FIND = """
SELECT g.n, q.*
FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS g (party, id, n)
CROSS JOIN LATERAL (
    (SELECT <columns> FROM {queue} WHERE g.party = 'recipient' AND recipient_id = g.id LIMIT 1)
    UNION ALL
    (SELECT <columns> FROM {queue} WHERE g.party = 'sender' AND sender_id = g.id LIMIT 1)
    UNION ALL
    (SELECT <columns> FROM {queue} WHERE g.party = 'notifier' AND notifier_id = g.id LIMIT 1)
    UNION ALL
    (SELECT <columns> FROM {queue} WHERE g.party = 'link' AND link_id = g.id LIMIT 1)
) AS q
"""

_SECURE = """
UPDATE {queue} SET sender_key = $2
WHERE recipient_id = $1 AND (sender_key IS NULL OR sender_key = $2) RETURNING 1
"""

_SET_KEYS = """
UPDATE {queue} SET recipient_keys = $2 WHERE recipient_id = $1 AND mode = 'C' RETURNING 1
"""

_SET_LINK = """
UPDATE {queue} SET link_id = $2, link_fixed = $3, link_user = $4
WHERE recipient_id = $1 AND (mode IS DISTINCT FROM 'M' OR sender_key IS NULL)
    AND (link_id IS NULL OR (link_id = $2 AND link_fixed = $3))
RETURNING 1
"""

_DROP_LINK = """
UPDATE {queue} SET link_id = NULL, link_fixed = NULL, link_user = NULL
WHERE recipient_id = $1 RETURNING 1
"""

_SET_NOTIFIER = """
UPDATE {queue} AS q SET notifier_id = $2, notifier_key = $3, notifier_box_key = $4,
    notifier_service_id = NULL
FROM (SELECT recipient_id, notifier_id FROM {queue} WHERE recipient_id = $1 FOR UPDATE) AS old
WHERE q.recipient_id = old.recipient_id
RETURNING old.notifier_id AS previous
"""

# The number of services is read without a lock: slightly exceeding the limit is harmless.
_REGISTER_SERVICE = """
WITH made AS (
    INSERT INTO {service} (fingerprint, service_id, role)
    SELECT $1, $2, $3 WHERE (SELECT count(*) FROM {service}) < $4
    ON CONFLICT (fingerprint) DO NOTHING RETURNING service_id, role
)
SELECT service_id, role FROM made
UNION ALL
SELECT service_id, role FROM {service} WHERE fingerprint = $1
"""

_SET_QUEUE_SERVICE = "UPDATE {queue} SET service_id = $2 WHERE recipient_id = $1 RETURNING 1"

_SET_NOTIFIER_SERVICE = """
UPDATE {queue} SET notifier_service_id = $3 WHERE recipient_id = $1 AND notifier_id = $2 RETURNING 1
"""

_COUNT_NOTIFIERS = "SELECT count(*) AS notifiers FROM {queue} WHERE notifier_service_id = $1"

_STAND = """
UPDATE {queue} SET standing = $2, blocking = $3
WHERE recipient_id = $1 AND ($4::text IS NULL OR standing = $4) RETURNING 1
"""

_TOUCH = "UPDATE {queue} SET updated_on_s = $2 WHERE recipient_id = $1 RETURNING 1"

_DELETE = """
WITH q AS (DELETE FROM {queue} WHERE recipient_id = $1 RETURNING *),
m AS (DELETE FROM {message} WHERE recipient_id IN (SELECT recipient_id FROM q) RETURNING 1)
SELECT <q.columns>, q.size FROM q
"""

_APPEND = """
SELECT g.n, done.*
FROM (
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::boolean[], $5::bytea[],
        $6::int[], $7::bigint[], $8::bigint[])
    WITH ORDINALITY AS g (id, message, at_s, notify, body, quota, day_s, before_s, n)
    ORDER BY id, n
) AS g
CROSS JOIN LATERAL {append}(
    g.id, g.message, g.at_s, g.notify, g.body, g.quota, g.day_s, g.before_s
) AS done
"""

_HEAD = """
SELECT g.n, m.*
FROM unnest($1::bytea[]) WITH ORDINALITY AS g (id, n)
CROSS JOIN LATERAL (
    SELECT message_id, accepted_at_s, notify, body FROM {message}
    WHERE recipient_id = g.id ORDER BY number LIMIT 1
) AS m
"""

_SIZE = "SELECT size FROM {queue} WHERE recipient_id = $1"

_ACKNOWLEDGE = """
SELECT g.n, done.*
FROM (
    SELECT * FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS g (id, message, n)
    ORDER BY id, n
) AS g
CROSS JOIN LATERAL {acknowledge}(g.id, g.message) AS done
"""

_EXPIRE_SOME = """
SELECT recipient_id, {expire}(recipient_id, $1) AS gone
FROM (
    SELECT recipient_id FROM {queue} WHERE size > 0 AND recipient_id > $2
    ORDER BY recipient_id LIMIT $3
) AS waiting
ORDER BY recipient_id
"""

_SCAN = """
SELECT recipient_id FROM {queue}
WHERE recipient_id >= $1 AND recipient_id <= $2 AND recipient_id > $3
ORDER BY recipient_id LIMIT $4
"""

_COUNTS = """
SELECT count(*) AS queues, coalesce(sum(size), 0)::bigint AS messages,
    count(notifier_id) AS notifiers,
    (SELECT count(*) FROM {service} WHERE role = 'M') AS recipient_services,
    (SELECT count(*) FROM {service} WHERE role = 'N') AS notifier_services,
    count(service_id) AS service_queues, count(notifier_service_id) AS service_notifiers
FROM {queue}
"""

_SLOT_LOAD = """
SELECT (SELECT count(*) FROM {queue} WHERE recipient_id BETWEEN $1 AND $2) AS queues,
    count(*) AS messages, coalesce(sum(octet_length(body)), 0)::bigint AS stored_bytes
FROM {message} WHERE recipient_id BETWEEN $1 AND $2
"""

_SAVE_PENDING = """
INSERT INTO {pending} (number, notification)
SELECT n, one FROM unnest($1::bytea[]) WITH ORDINALITY AS g (one, n)
"""

_TAKE_PENDING = "DELETE FROM {pending} RETURNING number, notification"


class QueueStatements:
    def __init__(self, tables: QueueTables) -> None:
        def filled(sql: str) -> str:
            sql = sql.replace("<columns>", _COLUMNS).replace("<q.columns>", _Q_COLUMNS)
            return tables.fill(sql)

        self.create = filled(_CREATE)
        self.find = filled(_FIND)
        self.secure = filled(_SECURE)
        self.set_keys = filled(_SET_KEYS)
        self.set_link = filled(_SET_LINK)
        self.drop_link = filled(_DROP_LINK)
        self.set_notifier = filled(_SET_NOTIFIER)
        self.register_service = filled(_REGISTER_SERVICE)
        self.set_queue_service = filled(_SET_QUEUE_SERVICE)
        self.set_notifier_service = filled(_SET_NOTIFIER_SERVICE)
        self.count_notifiers = filled(_COUNT_NOTIFIERS)
        self.stand = filled(_STAND)
        self.touch = filled(_TOUCH)
        self.delete = filled(_DELETE)
        self.append = filled(_APPEND)
        self.head = filled(_HEAD)
        self.size = filled(_SIZE)
        self.acknowledge = filled(_ACKNOWLEDGE)
        self.expire_some = filled(_EXPIRE_SOME)
        self.scan = filled(_SCAN)
        self.counts = filled(_COUNTS)
        self.slot_load = filled(_SLOT_LOAD)
        self.save_pending = filled(_SAVE_PENDING)
        self.take_pending = filled(_TAKE_PENDING)
