"""Settings of the cluster's controller."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc


class Controller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The controller of the slot map. Run two or three; one of them leads."""

    port: Annotated[
        int, Meta(ge=0, le=65535), doc("Health, `/metrics` and the map (`/map`) over HTTP.")
    ] = 5226
    replicas: Annotated[
        Literal[0, 1], doc("Followers of each slot; with 1, a server that dies is replaced.")
    ] = 0
    moves_per_node_max: Annotated[
        int, Meta(ge=1, le=64), doc("Slots that move from or to one server at a time.")
    ] = 4
    moves_max: Annotated[
        int,
        Meta(ge=1, le=4096),
        doc(
            "Slots that move in the whole cluster at a time. Each step of a move is a commit of"
            " the map that one server wins: with more of them, slots stay frozen longer."
        ),
    ] = 8
    follower_patience_s: Annotated[
        float, Meta(gt=0), doc("A follower that is down for so long is replaced.")
    ] = 60.0
