"""Tokens: which are believed, and what they allow."""

import asyncio
import hashlib
import hmac
import warnings
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.presence.broker_harness import PARTY, START_MS, BrokerHarness, codes
from tests.unit.presence.tokens import AUDIENCE, AUTH, ISSUER, Signer, handmade, key_set
from waystation.base.clock import ManualClock
from waystation.base.tasks import Tasks
from waystation.net.http2.port import GrpcStatus
from waystation.presence.auth import JwtAuthority, open_authority
from waystation.presence.errors import NotAllowedError, PresenceStoreError
from waystation.presence.jwk_set import JwkSet
from waystation.presence.model import MessageType, PartyId, Status
from waystation.presence.settings import Presence, PresenceAuth, contradictions

NOW_S = START_MS / 1000
SIGNER = Signer("one")


class Source:
    def __init__(self, *signers: Signer) -> None:
        self.signers = list(signers)
        self.down = False
        self.asked = 0

    async def __call__(self) -> bytes:
        self.asked += 1
        if self.down:
            raise OSError("down")
        return key_set(*self.signers)


def authority(
    clock: ManualClock, source: Source | None = None, settings: PresenceAuth = AUTH
) -> JwtAuthority:
    keys = JwkSet(settings, clock, source or Source(SIGNER))
    return JwtAuthority(settings, clock, keys)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=START_MS)


async def test_a_valid_token_gives_client_and_parties(clock: ManualClock) -> None:
    token = SIGNER.token(
        NOW_S,
        client="0xffffffffffffffff",
        parties=[{"id": "7", "perm": ["join"]}, {"id": "0x8", "perm": ["join", "signal"]}],
        max_sessions=2,
    )
    grant = await authority(clock).verify(token)

    assert grant.client_id == 2**64 - 1
    assert grant.allows("join", PartyId(7))
    assert not grant.allows("signal", PartyId(7))
    assert grant.allows("signal", PartyId(8))
    assert not grant.allows("join", PartyId(9))
    assert grant.max_sessions == 2


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "PS256"])
async def test_other_algorithms_of_the_list(clock: ManualClock, algorithm: str) -> None:
    signer = Signer("other", algorithm)
    grant = await authority(clock, Source(signer)).verify(signer.token(NOW_S))

    assert grant.client_id == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW_S - 31},
        {"nbf": NOW_S + 31},
        {"iss": "https://elsewhere.example"},
        {"aud": "another"},
        {"exp": None},
        {"exp": NOW_S + 86_500, "iat": NOW_S},
        {"cid": 2**53 + 1},
        {"cid": "many"},
        {"parties": "all"},
    ],
)
async def test_invalid_tokens_are_refused(clock: ManualClock, changes: dict[str, Any]) -> None:
    """P-094 P-096 P-097"""
    with pytest.raises(NotAllowedError):
        await authority(clock).verify(SIGNER.token(NOW_S, **changes))


async def test_clock_differences_within_the_leeway_are_tolerated(clock: ManualClock) -> None:
    """P-097"""
    assert await authority(clock).verify(SIGNER.token(NOW_S, exp=NOW_S - 29, iat=NOW_S - 300))


async def test_a_bad_signature_is_refused(clock: ManualClock) -> None:
    """P-094"""
    stranger = Signer("one")
    with pytest.raises(NotAllowedError):
        await authority(clock).verify(stranger.token(NOW_S))
    with pytest.raises(NotAllowedError):
        await authority(clock).verify("not.a.token")
    with pytest.raises(NotAllowedError):
        await authority(clock).verify("x" * 9000)


async def test_headers_that_carry_keys_are_refused(clock: ManualClock) -> None:
    """P-095"""
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 60, "cid": "1", "parties": []}
    pem = SIGNER.public_pem
    body = handmade({"alg": "HS256", "kid": "one"}, claims).rpartition(".")[0]
    forged = hmac.digest(pem, body.encode(), hashlib.sha256)
    tokens = [
        handmade({"alg": "none", "kid": "one"}, claims),
        handmade({"alg": "HS256", "kid": "one"}, claims, forged),
        SIGNER.token(NOW_S, header={"jwk": SIGNER.jwk}),
        SIGNER.token(NOW_S, header={"jku": "https://evil.example"}),
        SIGNER.token(NOW_S, header={"crit": ["exp"]}),
        handmade({"alg": "RS512", "kid": "one"}, claims),
    ]
    for token in tokens:
        with pytest.raises(NotAllowedError):
            await authority(clock).verify(token)


async def test_a_short_rsa_key_is_not_used(clock: ManualClock) -> None:
    """P-095"""
    weak = Signer("weak", "RS256", bits=1024)
    with warnings.catch_warnings(action="ignore"):
        token = weak.token(NOW_S)  # the library warns of it too

    with pytest.raises(NotAllowedError):
        await authority(clock, Source(SIGNER, weak)).verify(token)


async def test_a_withdrawn_token_is_refused(clock: ManualClock) -> None:
    """P-098"""
    judge = authority(clock)
    token = SIGNER.token(NOW_S, jti="abc")
    grant = await judge.verify(token)
    judge.deny("abc")

    assert judge.revoked(grant)
    with pytest.raises(NotAllowedError):
        await judge.verify(token)


async def test_a_token_is_refused_once_its_key_has_left_the_set(clock: ManualClock) -> None:
    """Also one that was verified before, and also when no key is left at all."""
    source = Source(SIGNER, Signer("two"))
    judge = authority(clock, source)
    token = SIGNER.token(NOW_S, exp=NOW_S + 3000)
    grant = await judge.verify(token)
    for left in (source.signers[1:], []):
        source.signers = left
        clock.advance(AUTH.cache_s + 1)  # the set is read again

        with pytest.raises(NotAllowedError):
            await judge.verify(token)
        assert judge.revoked(grant)


async def test_a_token_is_refused_once_its_key_id_names_another_key(clock: ManualClock) -> None:
    source = Source(SIGNER)
    judge = authority(clock, source)
    token = SIGNER.token(NOW_S)
    grant = await judge.verify(token)
    source.signers = [Signer(SIGNER.jwk["kid"])]
    clock.advance(AUTH.cache_s + 1)

    with pytest.raises(NotAllowedError):
        await judge.verify(token)
    assert judge.revoked(grant)


async def test_a_verified_token_is_refused_once_the_set_is_too_old(clock: ManualClock) -> None:
    source = Source(SIGNER)
    lifetime_s = AUTH.stale_s + 7200
    settings = replace(AUTH, lifetime_max_s=lifetime_s)
    judge = authority(clock, source, settings)
    token = SIGNER.token(NOW_S, exp=NOW_S + lifetime_s)
    await judge.verify(token)
    source.down = True
    clock.advance(AUTH.stale_s + 1)

    with pytest.raises(NotAllowedError):
        await judge.verify(token)


async def test_a_new_key_is_fetched_once_and_the_old_one_stays(clock: ManualClock) -> None:
    """P-099"""
    source = Source(SIGNER)
    judge = authority(clock, source)
    await judge.verify(SIGNER.token(NOW_S))
    newer = Signer("two")
    source.signers.append(newer)
    clock.advance(31)
    asked = source.asked

    await asyncio.gather(*(judge.verify(newer.token(NOW_S, client=n)) for n in range(1, 20)))
    await judge.verify(SIGNER.token(NOW_S, client=5))
    assert source.asked == asked + 1

    for number in range(1000):
        stranger = SIGNER.token(NOW_S, header={"kid": f"unknown {number}"})
        with pytest.raises(NotAllowedError):
            await judge.verify(stranger)
    assert source.asked == asked + 1


async def test_keys_stay_in_use_while_their_source_is_down(clock: ManualClock) -> None:
    """P-100"""
    source = Source(SIGNER)
    judge = authority(clock, source)
    await judge.verify(SIGNER.token(NOW_S))
    source.down = True
    clock.advance(3600)

    assert await judge.verify(SIGNER.token(NOW_S + 3600, client=2))
    clock.advance(86_400)
    with pytest.raises(NotAllowedError):
        await judge.verify(SIGNER.token(NOW_S + 90_000, client=3))


async def test_the_start_fails_without_a_usable_key(clock: ManualClock) -> None:
    """P-100"""
    source = Source(SIGNER)
    source.down = True
    tasks = Tasks(lambda _name, _error: None)
    with pytest.raises(PresenceStoreError):
        await open_authority(AUTH, clock, tasks, source)
    await tasks.close()


async def test_a_shared_secret_excludes_public_keys(clock: ManualClock) -> None:
    import jwt

    secret = "s" * 32
    settings = PresenceAuth(
        mode="jwt", issuer=ISSUER, audience=AUDIENCE, algorithms=("HS256",), secret=secret
    )
    tasks = Tasks(lambda _name, _error: None)
    judge = await open_authority(settings, clock, tasks)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW_S + 60, "cid": "4"}

    assert judge is not None
    assert (await judge.verify(jwt.encode(claims, secret, "HS256"))).client_id == 4
    both = Presence(
        auth=PresenceAuth(
            mode="jwt",
            issuer=ISSUER,
            audience=AUDIENCE,
            algorithms=("HS256", "ES256"),
            jwks="keys.json",
            secret=secret,
        )
    )
    assert contradictions(both)
    await tasks.close()


# --- in a stream, in virtual time -----------------------------------------------------------------


@pytest.fixture
def guarded(clock: ManualClock) -> Any:
    """A stage with an authority that knows SIGNER; its clock is the stage's own."""
    harness = BrokerHarness(auth=AUTH)
    judge = authority(harness.clock, settings=replace(AUTH, cache_s=86_400.0))
    harness.loop.run_until_complete(judge.verify(SIGNER.token(NOW_S)))
    harness.broker = harness.new_broker(authority=judge)
    yield harness, judge
    harness.close()


Guarded = tuple[BrokerHarness, JwtAuthority]


def test_without_a_token_nothing_is_read(guarded: Guarded) -> None:
    """P-094"""
    harness, _ = guarded
    for authorization in (None, "Bearer nonsense", "Basic abc"):
        a = harness.participant(1).open(authorization)
        assert a.status is GrpcStatus.UNAUTHENTICATED
        assert a.stream.raw == []


def test_a_token_is_for_one_client_and_its_parties(guarded: Guarded) -> None:
    """P-096 P-103"""
    harness, _ = guarded
    only_here = [{"id": str(PARTY), "perm": ["join"]}]
    mine = "Bearer " + SIGNER.token(NOW_S, client=1, parties=only_here)
    a = harness.participant(1)
    a.join(authorization=mine)
    assert codes(a.take()) == [Status.OK, Status.OK]

    elsewhere = harness.participant(1, party=PARTY + 1)
    elsewhere.join(authorization=mine)
    assert codes(elsewhere.take()) == [Status.PERMISSION_DENIED]
    assert elsewhere.status is GrpcStatus.PERMISSION_DENIED
    thief = harness.participant(1, a.session)
    thief.join(authorization="Bearer " + SIGNER.token(NOW_S, client=2))
    assert codes(thief.take()) == [Status.PERMISSION_DENIED]
    b = harness.participant(2, a.session)
    b.join(authorization="Bearer " + SIGNER.token(NOW_S, client=2))
    assert codes(b.take())[0] is Status.OK
    assert a.status is None


def test_a_token_is_renewed_inside_the_stream(guarded: Guarded) -> None:
    """P-101"""
    harness, _ = guarded
    a = harness.participant(1)
    a.join(authorization="Bearer " + SIGNER.token(NOW_S, client=1))
    a.welcomed()

    a.say(MessageType.AUTH, auth_token=SIGNER.token(NOW_S, client=2))
    assert codes(a.take()) == [Status.TOKEN_REJECTED]
    a.say(MessageType.AUTH, auth_token=SIGNER.token(NOW_S, client=1, exp=NOW_S + 3600))
    assert codes(a.take()) == [Status.TOKEN_ACCEPTED]
    for _ in range(10):
        harness.pass_time(100)
        a.ping()
        assert Status.TOKEN_EXPIRING not in codes(a.take())
    assert a.status is None


def test_a_token_that_is_not_renewed_ends_the_stream(guarded: Guarded) -> None:
    """P-102"""
    harness, _ = guarded
    watcher = harness.participant(9)
    watcher.auto = True
    watcher.join(
        session_ttl_ms=600_000,
        authorization="Bearer " + SIGNER.token(NOW_S, client=9, exp=NOW_S + 3600),
    )
    watcher.take()
    a, b = harness.participant(1), harness.participant(2)
    for one in (a, b):
        one.join(authorization="Bearer " + SIGNER.token(NOW_S, client=one.client))
        one.welcomed()
        one.auto = True
    for _ in range(3):
        harness.pass_time(79.9)
        a.ping()
        b.ping()
    assert Status.TOKEN_EXPIRING not in codes(a.seen)
    harness.pass_time(0.6)
    assert codes(a.seen)[-1] is Status.TOKEN_EXPIRING
    harness.pass_time(89.2)
    assert a.status is None

    harness.pass_time(0.6)
    a.take()
    assert (codes(a.seen)[-1], a.status) == (Status.REAUTHENTICATE, GrpcStatus.UNAUTHENTICATED)
    a.resume(authorization="Bearer " + SIGNER.token(harness.clock.now_ms() / 1000, client=1))
    assert codes(a.take())[0] is Status.SESSION_RESUMED
    harness.pass_time(121)
    left = [(one.client_id, one.status_code) for one in watcher.seen if one.message_type == 3]
    assert (2, Status.TOKEN_EXPIRED) in left


def test_a_withdrawn_token_ends_its_streams(guarded: Guarded) -> None:
    """P-098"""
    harness, judge = guarded
    a = harness.participant(1)
    a.join(authorization="Bearer " + SIGNER.token(NOW_S, client=1, jti="gone"))
    a.welcomed()

    judge.deny("gone")
    harness.broker.periodic_work.end_revoked()

    assert a.status is GrpcStatus.UNAUTHENTICATED


def test_no_secret_reaches_an_event_or_a_metric(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    """P-104"""
    harness, _ = guarded
    token = SIGNER.token(NOW_S, client=1)
    a = harness.participant(1)
    a.join(authorization="Bearer " + token)
    a.welcomed()
    a.cut()
    a.resume(authorization="Bearer " + token)
    a.take()
    a.leave()
    harness.broker.reports.totals()

    told = (
        repr(harness.events.events)
        + repr(harness.metrics.snapshot("w", 0))
        + capsys.readouterr().out
    )
    assert token not in told
    assert a.token.hex() not in told
    assert repr(a.token) not in told
