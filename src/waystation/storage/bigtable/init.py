"""`waystation store init` for Bigtable: the table and its families.

What is there stays as it is, Autopush's own families with their policies included. `router` gets an
age beside Autopush's one version: records end too, and would otherwise stay for ever.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from google.api_core.exceptions import AlreadyExists, GoogleAPIError, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud.bigtable_admin_v2 import (
    BaseBigtableTableAdminAsyncClient,
    ColumnFamily,
    GcRule,
    ModifyColumnFamiliesRequest,
    Table,
)
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcAsyncIOTransport,
)
from grpc.aio import insecure_channel

from waystation.base.errors import StoreUnavailableError
from waystation.storage.bigtable.client import emulator_of, find_credentials
from waystation.storage.bigtable.layout import (
    KEPT,
    MESSAGE,
    MESSAGE_TOPIC,
    OWN,
    RELIABILITY,
    ROUTER,
)
from waystation.storage.bigtable.url import BigtableUrl, parse_bigtable_url
from waystation.storage.settings import Store

_ONE_VERSION: Final = GcRule(max_num_versions=1)
_ENDED: Final = GcRule(max_age=timedelta(seconds=1))
_EITHER: Final = GcRule(union=GcRule.Union(rules=[_ENDED, _ONE_VERSION]))

POLICIES: Final[Mapping[str, GcRule]] = {
    ROUTER: _EITHER,
    MESSAGE: _ENDED,
    MESSAGE_TOPIC: _EITHER,
    RELIABILITY: _EITHER,
    OWN: _EITHER,
    KEPT: _ONE_VERSION,
}


async def init_store(url: str, settings: Store) -> list[str]:
    """Make what is missing; what was done, a sentence each. May run again and again."""
    return await init_table(parse_bigtable_url(url, settings.db_settings))


async def init_table(url: BigtableUrl) -> list[str]:
    """Raises `StoreUnavailableError`."""
    admin: Any = _admin(url)
    try:
        return await _make(admin, url)
    except (GoogleAPIError, GoogleAuthError, OSError) as exc:
        raise StoreUnavailableError(f"{url.table_name} cannot be made: {exc}") from exc
    finally:
        await admin.transport.close()


async def _make(admin: Any, url: BigtableUrl) -> list[str]:
    families = {name: ColumnFamily(gc_rule=rule) for name, rule in POLICIES.items()}
    try:
        table = await admin.get_table(name=url.table_name)
    except NotFound:
        try:
            await admin.create_table(
                parent=url.instance_name, table_id=url.table, table=Table(column_families=families)
            )
            return [f"made the table {url.table_name} with {', '.join(families)}"]
        except AlreadyExists:  # somebody else was quicker
            table = await admin.get_table(name=url.table_name)
    missing = [name for name in families if name not in table.column_families]
    if not missing:
        return [f"the table {url.table_name} has all its families"]
    changes = [
        ModifyColumnFamiliesRequest.Modification(id=name, create=families[name]) for name in missing
    ]
    request = ModifyColumnFamiliesRequest(name=url.table_name, modifications=changes)
    await admin.modify_column_families(request=request)
    return [f"gave the table {url.table_name} the families {', '.join(missing)}"]


def _admin(url: BigtableUrl) -> BaseBigtableTableAdminAsyncClient:
    emulator = emulator_of(url)
    if emulator:
        transport = BigtableTableAdminGrpcAsyncIOTransport(channel=insecure_channel(emulator))
        return BaseBigtableTableAdminAsyncClient(transport=transport)
    return BaseBigtableTableAdminAsyncClient(credentials=find_credentials(url))
