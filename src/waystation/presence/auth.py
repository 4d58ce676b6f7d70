"""Tokens (JWT): who somebody is, and which parties they may join."""

from waystation.base.clock import Clock
from waystation.base.tasks import Tasks

from .grants import Authority
from .settings import PresenceAuth


async def open_authority(settings: PresenceAuth, clock: Clock, tasks: Tasks) -> Authority | None:
    """None when everybody may come in."""
    return None
