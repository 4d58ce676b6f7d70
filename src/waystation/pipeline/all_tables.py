"""All tables of the lake, the jobs that read each of them, and how long rows are kept."""

from collections.abc import Mapping

from waystation.pipeline.results import RESULT_TABLES
from waystation.pipeline.schema import DQ, EVENTS, MSG, MSG_INC, QUARANTINE, TableSpec
from waystation.pipeline.settings import Pipeline
from waystation.pipeline.store_job_tables import (
    MIGRATE_PROGRESS,
    STORE_AUDIT,
    STORE_CANDIDATES,
    STORE_PURGE,
)

TABLES: Mapping[str, TableSpec] = {
    spec.name: spec
    for spec in (
        *(EVENTS, QUARANTINE, MSG_INC, MSG, *RESULT_TABLES),
        *(STORE_AUDIT, STORE_CANDIDATES, STORE_PURGE, MIGRATE_PROGRESS, DQ),
    )
}


def consumers(table: str) -> list[tuple[TableSpec, str]]:
    """The jobs that read a table: the table with each job's progress, and the progress name."""
    return [
        (spec, job) for spec in TABLES.values() for job, source in spec.inputs if source == table
    ]


def keep_days(spec: TableSpec, settings: Pipeline) -> int:
    """How long rows of a table are kept; a setting overrides the table's default."""
    if spec.name in {EVENTS.name, QUARANTINE.name}:
        return settings.events_keep_days
    if spec.name in {MSG.name, MSG_INC.name}:
        return settings.messages_keep_days
    return spec.keep_days
