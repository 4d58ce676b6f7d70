import json

import pytest

from waystation.base.errors import (
    BusyError,
    StoreFullError,
    StoreUnavailableError,
    UnavailableError,
    WaystationError,
)
from waystation.push import errors
from waystation.push.wire.error_forms import (
    HTTP_FORMS,
    error_body,
    error_headers,
    form_of,
    message_of,
    reason_of,
)


def leaves(root: type[WaystationError]) -> set[type[WaystationError]]:
    found = {root}
    for child in root.__subclasses__():
        if child.__module__ in ("waystation.base.errors", "waystation.push.errors"):
            found |= leaves(child)
    return found


def test_every_error_of_push_has_a_form_of_its_own() -> None:
    assert leaves(WaystationError) <= set(HTTP_FORMS)


def test_labels_are_unique() -> None:
    """A label is a metric tag and a docs anchor: two errors must not share one."""
    labels = [error.label for error in leaves(WaystationError)]

    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("error", list(HTTP_FORMS))
def test_every_form_is_a_real_status_with_words(error: type[WaystationError]) -> None:
    form = HTTP_FORMS[error]

    assert 400 <= form.status < 600
    assert reason_of(form.status)
    assert form.message


def test_the_numbers_are_those_senders_act_on() -> None:
    """Section 4.8 of the wire specification."""
    expected = {
        errors.InvalidTokenError: (404, 102),
        errors.NoUserAgentError: (410, 103),
        errors.PayloadTooLargeError: (413, 104),
        errors.UserAgentLeftError: (410, 105),
        errors.NoSubscriptionError: (410, 106),
        errors.InvalidRouterTypeError: (400, 108),
        errors.VapidError: (401, 109),
        errors.InvalidEncryptionError: (400, 110),
        errors.NoTtlError: (400, 111),
        errors.InvalidTopicError: (400, 113),
        errors.NegativeTtlError: (400, 114),
        StoreUnavailableError: (503, 201),
        StoreFullError: (503, 201),
        errors.InvalidMessageIdError: (400, None),
        errors.RateLimitedError: (429, None),
    }

    assert {e: (HTTP_FORMS[e].status, HTTP_FORMS[e].errno) for e in expected} == expected


def test_an_error_without_a_form_takes_the_nearest_above_it() -> None:
    class NewError(StoreFullError):
        pass

    assert form_of(NewError) is HTTP_FORMS[StoreFullError]
    assert form_of(ZeroDivisionError).status == 500


def test_the_body_has_the_five_keys_in_their_order() -> None:
    """C-114"""
    body = json.loads(error_body(410, 106, "No such subscription", "https://docs"))

    assert list(body) == ["code", "errno", "error", "message", "more_info"]
    assert body == {
        "code": 410,
        "errno": 106,
        "error": "Gone",
        "message": "No such subscription",
        "more_info": "https://docs",
    }


def test_some_statuses_carry_advice() -> None:
    assert error_headers(410) == b"Cache-Control: max-age=86400\r\n"
    assert error_headers(503) == b"Retry-After: 120\r\n"
    assert error_headers(429, BusyError(retry_after_s=0.2)) == b"Retry-After: 1\r\n"
    assert error_headers(503, BusyError(retry_after_s=7.1)) == b"Retry-After: 8\r\n"
    assert error_headers(404) == b""


def test_the_inside_of_a_failure_is_not_told() -> None:
    assert "10.0.0.7" not in message_of(UnavailableError("connect to 10.0.0.7 failed"))
    assert "secret" not in message_of(RuntimeError("secret"))
    assert message_of(errors.VapidError("Unknown auth scheme")) == "Unknown auth scheme"
