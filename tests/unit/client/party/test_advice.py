"""What a status asks of a client, also one that nobody knows yet."""

import pytest

from waystation.client.party.advice import Advice, advise, advise_grpc, code_name
from waystation.presence.wire import party_presence_pb2 as pb


@pytest.mark.parametrize(
    "code, advice",
    [
        (pb.INTERNAL_ERROR, Advice.RESUME),
        (pb.CLIENT_TIMEOUT, Advice.JOIN_ANEW),
        (pb.ACK_TIMEOUT, Advice.JOIN_ANEW),
        (pb.REMOVED_BY_ADMIN, Advice.GIVE_UP),
        (pb.SLOW_CONSUMER, Advice.RESUME),
        (pb.RATE_LIMITED, Advice.GO_ON),
        (50, Advice.GO_ON),
        (pb.PARTY_FULL, Advice.GIVE_UP),
        (pb.RESUME_REJECTED, Advice.DROP_TOKEN),
        (pb.UNAUTHENTICATED, Advice.NEW_JWT),
        (90, Advice.GIVE_UP),
        (pb.DRAINING, Advice.RESUME),
        (pb.REAUTHENTICATE, Advice.NEW_JWT),
        (127, Advice.RESUME),
        (pb.SESSION_ID_IN_USE, Advice.GIVE_UP),
    ],
)
def test_a_code_has_its_advice(code: int, advice: Advice) -> None:
    assert advise(code) is advice


def test_a_session_in_use_may_be_asked_for_again_when_the_broker_says_when() -> None:
    assert advise(pb.SESSION_ID_IN_USE, retry_after_ms=3000) is Advice.RESUME


@pytest.mark.parametrize(
    "status, advice",
    [(0, Advice.RESUME), (14, Advice.RESUME), (16, Advice.NEW_JWT), (12, Advice.GIVE_UP)],
)
def test_a_bare_grpc_status_has_its_advice(status: int, advice: Advice) -> None:
    assert advise_grpc(status)[0] is advice


def test_codes_have_names() -> None:
    assert code_name(pb.PARTY_FULL) == "PARTY_FULL"
    assert code_name(93) == "status 93"
