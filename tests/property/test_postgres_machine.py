"""Any run of operations leaves the PostgreSQL store looking like the memory store.

One server for all runs, a database of its own for each. Records there carry a row version, which
the model has not: it is left out of the comparison.
"""

from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.property.test_push_store_machine import PushStoreMachine
from tests.servers.postgres import PostgresServer, postgres_server
from waystation.base.clock import ManualClock
from waystation.push.model import Recipient, UserAgent
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store

__all__ = ["postgres_server"]

pytestmark = pytest.mark.postgres


def without_row_version(value: Any) -> Any:
    if isinstance(value, Recipient):
        return Recipient(without_row_version(value.user_agent), value.subscribed)
    if isinstance(value, UserAgent):
        return msgspec.structs.replace(value, row_version=None)
    return value


class PostgresMachine(PushStoreMachine):
    server: ClassVar[PostgresServer]

    async def open_store(self, clock: ManualClock) -> PostgresPushStore:
        self.url = parse_postgres_url(self.server.new_url())
        return await PostgresPushStore.open(self.url, settings=Store(), clock=clock)

    @rule()
    def open_again(self) -> None:
        self.run(self.store.close())
        again = PostgresPushStore.open(self.url, settings=Store(), clock=self.clock)
        self.store = self.run(again)

    def both(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        expected = self.run(getattr(self.model, operation)(*args, **kwargs))
        found = self.run(getattr(self.store, operation)(*args, **kwargs))
        assert without_row_version(found) == expected, operation
        return expected


def test_the_store_looks_like_the_model_after_any_operations(
    postgres_server: PostgresServer,
) -> None:
    PostgresMachine.server = postgres_server
    run_state_machine_as_test(
        PostgresMachine,
        settings=settings(
            max_examples=10,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
