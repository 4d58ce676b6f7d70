"""What can go wrong in push. The forms on each wire are in `wire/error_forms.py`.

The reference for senders (docs/reference/errors.md) is made from here: the first paragraph of a
docstring says what is wrong, the second what a sender should do.
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

    Mend the token. Most often `aud` is not the origin of the endpoint URL, the token has
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
    4096 bytes of ciphertext; more is a matter of luck.
    """

    label = "payload_error"


class InvalidVersionError(RejectedError):
    """SimplePush: `version` is no decimal number up to 2^63 - 1, or the body is no form.

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
    """A JSON body that does not have the form its path asks for; the message says where.

    Mend the body. It concerns the Matrix gateway and the registration API, which also wants
    `Content-Type: application/json`; the relay between nodes answers in plain text.
    """

    label = "bad_body"


class UnauthorizedError(RejectedError):
    """The status of a message was asked for without saying who asks.

    Sign the request as the message was signed, with VAPID and the same key.
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
    """Nothing is known, or nothing any more, of that message.

    Statuses are kept until an hour after the message's end, for signed messages only
    (`push.message_status`), and appear about half a second after the 201.
    """

    label = "no_status"


class InvalidRouterTokenError(RejectedError):
    """Registration: the device token is missing or cannot be one of that network.

    Register with the token that the device got from its push network.
    """

    label = "invalid_router_token"


class UnknownAppError(RejectedError):
    """Registration or message: no such app is configured for FCM.

    Use an app id of `fcm.credentials`.
    """

    label = "unknown_app"


class UnknownChannelError(RejectedError):
    """Registration or message: no such release channel is configured for APNs.

    Use a name of `apns.channels`.
    """

    label = "unknown_apns_channel"


class BadApsError(RejectedError):
    """Registration: `aps` is not a JSON object.

    Send an object, or leave it out: there is a default.
    """

    label = "bad_aps"


class UnknownRouterTypeError(RejectedError):
    """Registration: the path names no bridge that this server has.

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
    """Registration: the user agent has as many subscriptions as it may have.

    Remove some. The limit is `connect.max_channels_per_uaid`.
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
    """The push network refused the message or answered with something unknown.

    Send again later; the operator's log names the answer.
    """

    label = "bridge_error"


class BridgeAuthError(BridgeError):
    """The push network refused the credentials of this server.

    Send again later. The operator must mend the credentials: `waystation doctor` tells which.
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
    """The push network is in trouble: it answered with a status of the 500s, or 429 to all.

    Send again later.
    """

    label = "bridge_failed"

    def __init__(self, message: str = "", *, pause_s: float = 0.0) -> None:
        super().__init__(message)
        self.pause_s = pause_s  # as the push network asked


class BridgeStubError(RejectedError):
    """The stub was asked to fail: the app id is `error`.

    It exists for tests only.
    """

    label = "bridge_stub"


class LostRaceError(UnavailableError):
    """Another request changed the same user agent at the same moment.

    Send again. It concerns registrations, and a message for a device that has just got another
    token.
    """

    label = "lost_race"


class RateLimitedError(BusyError):
    """The app server, or all of them for one subscription, posted more often than they may; or too
    many devices registered (`endpoint.rate_registrations`).

    Wait for `Retry-After` seconds, then send again. Spread bulk messages.
    """

    label = "rate_limited"


class BadFrameError(RejectedError):
    """A client message that is not JSON of a known form; never an answer over HTTP.

    It ends the WebSocket with 1011 `Json`, or gets a reply with `connect.ws_error_replies`.
    """

    label = "bad_frame"
