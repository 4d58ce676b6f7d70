"""Settings of the console: where it listens and who may look."""

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.base.settings import doc


class Console(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page for people and the API for publishers."""

    port: Annotated[int, Meta(ge=0, le=65535), doc("Status page, broadcasts API, metrics.")] = 8083
    host: Annotated[str, doc("Where the console listens; empty: as `host`.")] = ""
    operator_token: Annotated[
        str,
        doc(
            "Opens the status page from elsewhere than this machine; empty: made at first start"
            " and kept in the data directory.",
            secret=True,
        ),
    ] = ""
    refresh_s: Annotated[
        int, Meta(ge=0, le=3600), doc("How often the status page reloads itself; 0 is never.")
    ] = 5
