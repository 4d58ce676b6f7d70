"""Every check of a POST, in its order, through the server's own routes."""

from typing import Any

import pytest

from tests.unit.push.endpoint.endpoint_world import CHID, NODE, UAID, World
from tests.unit.push.vapid_tokens import AUDIENCE, AppServer
from waystation.base.clock import ManualClock
from waystation.push.endpoint.observer import Observer
from waystation.push.model import ChannelId, MessageId, Notification, Uaid, Urgency
from waystation.push.token import Keys, new_key


@pytest.fixture
async def world() -> World:
    world = World()
    await world.subscribe(node_id=NODE)
    return world


class TestSuccess:
    async def test_location_and_ttl_are_told_and_the_body_is_empty(self, world: World) -> None:
        """C-037"""
        reply = await world.post(body=b"data", ttl="86400")

        assert (reply.status, reply.body) == (201, b"")
        assert reply.headers["TTL"] == "86400"
        notification = world.relay.pushed[0][2]
        assert reply.headers["Location"] == f"{AUDIENCE}/m/{notification.message_id}"

    async def test_what_the_node_gets_is_what_was_posted(self, world: World) -> None:
        reply = await world.post(
            body=b"x",
            ttl="60",
            topic="Inbox",
            urgency="high",
            content_encoding="aesgcm",
            encryption='salt="AAAA="',
            crypto_key="dh=BBBB",
        )
        notification = world.relay.pushed[0][2]

        assert reply.status == 201
        assert notification.channel_id == CHID
        assert notification.topic == "Inbox"
        assert notification.ttl_s == 60
        assert notification.urgency is Urgency.HIGH
        assert notification.accepted_at_ms == world.clock.now_ms()
        assert notification.headers == {
            "encoding": "aesgcm",
            "encryption": "salt=AAAA",
            "crypto_key": "dh=BBBB",
        }
        assert notification.sender is None
        assert world.ids.parse(notification.message_id).sort_key == notification.sort_key

    async def test_a_tickle_has_neither_data_nor_headers(self, world: World) -> None:
        """C-060, C-061"""
        await world.post(content_encoding="nonsense", encryption="bad")
        notification = world.relay.pushed[0][2]

        assert (notification.data, notification.headers) == (None, None)

    async def test_a_signed_post_to_a_v1_endpoint_is_fine(self, world: World) -> None:
        """C-038"""
        reply = await world.post(**world.signed())

        assert reply.status == 201
        assert world.relay.pushed[0][2].sender == world.sender.key_hash

    async def test_a_ttl_above_the_maximum_is_lowered(self, world: World) -> None:
        """C-096"""
        reply = await world.post(ttl="99999999")

        assert reply.headers["TTL"] == "2592000"
        assert world.relay.pushed[0][2].ttl_s == 2_592_000

    async def test_the_path_without_a_version_is_v1(self, world: World) -> None:
        reply = await world.post(world.path().replace("/v1/", "/"))

        assert reply.status == 201

    async def test_padding_in_the_url_is_fine_encoded_or_not(self, world: World) -> None:
        path = world.path("v2", world.sender.key_hash)

        assert (await world.post(path + "=", **world.signed())).status == 201
        assert (await world.post(path + "%3D", **world.signed())).status == 201

    async def test_a_prefix_of_the_public_url_stays_in_the_location(self) -> None:
        """T-14"""
        world = World()
        world.intake._created = world.intake._created.replace(b"example.org", b"example.org/prefix")
        await world.subscribe()
        reply = await world.post()

        assert reply.headers["Location"].startswith(f"{AUDIENCE}/prefix/m/")

    async def test_exactly_the_limit_fits(self, world: World) -> None:
        """C-103, C-062"""
        assert (await world.post(body=b"x" * 5630)).status == 201


class TestTokens:
    @pytest.mark.parametrize(
        "path", ["/wpush/v9/{}", "/wpush/V1/{}", "/wpush/v1/x{}", "/wpush/{}/"]
    )
    async def test_what_is_not_an_endpoint_is_404_102(self, world: World, path: str) -> None:
        """C-092"""
        token = world.path().rpartition("/")[2]
        reply = await world.post(path.format(token))

        assert (reply.status, reply.errno) == (404, 102)

    @pytest.mark.parametrize("token", ["", "x", "%00", "gAAAA", "a" * 3000, "é"])
    async def test_garbage_is_404_102(self, world: World, token: str) -> None:
        """C-092"""
        reply = await world.post(f"/wpush/v1/{token}")

        assert (reply.status, reply.errno, reply.message) == (404, 102, "Invalid token")

    async def test_a_token_of_another_key_is_404_102(self, world: World) -> None:
        """C-092"""
        other = Keys.parse(new_key(), ManualClock()).endpoint_token(UAID, CHID)
        reply = await world.post(f"/wpush/v1/{other}")

        assert (reply.status, reply.errno) == (404, 102)

    async def test_a_token_under_the_other_version_is_404_102(self, world: World) -> None:
        """C-094"""
        v1_as_v2 = world.path("v2")
        v2_as_v1 = world.path("v1", world.sender.key_hash)
        for path in (v1_as_v2, v2_as_v1, v1_as_v2, v2_as_v1):
            reply = await world.post(path, **world.signed())

            assert (reply.status, reply.errno) == (404, 102)

    async def test_a_remembered_endpoint_is_the_same_endpoint(self, world: World) -> None:
        path = world.path("v2", world.sender.key_hash)
        statuses = [(await world.post(path, **world.signed())).status for _ in range(3)]
        unsigned = await world.post(path)

        assert statuses == [201] * 3
        assert (unsigned.status, unsigned.message) == (401, "Missing VAPID public key")


class TestVapid:
    async def test_a_v2_endpoint_is_for_its_own_key_alone(self, world: World) -> None:
        """C-105"""
        path = world.path("v2", world.sender.key_hash)
        stranger = AppServer(8).authorization(world.now_s)

        assert (await world.post(path, **world.signed())).status == 201
        other = await world.post(path, authorization=stranger)
        assert (other.status, other.errno) == (401, 109)
        assert other.message == "VAPID public key mismatch"
        assert other.headers["WWW-Authenticate"] == "vapid"

    @pytest.mark.parametrize(
        "authorization", ["", "vapid", "Basic abc", "vapid t=x", "vapid k=x", "Bearer "]
    )
    async def test_a_header_that_is_there_must_be_right_even_on_v1(
        self, world: World, authorization: str
    ) -> None:
        """C-104"""
        reply = await world.post(authorization=authorization)

        assert (reply.status, reply.errno) == (401, 109)

    async def test_the_older_scheme_without_its_key_is_400_110(self, world: World) -> None:
        """C-110"""
        token = world.sender.token({"aud": AUDIENCE, "exp": world.now_s + 60})
        reply = await world.post(authorization=f"WebPush {token}")
        good = await world.post(
            authorization=f"WebPush {token}", crypto_key=f"p256ecdsa={world.sender.public_key}"
        )

        assert (reply.status, reply.errno) == (400, 110)
        assert good.status == 201

    @pytest.mark.parametrize(
        "claims",
        [{"exp": "@"}, {"exp": ["x"]}, {"exp": None}, {"aud": "https://other"}, {"aud": None}],
    )
    async def test_bad_claims_are_401_109(self, world: World, claims: dict[str, Any]) -> None:
        """C-107, C-108"""
        reply = await world.post(**world.signed(**claims))

        assert (reply.status, reply.errno) == (401, 109)


class TestRepeatedRequests:
    """Requests that differ little from one another are judged one by one."""

    @pytest.fixture
    async def world(self) -> World:
        world = World()
        await world.subscribe(node_id=NODE)
        return world

    async def test_its_token_ends_all_the_same(self, world: World) -> None:
        path, signed = world.path(), world.signed(exp=world.now_s + 10)
        for seconds, status in ((0, 201), (70, 201), (1, 401), (0, 401)):
            world.clock.advance(seconds)
            assert (await world.post(path, **signed)).status == status

    async def test_its_recipient_is_looked_up_each_time(self, world: World) -> None:
        path = world.path()
        assert (await world.post(path)).status == 201
        await world.store.remove_channel(UAID, CHID)
        assert (await world.post(path)).status == 410

    async def test_what_is_wrong_with_it_is_told_each_time(self, world: World) -> None:
        path = world.path()
        for _ in range(3):
            assert (await world.post(path, ttl="-1")).errno == 114
            assert (await world.post(path, b"data", content_encoding="x")).errno == 110
            assert (await world.post(path, b"x" * 5_631)).status == 413

    async def test_each_has_its_own_data_and_time(self, world: World) -> None:
        path = world.path()
        for body in (b"one", b"two"):
            world.clock.advance(1)
            assert (await world.post(path, body, ttl="9999999", urgency="high")).status == 201
        first, second = (pushed[2] for pushed in world.relay.pushed)

        assert (first.data, second.data) == ("b25l", "dHdv")
        assert second.accepted_at_ms - first.accepted_at_ms == 1000
        assert (first.ttl_s, first.urgency) == (second.ttl_s, second.urgency)
        assert second.urgency is Urgency.HIGH

    async def test_what_was_refused_is_refused_again(self, world: World) -> None:
        path = world.path("v2", world.sender.key_hash)
        stranger = AppServer(8).authorization(world.now_s)
        for _ in range(3):
            assert (await world.post(path, authorization=stranger)).status == 401
        assert (await world.post(path, **world.signed())).status == 201

    async def test_whoever_signs_is_asked_who_they_are(self, world: World) -> None:
        """All of these requests are alike but for their Authorization."""
        path, key_hash = world.path("v2", world.sender.key_hash), world.sender.key_hash
        stranger = AppServer(8).authorization(world.now_s)
        signed = [world.signed(exp=world.now_s + n) for n in (10, 20, 30)]
        for _ in range(3):
            assert (await world.post(path, authorization=stranger)).status == 401
            assert (await world.post(path, authorization="vapid t=a.b.c, k=d")).status == 401
            assert (await world.post(path)).status == 401
            for one in signed:
                assert (await world.post(path, **one)).status == 201
        assert {pushed[2].sender for pushed in world.relay.pushed} == {key_hash}

    async def test_of_a_v1_endpoint_each_sender_is_named(self, world: World) -> None:
        path, others = world.path(), [AppServer(number) for number in (8, 9)]
        for server in (*others, None, *others, None):
            signed = {} if server is None else {"authorization": server.authorization(world.now_s)}
            assert (await world.post(path, **signed)).status == 201
        told = [pushed[2].sender for pushed in world.relay.pushed]

        assert told == [others[0].key_hash, others[1].key_hash, None] * 2


class TestRecipients:
    async def test_an_unknown_user_agent_is_410_106(self, world: World) -> None:
        """C-113"""
        token = world.keys.endpoint_token(Uaid(bytes(16)), CHID)
        reply = await world.post(f"/wpush/v1/{token}")

        assert (reply.status, reply.errno, reply.message) == (410, 106, "No such subscription")
        assert reply.headers["Cache-Control"] == "max-age=86400"

    async def test_an_unknown_channel_is_410_106(self, world: World) -> None:
        """C-026"""
        token = world.keys.endpoint_token(UAID, ChannelId(bytes(16)))
        reply = await world.post(f"/wpush/v1/{token}")

        assert (reply.status, reply.errno) == (410, 106)

    async def test_a_record_of_no_known_kind_is_removed(self) -> None:
        """C-113"""
        world = World()
        await world.subscribe(router_type="gcm")
        reply = await world.post()

        assert (reply.status, reply.errno) == (410, 106)
        assert await world.store.get_user_agent(UAID) is None

    async def test_a_record_of_another_kind_is_400_108_and_stays(self) -> None:
        """C-152"""
        world = World()
        await world.subscribe(router_type="simplepush")
        reply = await world.post()

        assert (reply.status, reply.errno) == (400, 108)
        assert await world.store.get_user_agent(UAID) is not None


class TestRequests:
    @pytest.mark.parametrize("ttl", [None, "abc", "1.5", "", " 5"])
    async def test_without_a_ttl_it_is_400_111(self, world: World, ttl: str | None) -> None:
        """C-095"""
        reply = await world.post(ttl=ttl)

        assert (reply.status, reply.errno, reply.message) == (400, 111, "Missing TTL value")

    async def test_a_negative_ttl_is_400_114(self, world: World) -> None:
        """C-095"""
        reply = await world.post(ttl="-1")

        assert (reply.status, reply.errno) == (400, 114)
        assert "TTL must be greater than 0" in reply.message

    async def test_topics(self, world: World) -> None:
        """C-097"""
        for topic in ("x" * 33, "a!", "a b"):
            reply = await world.post(topic=topic)
            assert (reply.status, reply.errno) == (400, 113)
        assert (await world.post(topic="x" * 32)).status == 201

    async def test_encryption_headers(self, world: World) -> None:
        """C-098 to C-102"""
        bad: list[dict[str, Any]] = [
            {"content_encoding": None},
            {"content_encoding": "gzip"},
            {"content_encoding": "aesgcm"},
            {"content_encoding": "aesgcm", "encryption": "keyid=a"},
            {"content_encoding": "aesgcm", "encryption": "salt=a", "crypto_key": "a=b"},
            {"crypto_key": "dh=a"},
            {"encryption": "salt=a"},
            {"crypto_key": "a"},
        ]
        for headers in bad:
            reply = await world.post(body=b"x", **headers)
            assert (reply.status, reply.errno) == (400, 110), headers
        good: list[dict[str, Any]] = [
            {"content_encoding": "aesgcm", "encryption": "salt=a"},
            {"crypto_key": "p256ecdsa=a"},
        ]
        for headers in good:
            assert (await world.post(body=b"x", **headers)).status == 201

    async def test_a_body_over_the_limit_is_413_104(self, world: World) -> None:
        """C-103"""
        reply = await world.post(body=b"x" * 5631)

        assert (reply.status, reply.errno) == (413, 104)
        assert "5630" in reply.message

    async def test_the_order_of_the_checks_is_that_of_the_table(self, world: World) -> None:
        """Each request breaks everything from one step on; mending a step shows the next."""
        large = b"x" * 6000
        stranger = AppServer(8)
        token = world.keys.endpoint_token(Uaid(bytes(16)), CHID, world.sender.key_hash)
        bad: dict[str, Any] = {"ttl": "-1", "topic": "!", "authorization": "WebPush a.b.c"}
        seen: list[tuple[int, int | None]] = []

        async def look(path: str, body: bytes, **changes: Any) -> None:
            bad.update(changes)
            reply = await world.post(path, body, **bad)
            seen.append((reply.status, reply.errno))

        await look(f"/wpush/v9/{token}", large)
        await look("/wpush/v2/garbage", large)
        await look(f"/wpush/v1/{token}", large)
        await look(f"/wpush/v1/{token}", large, authorization="vapid t=a.b.c,k=d")
        await look(f"/wpush/v1/{token}", large, authorization=stranger.authorization(world.now_s))
        await look(f"/wpush/v2/{token}", large)
        await look(f"/wpush/v2/{token}", large, **world.signed())
        path = world.path("v2", world.sender.key_hash)
        await look(path, large)
        await look(path, b"x", ttl="soon", content_encoding="gzip")
        await look(path, b"x", ttl="-1")
        await look(path, b"x", content_encoding="aes128gcm")
        await look(path, b"x", ttl="5")
        await look(path, b"x", topic="fine")

        assert (
            seen
            == [
                (404, 102),  # 1 API version
                (404, 102),  # 2 token
                (400, 110),  # 4 Crypto-Key of the older scheme, before the token's length
                (401, 109),  # 5 signature
                (404, 102),  # 6 length
                (401, 109),  # 7 owner
                (410, 106),  # 8 record, before the body is judged
                (413, 104),  # 11
                (400, 111),  # 12 before the encoding
                (400, 110),  # 13 before the sign of the TTL
                (400, 114),  # 14
                (400, 113),  # 15
                (201, None),
            ]
            or seen[-1][0] == 201
        )
        assert not await world.stored()


class TestWithdrawal:
    async def test_a_stored_message_is_gone_after_delete(self, world: World) -> None:
        """C-063"""
        world = World()
        await world.subscribe()
        cases: list[dict[str, Any]] = [{}, {"topic": "Inbox"}]
        for headers in cases:
            location = (await world.post(**headers)).headers["Location"]
            assert len(await world.stored()) == 1
            reply = await world.ask("DELETE", location.removeprefix(AUDIENCE))

            assert (reply.status, reply.body) == (204, b"")
            assert not await world.stored()

    async def test_what_is_withdrawn_is_told_and_its_status_is_final(self) -> None:
        """Once, and only of what was still stored."""
        told: list[MessageId] = []

        class Listening(Observer):
            def withdrawn(self, notification: Notification) -> None:
                told.append(notification.message_id)

        world = World(observer=Listening())
        await world.subscribe()
        signed = AppServer(8).authorization(world.now_s)
        location = (await world.post(authorization=signed, topic="Inbox")).headers["Location"]
        for _ in range(2):
            await world.ask("DELETE", location.removeprefix(AUDIENCE))
        await world.milestones.flush()
        status = await world.store.get_status(
            MessageId(location.rpartition("/")[2]), now_ms=world.clock.now_ms()
        )

        assert told == [location.rpartition("/")[2]]
        assert status is not None
        assert list(status.milestones) == ["received", "stored", "withdrawn"]

    async def test_an_id_that_lost_its_padding_is_still_that_id(self) -> None:
        world = World()
        await world.subscribe()
        topics = ("a", "ab", "abc", "abcd")
        for topic in topics:
            location = (await world.post(topic=topic)).headers["Location"]
            await world.ask("DELETE", location.removeprefix(AUDIENCE).rstrip("="))

        assert not await world.stored()

    async def test_one_of_many_topics_that_begin_alike_is_deleted(self) -> None:
        """Their sort keys begin alike as well."""
        world = World()
        await world.subscribe()
        letters = "-0123456789ABCDEFZ_abcdefz"
        location = ""
        for topic in ("x", *(f"x{letter}" for letter in letters), *(f"x{n:03}" for n in range(40))):
            location = (await world.post(topic=topic)).headers["Location"]
            if topic in ("x", "x_", "xz"):
                await world.ask("DELETE", location.removeprefix(AUDIENCE))
        await world.ask("DELETE", location.removeprefix(AUDIENCE))
        topics = {row.topic for row in await world.stored()}

        assert len(topics) == 1 + len(letters) + 40 - 4
        assert not topics & {"x", "x_", "xz", "x039"}

    async def test_deleting_what_was_replaced_leaves_its_replacement(self) -> None:
        """T-3"""
        world = World()
        await world.subscribe()
        first = (await world.post(topic="Inbox")).headers["Location"]
        await world.post(topic="Inbox")
        reply = await world.ask("DELETE", first.removeprefix(AUDIENCE))

        assert reply.status == 204
        assert len(await world.stored()) == 1

    async def test_an_unknown_but_valid_id_is_204(self, world: World) -> None:
        """C-065"""
        message_id, _ = world.ids.for_timestamp(UAID, CHID, 5)

        assert (await world.ask("DELETE", f"/m/{message_id}")).status == 204

    @pytest.mark.parametrize("message_id", ["", "x", "gAAAA", "%ff"])
    async def test_a_garbage_id_is_400(self, world: World, message_id: str) -> None:
        """C-064"""
        reply = await world.ask("DELETE", f"/m/{message_id}")

        assert (reply.status, reply.errno, reply.message) == (400, None, "Invalid message ID")


class TestTracking:
    async def test_only_tracked_senders_get_a_reliability_id(self) -> None:
        """C-157"""
        tracked = AppServer(9)
        world = World(tracked=frozenset({tracked.key_hash}))
        await world.subscribe(node_id=NODE)
        await world.post(authorization=tracked.authorization(world.now_s), x_messageid="mine-1")
        await world.post(authorization=tracked.authorization(world.now_s), x_messageid="bad id!")
        await world.post(**world.signed(), x_messageid="mine-2")
        await world.post(x_messageid="mine-3")
        ids = [notification.reliability_id for _, _, notification in world.relay.pushed]

        assert ids[0] == "mine-1"
        assert ids[1] is not None
        assert len(ids[1]) == 32
        assert ids[2:] == [None, None]

    async def test_a_tracked_message_is_counted_in_one_state(self) -> None:
        """C-156, the endpoint's side."""
        tracked = AppServer(9)
        world = World(tracked=frozenset({tracked.key_hash}))
        await world.subscribe()
        signed: dict[str, Any] = {"authorization": tracked.authorization(world.now_s)}
        await world.post(**signed)
        await world.post(ttl="0", **signed)
        await world.milestones.flush()
        counts = await world.store.count_milestones(now_ms=world.clock.now_ms())

        assert {state: n for state, n in counts.items() if n} == {"stored": 1, "expired": 1}
