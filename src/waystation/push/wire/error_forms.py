"""HTTP forms of push errors: status, errno and default message.

The message is used where the raise site gives none. The numbers are Autopush's, because senders act
on them.
"""

import http
import math
from typing import Final

import msgspec

from waystation.base.errors import (
    BusyError,
    GoneError,
    RejectedError,
    StoreFullError,
    StoreUnavailableError,
    UnavailableError,
    WaystationError,
)
from waystation.push import errors

RETRY_AFTER_S: Final = 120
GONE_MAX_AGE_S: Final = 86_400
MESSAGE_LETTERS_MAX: Final = 500


class HttpForm(msgspec.Struct, frozen=True):
    status: int
    errno: int | None = None
    message: str = ""


HTTP_FORMS: Final[dict[type[WaystationError], HttpForm]] = {
    WaystationError: HttpForm(500, 999, "Unknown error"),
    RejectedError: HttpForm(400, None, "Bad request"),
    GoneError: HttpForm(410, 106, "No such subscription"),
    BusyError: HttpForm(503, 202, "Too many concurrent requests, please try again"),
    UnavailableError: HttpForm(503, 201, "Please use exponential backoff"),
    errors.InvalidApiVersionError: HttpForm(404, 102, "Invalid API version"),
    errors.InvalidTokenError: HttpForm(404, 102, "Invalid token"),
    errors.InvalidMessageIdError: HttpForm(400, None, "Invalid message ID"),
    errors.VapidError: HttpForm(401, 109, "Invalid VAPID token"),
    errors.InvalidEncryptionError: HttpForm(400, 110, "Invalid encryption headers"),
    errors.NoTtlError: HttpForm(400, 111, "Missing TTL value"),
    errors.NegativeTtlError: HttpForm(400, 114, "TTL must be greater than 0"),
    errors.InvalidTopicError: HttpForm(400, 113, "Invalid Topic"),
    errors.PayloadTooLargeError: HttpForm(413, 104, "Request payload too large"),
    errors.InvalidVersionError: HttpForm(400, None, "Invalid version"),
    errors.InvalidRouterTypeError: HttpForm(400, 108, "Invalid router type"),
    errors.BadBodyError: HttpForm(400, None, "Invalid JSON body"),
    errors.UnauthorizedError: HttpForm(401, 109, "Unauthorized"),
    errors.NoUserAgentError: HttpForm(410, 103, "UAID not found"),
    errors.NoSubscriptionError: HttpForm(410, 106, "No such subscription"),
    errors.UserAgentLeftError: HttpForm(410, 105, "User was deleted during routing"),
    errors.NoStatusError: HttpForm(404, None, "There is no status of that message"),
    errors.InvalidRouterTokenError: HttpForm(400, None, "Invalid router token"),
    errors.UnknownAppError: HttpForm(400, 106, "Unknown app id"),
    errors.UnknownChannelError: HttpForm(400, None, "Unknown release channel"),
    errors.BadApsError: HttpForm(400, None, "Invalid APS data"),
    errors.UnknownRouterTypeError: HttpForm(400, 108, "Invalid router type"),
    errors.RegistrationAuthError: HttpForm(401, 109, "Invalid Local Auth"),
    errors.TooManySubscriptionsError: HttpForm(400, None, "Too many subscriptions"),
    errors.BridgePayloadTooLargeError: HttpForm(413, 104, "Request payload too large"),
    errors.BridgeGoneError: HttpForm(410, 106, "Bridge reports that the device is gone"),
    errors.BridgeError: HttpForm(502, None, "The bridge failed"),
    errors.BridgeAuthError: HttpForm(502, 901, "The bridge refused our credentials"),
    errors.BridgeConnectError: HttpForm(502, 902, "Cannot connect to the bridge"),
    errors.BridgeTimeoutError: HttpForm(502, 903, "The bridge did not answer in time"),
    errors.BridgeFailedError: HttpForm(502, None, "The bridge failed"),
    errors.BridgeStubError: HttpForm(500, None, "The stub bridge failed as requested"),
    errors.LostRaceError: HttpForm(503, None, "Please try again"),
    errors.RateLimitedError: HttpForm(429, None, "Too many requests"),
    StoreUnavailableError: HttpForm(503, 201, "Please use exponential backoff"),
    StoreFullError: HttpForm(503, 201, "The store is full, please try again later"),
    errors.BadFrameError: HttpForm(400, None, "Ill-formed message"),
}


class ErrorBody(msgspec.Struct, frozen=True):
    """JSON body of every error, with the fields in Autopush's order."""

    code: int
    errno: int | None
    error: str
    message: str
    more_info: str


_encode = msgspec.json.Encoder().encode


def form_of(error: type[BaseException]) -> HttpForm:
    """The form of the nearest base class; other exceptions get that of `WaystationError`."""
    for ancestor in error.__mro__:
        form = HTTP_FORMS.get(ancestor)
        if form is not None:
            return form
    return HTTP_FORMS[WaystationError]


def reason_of(status: int) -> str:
    return http.HTTPStatus(status).phrase


def error_body(status: int, errno: int | None, message: str, more_info: str) -> bytes:
    return _encode(
        ErrorBody(status, errno, reason_of(status), message[:MESSAGE_LETTERS_MAX], more_info)
    )


def error_headers(status: int, error: BaseException | None = None) -> bytes:
    """Header lines of an error besides those of its body."""
    match status:
        case 410:
            return b"Cache-Control: max-age=%d\r\n" % GONE_MAX_AGE_S
        case 401:
            secret = isinstance(error, errors.RegistrationAuthError)
            return b"WWW-Authenticate: %b\r\n" % (b"Bearer" if secret else b"vapid")
        case 429 | 503:
            wait_s = getattr(error, "retry_after_s", None)
            return b"Retry-After: %d\r\n" % (
                RETRY_AFTER_S if wait_s is None else max(1, math.ceil(wait_s))
            )
        case _:
            return b""


def message_of(error: BaseException) -> str:
    """The message for the client: the error's own text if it is safe, else the form's message."""
    if isinstance(error, UnavailableError) or not isinstance(error, WaystationError):
        return form_of(type(error)).message  # a backend's text may name hosts and paths
    return str(error) or form_of(type(error)).message
