"""What can go wrong in presence, besides what a status code of the protocol says.

A refusal is a value here, not an exception: every one has a status code that the client is told,
and `wire.error_forms` says how each ends a stream. Exceptions are for what we depend on.
"""

from waystation.base.errors import BusyError, RejectedError, UnavailableError


class PresenceStoreError(UnavailableError):
    """The store of parties does not answer.

    Joins and leaves are answered with STORE_BUSY; who is there stays there.
    """

    label = "presence_store"


class PresenceStoreBusyError(BusyError):
    """The store of parties has as much to do as it may.

    Send again after `retry_after_ms`.
    """

    label = "presence_store_busy"


class PeerError(UnavailableError):
    """Another node of the cluster does not answer, or does not want what it was asked.

    Nothing was changed; another node, or a later attempt, may do.
    """

    label = "presence_neighbour"


STORE_TROUBLE = (UnavailableError, BusyError)


class NotAllowedError(RejectedError):
    """The token is missing or not valid.

    Get a new one, and come back.
    """

    label = "not_allowed"
