import pytest
from cryptography.fernet import Fernet as Reference
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.clock import ManualClock
from waystation.push.errors import InvalidMessageIdError, InvalidTokenError
from waystation.push.model import ChannelId, Uaid
from waystation.push.token import (
    EndpointToken,
    InvalidKeyError,
    Keys,
    MessageIds,
    new_key,
    parse_key_list,
    split_token,
)

# The vectors of the wire specification, section 14.1.
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
UAID = Uaid(bytes.fromhex("0f1e2d3c4b5a469788796a5b4c3d2e1f"))
CHID = ChannelId(bytes.fromhex("c0ffee0012344abc8def0123456789ab"))
KEY_HASH = bytes.fromhex("0ed3a6ab957ff6f59a9630a473d31a7d04fcb46548b89016196980c7e96584f6")
V1 = (
    b"gAAAAABlU_EABwcHBwcHBwcHBwcHBwcHBy0wwmX_jZK5A3x27mP_K_DFb7i-9NSYDpiMwX5mbQ7UENsQAfC7ZlbYWa3V"
    b"JLgc5pWIplyZx-9usZVkxfEPwI4_TEkDrB_GifcP3fZwn2rU"
)
V2 = (
    b"gAAAAABlU_EABwcHBwcHBwcHBwcHBwcHBy0wwmX_jZK5A3x27mP_K_DFb7i-9NSYDpiMwX5mbQ7UCHBttsm5_Wz-smVf"
    b"ZBbX9aJG2qRsjbMdwC6Ej5dujdW8hO8jhWGzqSQrzc0qCFYgUOX3fECKURogqogE-Ugs_kFp3a34qCvUPRG-WM3bEtI"
)
TIMESTAMP_ID = (
    "gAAAAABlU_EABwcHBwcHBwcHBwcHBwcHBzDfClc2LSNBv0jLm97BnA6mq4Dtq5FWQf42HhQ8uiI-xxyyjyrDuw09bNDs"
    "hMs6-nT_r6eqyVQWBpLGdPEe2DVCwdZHD-EBBqTqEQQ4XwGsEZBgxvyJSKDqaNPT_SjFxLV_v81G4VWKIf_gA9D1Rwdi"
    "4J78Tt1247DEJEj2Ykk3"
)
TOPIC_ID = (
    "gAAAAABlU_EABwcHBwcHBwcHBwcHBwcHB9j-EKuHPgiq2HNP9GHUhIt0uewwqgsWPNex3fVtKuP1DPnXt2zU-yhzrxSk"
    "lrLkZ6il-s4QQ7g0RkXmuL6kzeUlBGUsbj9TKXZx6OmbN-Q9qAvjmvNeS2gRjd-EGagxO21yKVhLXy4PWgZX1MiHFQg="
)


@pytest.fixture
def keys() -> Keys:
    return Keys.parse(KEY, ManualClock())


@pytest.fixture
def ids(keys: Keys) -> MessageIds:
    return MessageIds(keys, ManualClock())


class TestEndpointTokens:
    def test_the_specified_vectors_open(self, keys: Keys) -> None:
        assert keys.open_endpoint("v1", V1) == EndpointToken(UAID, CHID)
        assert keys.open_endpoint("v2", V2) == EndpointToken(UAID, CHID, KEY_HASH)

    def test_padding_may_be_there_or_not(self, keys: Keys) -> None:
        assert keys.open_endpoint("v2", V2 + b"=") == EndpointToken(UAID, CHID, KEY_HASH)

    def test_lengths_are_those_of_autopush(self, keys: Keys) -> None:
        assert len(keys.endpoint_token(UAID, CHID)) == 140
        assert len(keys.endpoint_token(UAID, CHID, KEY_HASH)) == 183

    def test_what_was_minted_opens_and_no_two_are_alike(self, keys: Keys) -> None:
        one, two = (keys.endpoint_token(UAID, CHID, KEY_HASH) for _ in range(2))

        assert one != two
        assert keys.open_endpoint("v2", one.encode()) == EndpointToken(UAID, CHID, KEY_HASH)
        assert keys.open_endpoint("v2", two.encode()) == EndpointToken(UAID, CHID, KEY_HASH)

    def test_a_token_under_the_other_version_is_invalid(self, keys: Keys) -> None:
        """C-094"""
        with pytest.raises(InvalidTokenError, match="Invalid token"):
            keys.open_endpoint("v2", V1)
        with pytest.raises(InvalidTokenError, match="Invalid token"):
            keys.open_endpoint("v1", V2)

    def test_a_token_of_another_key_is_invalid(self, keys: Keys) -> None:
        """C-092"""
        other = Keys.parse(new_key(), ManualClock())

        with pytest.raises(InvalidTokenError):
            other.open_token(V1)

    def test_the_second_key_still_opens(self) -> None:
        """C-093"""
        rotated = Keys.parse(f"[{new_key()}, {KEY}]", ManualClock())

        assert rotated.open_endpoint("v1", V1) == EndpointToken(UAID, CHID)

    def test_the_first_key_seals(self) -> None:
        newest = new_key()
        token = Keys.parse(f"{newest},{KEY}", ManualClock()).seal(b"text")

        assert Reference(newest).decrypt(token) == b"text"

    @given(st.binary(max_size=1500))
    def test_anything_else_is_invalid_and_nothing_worse(self, noise: bytes) -> None:
        with pytest.raises(InvalidTokenError):
            Keys.parse(KEY, ManualClock()).open_token(noise)

    @pytest.mark.parametrize("length", [0, 16, 31, 33, 63, 65])
    @pytest.mark.parametrize("version", ["v1", "v2"])
    def test_only_two_lengths_are_tokens(self, version: str, length: int) -> None:
        with pytest.raises(InvalidTokenError):
            split_token(version, bytes(length))


class TestKeyLists:
    @pytest.mark.parametrize(
        "spelling",
        [
            "{a},{b}",
            "[{a},{b}]",
            "[ {a} , {b} ]",
            '["{a}","{b}"]',
            "['{a}', '{b}']",
            '"{a}","{b}"',
            "{a} {b}",
            "\n[\n  {a},\n  {b},\n]\n",
        ],
    )
    def test_every_spelling_gives_the_same_keys(self, spelling: str) -> None:
        """C-160"""
        b = new_key()

        assert parse_key_list(spelling.format(a=KEY, b=b)) == parse_key_list(KEY) + parse_key_list(
            b
        )

    def test_padding_and_alphabet_are_forgiven(self) -> None:
        key = "-_" * 21 + "8"

        assert parse_key_list(key) == parse_key_list("+/" * 21 + "8=")

    @pytest.mark.parametrize(
        "text, says",
        [
            ("", "empty"),
            ("[]", "empty"),
            (f"{KEY},shorty", "crypto key 2 has"),
            ("no*base64", "crypto key 1 is not base64url"),
            (KEY[:20], "a Fernet key has 32"),
        ],
    )
    def test_a_bad_list_says_which_entry_and_why_but_not_the_key(
        self, text: str, says: str
    ) -> None:
        with pytest.raises(InvalidKeyError, match=says) as raised:
            parse_key_list(text)
        assert KEY not in str(raised.value)


class TestMessageIds:
    def test_the_specified_vectors_lead_to_their_rows(self, ids: MessageIds) -> None:
        stamp, topic = ids.parse(TIMESTAMP_ID), ids.parse(TOPIC_ID)

        assert stamp.uaid == topic.uaid == UAID
        assert stamp.channel_id == topic.channel_id == CHID
        assert stamp.sort_key == "02:1700000000123:c0ffee00-1234-4abc-8def-0123456789ab"
        assert topic.sort_key == "01:c0ffee00-1234-4abc-8def-0123456789ab:Inbox"

    def test_an_id_leads_to_the_sort_key_it_was_minted_with(self, ids: MessageIds) -> None:
        for message_id, sort_key in (
            ids.for_timestamp(UAID, CHID, 1_700_000_000_123),
            ids.for_topic(UAID, CHID, "Inbox"),
        ):
            parsed = ids.parse(message_id)

            assert (parsed.uaid, parsed.channel_id, parsed.sort_key) == (UAID, CHID, sort_key)

    def test_messages_of_one_millisecond_differ_and_keep_their_order(self, ids: MessageIds) -> None:
        """C-085, within one worker."""
        minted = [ids.for_timestamp(UAID, CHID, 1_700_000_000_123)[1] for _ in range(300)]

        assert len(set(minted)) == 300
        assert minted == sorted(minted)

    def test_two_workers_never_mint_the_same_key(self, keys: Keys) -> None:
        """C-085, across workers."""
        one, two = MessageIds(keys, ManualClock()), MessageIds(keys, ManualClock())
        minted = {
            worker.for_timestamp(UAID, CHID, 1_700_000_000_123)[1]
            for worker in (one, two)
            for _ in range(200)
        }

        assert len(minted) == 400

    def test_a_clock_that_goes_back_does_not_repeat_keys(self, ids: MessageIds) -> None:
        first = ids.for_timestamp(UAID, CHID, 100)[1]
        ids.for_timestamp(UAID, CHID, 200)

        assert ids.for_timestamp(UAID, CHID, 100)[1] != first

    def test_the_autopush_form_has_three_parts_and_moves_on_by_a_millisecond(
        self, keys: Keys
    ) -> None:
        ids = MessageIds(keys, ManualClock(), sort_keys="autopush")
        minted = [ids.for_timestamp(UAID, CHID, 1000)[1] for _ in range(3)]

        assert minted == [
            f"02:{ms}:c0ffee00-1234-4abc-8def-0123456789ab" for ms in (1000, 1001, 1002)
        ]

    def test_the_legacy_form_is_understood(self, keys: Keys, ids: MessageIds) -> None:
        legacy = keys.seal(f"m:{UAID.hex()}:{CHID.hex()}".encode())

        assert ids.parse(legacy).sort_key == f"c0ffee00-1234-4abc-8def-0123456789ab:{legacy}"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "02",
            f"02:{UAID.hex()}:{CHID.hex()}",
            f"02:{UAID.hex()}:{CHID.hex()}:soon",
            f"02:{UAID.hex()}:{CHID.hex()}:-5",
            f"02:{UAID.hex()}:{CHID.hex()}:5:n:more",
            f"02:{UAID.hex()}:{CHID.hex()}:5:",
            f"01:{UAID.hex()}:{CHID.hex()}",
            f"01:{UAID.hex()}:{CHID.hex()}:",
            f"01:{UAID.hex()}:{CHID.hex()}:a:b",
            f"03:{UAID.hex()}:{CHID.hex()}:5",
            f"m:{UAID.hex()}:{CHID.hex()}:5",
            f"02:nobody:{CHID.hex()}:5",
            f"02:{UAID.hex()}:nothing:5",
            f"01:{UAID.hex()}:{CHID.hex()}:é",
        ],
    )
    def test_an_ill_formed_text_is_invalid(self, keys: Keys, ids: MessageIds, text: str) -> None:
        """C-064"""
        with pytest.raises(InvalidMessageIdError, match="Invalid message ID"):
            ids.parse(keys.seal(text.encode()))

    @given(st.one_of(st.text(max_size=300), st.binary(max_size=1500)))
    def test_garbage_is_invalid_and_nothing_worse(self, garbage: str | bytes) -> None:
        ids = MessageIds(Keys.parse(KEY, ManualClock()), ManualClock())

        with pytest.raises(InvalidMessageIdError):
            ids.parse(garbage)
