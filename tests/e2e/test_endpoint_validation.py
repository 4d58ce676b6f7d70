"""What an endpoint refuses, and with which number: scenarios C-091 to C-116."""

import base64
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.e2e.platform import Serve
from tests.e2e.stores import opened
from tests.e2e.wire_clients import (
    BODY,
    UserAgent,
    Vapid,
    accepted,
    b64url,
    from_b64url,
    http,
    new_channel,
    post,
    user_agent,
)
from waystation.push.model import ChannelId, Uaid
from waystation.push.model import UserAgent as Record

pytestmark = pytest.mark.e2e

SENDER = Vapid()


class Subscription:
    """Endpoints of one connected user agent, and its socket."""

    def __init__(self, agent: UserAgent, v1: str, v2: str) -> None:
        self.agent = agent
        self.v1 = v1
        self.v2 = v2


@pytest.fixture
async def subscription(server: Serve) -> AsyncIterator[Subscription]:
    async with user_agent(server.ws_url) as agent:
        yield Subscription(agent, await agent.subscribe(), await agent.subscribe(key=SENDER.key))


def sealed(server: Serve, plain: bytes, key: str | None = None) -> str:
    return Fernet(key or server.crypto_key).encrypt(plain).decode().rstrip("=")


async def test_an_unknown_path_is_404_without_a_body(server: Serve) -> None:
    """C-091"""
    for path in ("/", "/nothing", "/wpush", "/m", "/v1/broadcasts"):
        answer = await http("GET", server.endpoint_url + path)

        assert (answer.status, answer.body) == (404, b"")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
async def test_an_endpoint_refuses_other_methods_than_post_and_get(
    subscription: Subscription, method: str
) -> None:
    """C-091"""
    answer = await http(method, subscription.v1)

    assert answer.status == 405
    assert answer.headers["allow"] == "GET, POST, OPTIONS"


@pytest.mark.parametrize("method,body", [("GET", b'{"unifiedpush":{"version":1}}'), ("HEAD", b"")])
async def test_reading_an_endpoint_answers_unifiedpush_discovery(
    subscription: Subscription, method: str, body: bytes
) -> None:
    """C-091"""
    answer = await http(method, subscription.v1)

    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
async def test_a_message_can_only_be_deleted(
    server: Serve, subscription: Subscription, method: str
) -> None:
    """C-116"""
    answer = await accepted(subscription.v1)

    assert (await http(method, answer.headers["location"])).status == 405


async def test_an_unknown_version_or_token_is_404(
    server: Serve, subscription: Subscription
) -> None:
    """C-092: with a body, unlike an unknown path"""
    token = subscription.v1.rpartition("/")[2]
    foreign = sealed(server, bytes(32), Fernet.generate_key().decode())
    for path in (
        f"/wpush/v9/{token}",
        "/wpush/v1/nonsense",
        "/wpush/v2/gAAAAAB",
        f"/wpush/v1/{token[:-4]}AAAA",
        f"/wpush/v1/{foreign}",
        f"/wpush/v1/{'A' * 5000}",
    ):
        assert (await post(server.endpoint_url + path)).error == (404, 102)


async def test_the_version_may_be_left_out(subscription: Subscription) -> None:
    """C-092: it is v1 then; and padding may stay on a token"""
    short = subscription.v1.replace("/wpush/v1/", "/wpush/")
    for endpoint in (short, subscription.v1 + "=="):
        await accepted(endpoint)

        assert await subscription.agent.notification(ack=True)


async def test_the_token_must_have_the_length_of_its_version(
    server: Serve, subscription: Subscription
) -> None:
    """C-094: when the signature is fine"""
    crossed = (
        subscription.v1.replace("/v1/", "/v2/"),
        subscription.v2.replace("/v2/", "/v1/"),
        f"{server.endpoint_url}/wpush/v1/{sealed(server, bytes(31))}",
        f"{server.endpoint_url}/wpush/v2/{sealed(server, bytes(65))}",
    )
    for endpoint in crossed:
        assert (await post(endpoint, vapid=SENDER)).error == (404, 102)


@pytest.mark.parametrize("ttl", [None, "abc", "1.5", "", "1 0", "0x10", "٣"])
async def test_a_ttl_is_needed(subscription: Subscription, ttl: str | None) -> None:
    """C-095"""
    answer = await post(subscription.v1, ttl=ttl)

    assert answer.error == (400, 111)
    assert "Missing TTL value" in answer.json["message"]


async def test_a_ttl_is_not_negative(subscription: Subscription) -> None:
    """C-095"""
    answer = await post(subscription.v1, ttl=-1)

    assert answer.error == (400, 114)
    assert "TTL must be greater than 0" in answer.json["message"]


@pytest.mark.parametrize("ttl, told", [("+5", "5"), ("-0", "0"), ("007", "7")])
async def test_a_ttl_is_an_integer_with_or_without_a_sign(
    subscription: Subscription, ttl: str, told: str
) -> None:
    """C-095"""
    assert (await accepted(subscription.v1, ttl=ttl)).headers["ttl"] == told


@pytest.mark.parametrize("ttl", ["2592001", "99999999", "9" * 30])
async def test_a_ttl_above_the_maximum_is_lowered(subscription: Subscription, ttl: str) -> None:
    """C-096"""
    assert (await accepted(subscription.v1, ttl=ttl)).headers["ttl"] == "2592000"


async def test_a_topic_has_an_alphabet_and_a_length(subscription: Subscription) -> None:
    """C-097"""
    too_long = await post(subscription.v1, topic="a" * 33)
    assert too_long.error == (400, 113)
    assert too_long.json["message"] == "Topic must be no greater than 32 characters"
    for bad in ("hello!", "two words", "", "a=b", "é"):
        answer = await post(subscription.v1, topic=bad)

        assert answer.error == (400, 113)
    for good in ("a" * 32, "A-_9", "ab=="):
        await accepted(subscription.v1, topic=good)


@pytest.mark.parametrize(
    "encoding, headers",
    [
        pytest.param(None, {}, id="C-098 none"),
        pytest.param("gzip", {}, id="C-098 unknown"),
        pytest.param("AES128GCM", {}, id="C-098 upper case"),
        pytest.param("aesgcm128", {"Encryption": "salt=YQ"}, id="C-098 of the first draft"),
        pytest.param("aesgcm", {}, id="C-099 no Encryption"),
        pytest.param("aesgcm", {"Encryption": "keyid=p256dh"}, id="C-099 no salt"),
        pytest.param("aesgcm", {"Encryption": "salt=a b!"}, id="C-099 bad salt"),
        pytest.param("aesgcm", {"Encryption": "salt"}, id="C-102 ill-formed Encryption"),
        pytest.param(
            "aesgcm", {"Encryption": "salt=YQ", "Crypto-Key": "p256ecdsa=YQ"}, id="C-099 no dh"
        ),
        pytest.param("aesgcm", {"Encryption": "salt=YQ", "Crypto-Key": "dh=Y!"}, id="C-099 bad dh"),
        pytest.param("aesgcm", {"Encryption": "salt=YQ", "Crypto-Key": "dh"}, id="C-102 no value"),
        pytest.param("aes128gcm", {"Crypto-Key": "dh=YQ"}, id="C-101 dh"),
        pytest.param("aes128gcm", {"Encryption": "salt=YQ"}, id="C-101 salt"),
        pytest.param("aes128gcm", {"Crypto-Key": "nonsense"}, id="C-102 ill-formed Crypto-Key"),
    ],
)
async def test_bad_encryption_headers_are_refused(
    subscription: Subscription, encoding: str | None, headers: dict[str, str]
) -> None:
    answer = await post(subscription.v1, encoding=encoding, headers=headers)

    assert answer.error == (400, 110)


@pytest.mark.parametrize(
    "encoding, headers",
    [
        pytest.param("aesgcm", {"Encryption": "salt=YQ"}, id="C-100 without Crypto-Key"),
        pytest.param("aesgcm", {"Encryption": "salt=YQ", "Crypto-Key": "dh=YQ"}, id="both"),
        pytest.param("aes128gcm", {"Crypto-Key": "p256ecdsa=YQ"}, id="C-101 only p256ecdsa"),
        pytest.param("aes128gcm", {"Encryption": "rs=4096"}, id="C-101 no salt"),
    ],
)
async def test_good_encryption_headers_are_taken(
    subscription: Subscription, encoding: str, headers: dict[str, str]
) -> None:
    await accepted(subscription.v1, encoding=encoding, headers=headers)
    message = await subscription.agent.notification(ack=True)

    assert message["headers"]["encoding"] == encoding


async def test_a_body_has_a_limit(subscription: Subscription) -> None:
    """C-103: exactly the limit is taken"""
    assert (await post(subscription.v1, b"x" * 5631)).error == (413, 104)
    assert (await post(subscription.v1, b"x" * 100_000)).error == (413, 104)
    await accepted(subscription.v1, b"x" * 5630)
    message = await subscription.agent.notification(ack=True)
    assert len(from_b64url(message["data"])) == 5630
    await subscription.agent.expect_silence(0.1)


@pytest.mark.parametrize(
    "authorization",
    ["", "vapid", "vapid ", "WebPush", "Bearer ", "Basic dTpw", "nonsense x", "vapid t=a.b.c"],
)
async def test_an_authorization_that_is_none_is_refused(
    subscription: Subscription, authorization: str
) -> None:
    """C-104: on endpoints that need none as well"""
    answer = await post(subscription.v1, headers={"Authorization": authorization})

    assert answer.error == (401, 109)


async def test_an_endpoint_bound_to_a_key_wants_that_key(subscription: Subscription) -> None:
    """C-105"""
    unsigned = await post(subscription.v2)
    other = await post(subscription.v2, vapid=Vapid())
    await accepted(subscription.v2, vapid=SENDER)

    assert unsigned.error == other.error == (401, 109)
    assert await subscription.agent.notification(ack=True)
    await subscription.agent.expect_silence(0.1)


async def test_a_token_needs_no_contact(subscription: Subscription) -> None:
    """C-106: only aud and exp; null counts as absent"""
    for claims in ({"without": ["sub"]}, {"sub": None}, {"sub": "nobody"}):
        headers = SENDER.vapid(subscription.v2, **claims)

        assert (await post(subscription.v2, headers=headers)).status == 201


def soon(seconds: int) -> int:
    return int(time.time()) + seconds


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"exp": "@"}, id="no number"),
        pytest.param({"exp": [soon(60)]}, id="a list"),
        pytest.param({"exp": str(soon(600))}, id="a text"),
        pytest.param({"without": ["exp"]}, id="missing"),
        pytest.param({"exp": -5}, id="negative"),
        pytest.param({"exp": soon(-120)}, id="past"),
        pytest.param({"exp": soon(25 * 3600)}, id="25 hours ahead"),
    ],
)
async def test_a_token_expires_within_a_day(
    subscription: Subscription, claims: dict[str, object]
) -> None:
    """C-107: on endpoints that need no token as well"""
    for endpoint in (subscription.v1, subscription.v2):
        answer = await post(endpoint, headers=SENDER.vapid(endpoint, **claims))

        assert answer.error == (401, 109)


@pytest.mark.parametrize("ahead_s", [24 * 3600 - 30, -30])
async def test_a_day_ahead_or_a_minute_late_is_in_time(
    subscription: Subscription, ahead_s: int
) -> None:
    """C-107: a leeway of 60 s"""
    headers = SENDER.vapid(subscription.v2, exp=soon(ahead_s))
    await accepted(subscription.v2, headers=headers)

    assert await subscription.agent.notification(ack=True)


async def test_a_token_is_for_this_origin(server: Serve, subscription: Subscription) -> None:
    """C-108"""
    origin = server.endpoint_url
    for aud in (
        "https://updates.example.org",
        f"{origin}/",
        f"{origin}/wpush",
        origin.replace("http://", "https://"),
        origin.rpartition(":")[0],
        [origin],
        "",
        7,
    ):
        headers = SENDER.vapid(subscription.v2, aud=aud)

        assert (await post(subscription.v2, headers=headers)).error == (401, 109)
    headers = SENDER.vapid(subscription.v2, without=["aud"])
    assert (await post(subscription.v2, headers=headers)).error == (401, 109)


async def test_a_token_is_signed_by_its_key(subscription: Subscription) -> None:
    """C-109"""
    endpoint = subscription.v2
    good = SENDER.token(endpoint)
    head, claims, signature = good.split(".")
    flipped = b64url(bytes([from_b64url(signature)[0] ^ 1]) + from_b64url(signature)[1:])
    no_algorithm = b64url(b'{"alg":"none"}')
    no_point = b"\x04" + b"\xff" * 64
    for token, key in (
        (f"{head}.{claims}.{flipped}", SENDER.key),
        (f"{head}.{claims}.", SENDER.key),
        (f"{head}.{claims}", SENDER.key),
        (f"{no_algorithm}.{claims}.", SENDER.key),
        (SENDER.token(endpoint, header={"typ": "JWT", "alg": "HS256"}), SENDER.key),
        (SENDER.token(endpoint, header={"typ": "JWT", "alg": "none"}), SENDER.key),
        (good, Vapid().key),
        (good, b64url(no_point)),
        (good, b64url(SENDER.public[1:])),
        (good, "nonsense!"),
    ):
        answer = await post(endpoint, headers={"Authorization": f"vapid t={token}, k={key}"})

        assert answer.error == (401, 109)


@pytest.mark.parametrize("scheme", ["WebPush", "Bearer", "webpush", "BEARER"])
async def test_the_schemes_of_the_drafts_carry_their_key_elsewhere(
    subscription: Subscription, scheme: str
) -> None:
    """C-110"""
    signed = SENDER.webpush(subscription.v2, scheme=scheme)
    await accepted(subscription.v2, headers=signed)
    assert await subscription.agent.notification(ack=True)
    for wrong in ({}, {"Crypto-Key": "dh=YQ"}, {"Crypto-Key": "nonsense"}):
        headers = {"Authorization": signed["Authorization"], **wrong}

        assert (await post(subscription.v2, headers=headers)).error == (400, 110)


async def test_a_public_key_may_be_padded_or_in_the_other_alphabet(server: Serve) -> None:
    """C-111"""
    sender = Vapid()
    while not set(sender.key) & set("-_"):  # one on which the alphabets differ
        sender = Vapid()
    standard = base64.b64encode(sender.public).decode()
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe(key=sender.key)
        for key in (f"{sender.key}=", standard, standard.rstrip("=")):
            token = sender.token(endpoint)
            await accepted(endpoint, headers={"Authorization": f"vapid t={token}, k={key}"})

            assert await agent.notification(ack=True)


@pytest.mark.parametrize(
    "form",
    [
        "vapid k={k},t={t}",
        "vapid t={t},k={k}",
        "vapid   t = {t} ,  k = {k} ",
        "VAPID t={t}, k={k}",
        "Vapid t={t}, k={k}, x=unknown",
    ],
)
async def test_a_signature_may_be_written_in_many_ways(
    subscription: Subscription, form: str
) -> None:
    """C-112"""
    text = form.format(t=SENDER.token(subscription.v2), k=SENDER.key)
    await accepted(subscription.v2, headers={"authorization": text})

    assert await subscription.agent.notification(ack=True)


async def test_nobody_is_there_for_an_unknown_uaid(server: Serve) -> None:
    """C-113"""
    token = sealed(server, uuid.uuid4().bytes + uuid.uuid4().bytes)
    answer = await post(f"{server.endpoint_url}/wpush/v1/{token}")

    assert answer.error == (410, 106)
    assert answer.headers["cache-control"] == "max-age=86400"


async def test_a_record_of_no_known_kind_is_removed(server: Serve) -> None:
    """C-113"""
    uaid, channel = Uaid(uuid.uuid4().bytes), ChannelId(uuid.uuid4().bytes)
    async with opened(server) as store:
        record = Record(uaid=uaid, connected_at_ms=1, router_type="pigeon")
        assert await store.add_user_agent(record)
        await store.add_channel(uaid, channel, channels_max=10)
        endpoint = f"{server.endpoint_url}/wpush/v1/{sealed(server, uaid + channel)}"
        answer = await post(endpoint)

        assert answer.error == (410, 106)
        assert await store.get_user_agent(uaid) is None


async def test_every_error_has_the_same_five_keys(
    server: Serve, subscription: Subscription
) -> None:
    """C-114"""
    unknown = sealed(server, bytes(32))
    answers = [
        await post(f"{server.endpoint_url}/wpush/v1/nonsense"),
        await post(f"{server.endpoint_url}/wpush/v1/{unknown}"),
        await post(subscription.v1, ttl=None),
        await post(subscription.v1, ttl=-1),
        await post(subscription.v1, topic="!"),
        await post(subscription.v1, b"x" * 6000),
        await post(subscription.v1, encoding=None),
        await post(subscription.v2),
        await http("DELETE", f"{server.endpoint_url}/m/nonsense"),
        await http("PUT", subscription.v1),
    ]

    assert [answer.status for answer in answers] == [
        404, 410, 400, 400, 400, 413, 400, 401, 400, 405,
    ]  # fmt: skip
    for answer in answers:
        body = json.loads(answer.body)
        assert set(body) == {"code", "errno", "error", "message", "more_info"}
        assert body["code"] == answer.status
        assert body["more_info"].startswith("http")
        assert answer.headers["content-type"].startswith("application/json")


async def test_the_first_failure_wins(server: Serve, subscription: Subscription) -> None:
    """§4.3: in the order of its table"""
    huge, nobody = b"x" * 6000, f"{server.endpoint_url}/wpush/v1/{sealed(server, bytes(32))}"
    broken = {"Authorization": "vapid t=a.b.c,k=x", "Topic": "!"}
    bad = {"topic": "!", "encoding": None}

    async def error(endpoint: str, body: bytes = huge, **options: object) -> tuple[int, int | None]:
        return (await post(endpoint, body, **options)).error  # pyright: ignore[reportArgumentType]

    assert await error(nobody.replace("v1", "v9"), headers=broken) == (404, 102)
    assert await error(nobody, headers=broken) == (401, 109)
    assert await error(nobody, ttl=None) == (410, 106)
    assert await error(subscription.v1, ttl=None, **bad) == (413, 104)
    assert await error(subscription.v1, BODY, ttl=None, **bad) == (400, 111)
    assert await error(subscription.v1, BODY, ttl=-1, **bad) == (400, 110)
    assert await error(subscription.v1, BODY, ttl=-1, topic="!") == (400, 114)
    assert await error(subscription.v1, BODY, topic="!") == (400, 113)


async def test_pages_of_any_origin_may_post(subscription: Subscription) -> None:
    """C-115"""
    origin = "https://app.example.org"
    preflight = await http(
        "OPTIONS",
        subscription.v1,
        {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "ttl, content-encoding, authorization",
        },
    )
    answer = await accepted(subscription.v1, headers={"Origin": origin})
    refused = await post(subscription.v1, ttl=None, headers={"Origin": origin})

    assert preflight.status in (200, 204)
    assert "POST" in preflight.headers["access-control-allow-methods"]
    allowed = preflight.headers["access-control-allow-headers"].lower()
    assert {"ttl", "content-encoding", "authorization"} <= set(allowed.replace(" ", "").split(","))
    assert preflight.headers["access-control-max-age"] == "3600"
    for one in (preflight, answer, refused):
        assert one.headers["access-control-allow-origin"] in (origin, "*")
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert {"location", "www-authenticate", "ttl", "retry-after"} <= set(
        exposed.replace(" ", "").split(",")
    )


async def test_refused_posts_change_nothing(server: Serve, subscription: Subscription) -> None:
    """Promise 5"""
    agent = subscription.agent
    await agent.leave()
    for answer in (
        await post(subscription.v1, ttl=None),
        await post(subscription.v1, topic="!"),
        await post(subscription.v1, encoding="gzip"),
        await post(subscription.v1, b"x" * 6000),
        await post(subscription.v2, vapid=Vapid()),
    ):
        assert answer.status >= 400
    await agent.connect()

    await agent.expect_silence()


async def test_an_older_key_still_opens_endpoints(tmp_path: Path) -> None:
    """C-093: the new key is put in front; Location keeps a path prefix (trap T-14)."""
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    with Serve(tmp_path / "data", roles=("connect", "endpoint"), push__crypto_keys=old) as first:
        async with UserAgent(first.ws_url) as agent:
            await agent.connect()
            endpoint = await agent.subscribe(new_channel())
            answer = await accepted(endpoint)
            await agent.notification(ack=True)
            await agent.settled()
    with Serve(
        tmp_path / "data",
        roles=("connect", "endpoint"),
        port_base=first.addresses["ports"]["connect.port"],
        push__crypto_keys=f'["{new}", "{old}"]',
        endpoint__url=f"{first.endpoint_url}/prefix",
    ) as second:
        async with UserAgent(second.ws_url) as again:
            again.uaid = agent.uaid
            reply = await again.connect()
            later = await accepted(endpoint)

            assert reply["uaid"] == agent.uaid
            assert await again.notification(ack=True)
            assert (await http("DELETE", answer.headers["location"])).status == 204
            assert later.headers["location"].startswith(f"{first.endpoint_url}/prefix/m/")
            minted = (await again.register())["pushEndpoint"]
            assert minted.startswith(f"{first.endpoint_url}/prefix/wpush/v1/")
