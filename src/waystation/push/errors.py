"""What can go wrong in push. The forms on each wire are in `wire/error_forms.py`."""

from waystation.base.errors import (
    BusyError,
    GoneError,
    RejectedError,
    UnavailableError,
)


class InvalidApiVersionError(RejectedError):
    label = "invalid_api_version"


class InvalidTokenError(RejectedError):
    label = "invalid_token"


class InvalidMessageIdError(RejectedError):
    label = "invalid_message_id"


class VapidError(RejectedError):
    """The app server could not be authenticated."""

    label = "vapid_error"


class InvalidEncryptionError(RejectedError):
    """Encryption headers are missing, contradictory or not well-formed."""

    label = "invalid_encryption"


class NoTtlError(RejectedError):
    label = "no_ttl"


class NegativeTtlError(RejectedError):
    label = "negative_ttl"


class InvalidTopicError(RejectedError):
    label = "invalid_topic"


class PayloadTooLargeError(RejectedError):
    label = "payload_error"


class InvalidVersionError(RejectedError):
    """SimplePush: `version` is not a decimal number, or is missing where it must not be."""

    label = "invalid_version"


class InvalidRouterTypeError(RejectedError):
    """The endpoint is of another kind than the user agent."""

    label = "invalid_router_type"


class BadBodyError(RejectedError):
    """A JSON body that does not have the form its path asks for."""

    label = "bad_body"


class UnauthorizedError(RejectedError):
    """A bearer token is missing or wrong (publisher, operator, status of a message)."""

    label = "unauthorized"


class NoUserAgentError(GoneError):
    label = "no_user"


class NoSubscriptionError(GoneError):
    label = "no_subscription"


class UserAgentLeftError(GoneError):
    """The user agent was removed while its notification was on the way."""

    label = "user_gone_while_routing"


class NoStatusError(GoneError):
    """Nothing is known, or nothing any more, of that message."""

    label = "no_status"


class RateLimitedError(BusyError):
    label = "rate_limited"


class StoreUnavailableError(UnavailableError):
    label = "store_unavailable"


class StoreFullError(StoreUnavailableError):
    """No room for another row; deletes and sweeps still work."""

    label = "store_full"


class BadFrameError(RejectedError):
    """A client message that is not JSON of a known form."""

    label = "bad_frame"
