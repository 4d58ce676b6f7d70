"""Exceptions of presence: failures of the store, of other nodes and of tokens.

A refused request is a value (`session.Refusal`) with a status code of the protocol;
`wire.error_forms` says how each code ends a stream.
"""

from waystation.base.errors import BusyError, RejectedError, UnavailableError


class PresenceStoreError(UnavailableError):
    """The store of parties does not answer.

    Joins and leaves are answered with STORE_BUSY; sessions stay as they are.
    """

    label = "presence_store"


class PresenceStoreBusyError(BusyError):
    """The store of parties has reached its limit of waiting operations.

    Send again after `retry_after_ms`.
    """

    label = "presence_store_busy"


class PeerError(UnavailableError):
    """Another node of the cluster does not answer, or refused the request.

    Nothing was changed; try another node, or later.
    """

    label = "presence_neighbour"


STORE_TROUBLE = (UnavailableError, BusyError)


class NotAllowedError(RejectedError):
    """The token is missing or not valid.

    Get a new token and join again.
    """

    label = "not_allowed"
