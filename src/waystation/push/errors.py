"""Errors of push. Their HTTP forms are in `wire/error_forms.py`.

docs/reference/errors.md is generated from here: the first paragraph of a docstring says what is
wrong, the second what a sender should do.
"""

from waystation.base.errors import (
    BusyError,
    GoneError,
    RejectedError,
    UnavailableError,
)


class InvalidApiVersionError(RejectedError):
    """The path of the endpoint has another version than `v1` or `v2`.

    Use the endpoint URL exactly as the subscription gave it.
    """

    label = "invalid_api_version"


class InvalidTokenError(RejectedError):
    """The endpoint URL was not made by this service, or was changed on the way.

    Drop the subscription: no later request can open that URL. If every endpoint gets this answer,
    the server lost `keys/crypto_keys`.
    """

    label = "invalid_token"


class InvalidMessageIdError(RejectedError):
    """The id in `/m/{message_id}` was not made by this service.

    Use the `Location` of the 201 exactly as it was given.
    """

    label = "invalid_message_id"


class VapidError(RejectedError):
    """The app server could not be authenticated; the message says what was wrong.

    Correct the token. Frequent causes: `aud` is not the origin of the endpoint URL, the token has
    expired, `exp` is more than 24 hours ahead, or the endpoint is bound to another key.
    """

    label = "vapid_error"


class InvalidEncryptionError(RejectedError):
    """Encryption headers are missing, contradictory or not well-formed.

    Encrypt with `aes128gcm` (RFC 8291) and send `Content-Encoding: aes128gcm`, without `salt` in
    `Encryption` and `dh` in `Crypto-Key`.
    """

    label = "invalid_encryption"


class NoTtlError(RejectedError):
    """The header `TTL` is missing or is no whole number.

    Send `TTL: SECONDS`; RFC 8030 asks for it with every message.
    """

    label = "no_ttl"


class NegativeTtlError(RejectedError):
    """The TTL is below 0.

    Send 0 (deliver now or never) or more.
    """

    label = "negative_ttl"


class InvalidTopicError(RejectedError):
    """The topic is longer than 32 characters or not of the base64url alphabet.

    Choose another topic, or hash your own name for it.
    """

    label = "invalid_topic"


class PayloadTooLargeError(RejectedError):
    """The body is longer than `endpoint.max_data_bytes`.

    Send less, for example a reference that the user agent fetches. Every push service accepts
    4096 bytes of ciphertext; not every one accepts more.
    """

    label = "payload_error"


class InvalidVersionError(RejectedError):
    """SimplePush: `version` is not a decimal number up to 2^63 - 1, or the body is not a form.

    Send a whole number that grows.
    """

    label = "invalid_version"


class InvalidRouterTypeError(RejectedError):
    """The endpoint is of another kind than the user agent.

    A Web Push endpoint was used for a user agent that speaks SimplePush, or the reverse: drop the
    subscription and wait for a new one.
    """

    label = "invalid_router_type"


class BadBodyError(RejectedError):
    """The JSON body does not have the form that the path requires; the message says where.

    Correct the body. The Matrix gateway and the registration API send this error; the latter also
    requires `Content-Type: application/json`. The relay between nodes answers in plain text.
    """

    label = "bad_body"


class UnauthorizedError(RejectedError):
    """A request for a message's status is not signed.

    Sign it with VAPID and the key that signed the message.
    """

    label = "unauthorized"


class NoUserAgentError(GoneError):
    """Registration: the user agent does not exist, or is registered with another type.

    Register anew. (An app server that posts to it gets `no_subscription`.)
    """

    label = "no_user"


class NoSubscriptionError(GoneError):
    """User agent or subscription does not exist any more.

    Delete the subscription: it does not come back. This is how unsubscribing reaches a sender.
    """

    label = "no_subscription"


class UserAgentLeftError(GoneError):
    """The user agent was removed while its notification was on the way.

    Delete the subscription.
    """

    label = "user_gone_while_routing"


class NoStatusError(GoneError):
    """There is no status of that message, or not any more.

    Statuses are kept for signed messages only (`push.message_status`), until an hour after the
    message's end. They appear about half a second after the 201.
    """

    label = "no_status"


class InvalidRouterTokenError(RejectedError):
    """Registration: the device token is missing or does not have the form of that network.

    Register with the token that the device got from its push network.
    """

    label = "invalid_router_token"


class UnknownAppError(RejectedError):
    """Registration or message: the app id is not configured for FCM.

    Use an app id of `fcm.credentials`.
    """

    label = "unknown_app"


class UnknownChannelError(RejectedError):
    """Registration or message: the release channel is not configured for APNs.

    Use a name of `apns.channels`.
    """

    label = "unknown_apns_channel"


class BadApsError(RejectedError):
    """Registration: `aps` is not a JSON object.

    Send an object, or omit it to use the default.
    """

    label = "bad_aps"


class UnknownRouterTypeError(RejectedError):
    """Registration: the path does not name a bridge of this server.

    Use `fcm` or `apns`, as the operator configured them.
    """

    label = "unknown_router_type"


class RegistrationAuthError(RejectedError):
    """Registration: the secret of the user agent is missing or wrong.

    Send `Authorization: Bearer SECRET` with the `secret` of the first registration. Without it,
    register anew.
    """

    label = "registration_auth"


class TooManySubscriptionsError(RejectedError):
    """Registration: the user agent has `connect.max_channels_per_uaid` subscriptions.

    Remove some first.
    """

    label = "too_many_subscriptions"


class BridgePayloadTooLargeError(RejectedError):
    """The message is longer than the device's push network takes, encoding included.

    Send at most about 2,700 bytes to a subscription of a mobile device.
    """

    label = "bridge_payload_too_large"


class BridgeGoneError(GoneError):
    """The push network does not know the device any more; the user agent was removed.

    Delete the subscription.
    """

    label = "bridge_gone"


class BridgeError(UnavailableError):
    """The push network refused the message, or its answer is unknown.

    Send again later. The operator's log has the answer.
    """

    label = "bridge_error"


class BridgeAuthError(BridgeError):
    """The push network refused the credentials of this server.

    Send again later. The operator must replace the credentials that `waystation doctor` names.
    """

    label = "bridge_auth"


class BridgeConnectError(BridgeError):
    """The push network could not be reached, or the connection ended before its answer.

    Send again later.
    """

    label = "bridge_connect"


class BridgeTimeoutError(BridgeError):
    """The push network did not answer in time; it may have taken the message.

    Send again later.
    """

    label = "bridge_timeout"


class BridgeFailedError(BridgeError):
    """The push network answered with a 5xx status, or with 429 for the whole app.

    Send again later.
    """

    label = "bridge_failed"

    def __init__(self, message: str = "", *, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s  # requested by the push network


class BridgeStubError(RejectedError):
    """The stub bridge fails for the app id `error`.

    It exists for tests only.
    """

    label = "bridge_stub"


class LostRaceError(UnavailableError):
    """Another request changed the same user agent at the same moment.

    Send again. It happens with registrations, and with a message for a device whose token has just
    changed.
    """

    label = "lost_race"


class RateLimitedError(BusyError):
    """A rate limit was exceeded: of a VAPID key (`endpoint.rate_per_key`), of a subscription
    (`endpoint.rate_per_endpoint`) or of registrations (`endpoint.rate_registrations`).

    Wait for `Retry-After` seconds, then send again. Spread bulk messages.
    """

    label = "rate_limited"


class BadFrameError(RejectedError):
    """A client message is not JSON of a known form. WebSocket only.

    It closes the WebSocket with 1011 `Json`, or is answered if `connect.ws_error_replies` is on.
    """

    label = "bad_frame"
