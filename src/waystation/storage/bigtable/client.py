"""The driver's client for one channel to Bigtable or to its emulator."""

import os
import warnings
from typing import Any, cast

import google.auth
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.cloud.bigtable.data import BigtableDataClientAsync

from waystation.base.errors import StoreUnavailableError
from waystation.storage.bigtable.url import DEFAULT_HOST, BigtableUrl

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"  # how Google's own tools are told of one
_RECONNECT_MAX_S = 5.0


def emulator_of(url: BigtableUrl) -> str:
    """Where the emulator is, if it is one."""
    return url.emulator or os.environ.get(EMULATOR_VARIABLE, "")


def find_credentials(url: BigtableUrl) -> Credentials:
    """Those of the machine or of GOOGLE_APPLICATION_CREDENTIALS; an emulator needs none."""
    if emulator_of(url):
        return AnonymousCredentials()
    try:
        return cast(Any, google.auth.default())[0]  # pyright: ignore[reportUnknownMemberType]
    except GoogleAuthError as exc:
        raise StoreUnavailableError(
            f"there are no credentials for Bigtable; set GOOGLE_APPLICATION_CREDENTIALS ({exc})"
        ) from exc


def new_client(
    url: BigtableUrl, credentials: Credentials, connect_timeout_s: float
) -> BigtableDataClientAsync:
    """A client with a channel of its own; the running loop is its home."""
    options: dict[str, Any] = {"project": url.project, "credentials": credentials}
    emulator = emulator_of(url)
    if not emulator:
        if url.host != DEFAULT_HOST:
            options["client_options"] = {"api_endpoint": url.host}
        return _Client(connect_timeout_s, **options)
    # The driver is told of an emulator by the environment only, and warns that it uses one.
    before = os.environ.get(EMULATOR_VARIABLE)
    os.environ[EMULATOR_VARIABLE] = emulator
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return _Client(connect_timeout_s, **options)
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
        # The driver would send measurements of every call to Google's monitoring, by a thread of
        # its own. What a node does is told by its own metrics, to its own operator.
        self._metrics.close()
        self._metrics.handlers.clear()

    def _build_grpc_channel(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["options"] = [
            *(kwargs.get("options") or ()),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.min_reconnect_backoff_ms", round(self._connect_timeout_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", round(_RECONNECT_MAX_S * 1000)),
        ]
        return super()._build_grpc_channel(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
