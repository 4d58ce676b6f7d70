"""The client's reaction to status codes, also to unknown ones."""

import pytest

from waystation.client.party.error_actions import (
    ErrorAction,
    action_for_grpc_status,
    action_for_status,
    code_name,
)
from waystation.presence.wire import party_presence_pb2 as pb


@pytest.mark.parametrize(
    "code, action",
    [
        (pb.INTERNAL_ERROR, ErrorAction.RESUME),
        (pb.CLIENT_TIMEOUT, ErrorAction.JOIN_ANEW),
        (pb.ACK_TIMEOUT, ErrorAction.JOIN_ANEW),
        (pb.REMOVED_BY_ADMIN, ErrorAction.GIVE_UP),
        (pb.SLOW_CONSUMER, ErrorAction.RESUME),
        (pb.RATE_LIMITED, ErrorAction.GO_ON),
        (50, ErrorAction.GO_ON),
        (pb.PARTY_FULL, ErrorAction.GIVE_UP),
        (pb.RESUME_REJECTED, ErrorAction.DROP_TOKEN),
        (pb.UNAUTHENTICATED, ErrorAction.NEW_JWT),
        (90, ErrorAction.GIVE_UP),
        (pb.DRAINING, ErrorAction.RESUME),
        (pb.REAUTHENTICATE, ErrorAction.NEW_JWT),
        (127, ErrorAction.RESUME),
        (pb.SESSION_ID_IN_USE, ErrorAction.GIVE_UP),
    ],
)
def test_each_code_has_a_reaction(code: int, action: ErrorAction) -> None:
    assert action_for_status(code) is action


def test_a_session_in_use_may_be_asked_for_again_when_the_broker_says_when() -> None:
    assert action_for_status(pb.SESSION_ID_IN_USE, retry_after_ms=3000) is ErrorAction.RESUME


@pytest.mark.parametrize(
    "status, action",
    [
        (0, ErrorAction.RESUME),
        (14, ErrorAction.RESUME),
        (16, ErrorAction.NEW_JWT),
        (12, ErrorAction.GIVE_UP),
    ],
)
def test_each_grpc_status_has_a_reaction(status: int, action: ErrorAction) -> None:
    assert action_for_grpc_status(status)[0] is action


def test_codes_have_names() -> None:
    assert code_name(pb.PARTY_FULL) == "PARTY_FULL"
    assert code_name(93) == "status 93"
