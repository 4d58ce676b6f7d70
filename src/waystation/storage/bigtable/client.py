"""The driver's client for one channel to Bigtable or to its emulator."""

import os
import warnings
from typing import Any, cast

from google.cloud.bigtable.data import BigtableDataClientAsync

from waystation.storage.bigtable.url import BigtableUrl

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"  # the driver's own way to be told of one
_RECONNECT_MAX_S = 5.0


def new_client(url: BigtableUrl, connect_timeout_s: float) -> Any:
    """A `BigtableDataClientAsync` with a channel of its own; the running loop is its home."""
    if not url.emulator:
        options = {"api_endpoint": url.host}
        return _Client(connect_timeout_s, project=url.project, client_options=options)
    # The driver is told of an emulator by the environment and warns that it uses one.
    before = os.environ.get(EMULATOR_VARIABLE)
    os.environ[EMULATOR_VARIABLE] = url.emulator
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return _Client(connect_timeout_s, project=url.project)
    finally:
        if before is None:
            del os.environ[EMULATOR_VARIABLE]
        else:
            os.environ[EMULATOR_VARIABLE] = before


class _Client(BigtableDataClientAsync):
    """Channels that are not shared between clients, and that come back soon after an outage."""

    def __init__(self, connect_timeout_s: float, **options: Any) -> None:
        self._connect_timeout_s = connect_timeout_s
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]

    def _build_grpc_channel(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["options"] = [
            *(kwargs.get("options") or ()),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", round(self._connect_timeout_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", round(_RECONNECT_MAX_S * 1000)),
        ]
        driver = cast(Any, super())
        return driver._build_grpc_channel(*args, **kwargs)
