"""Rows as Autopush's generations wrote them, and ours as they read them."""

from typing import Any

import pytest

from waystation.base.ids import dashed
from waystation.push.model import (
    TTL_MAX_S,
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Urgency,
    UserAgent,
)
from waystation.storage.dynamodb.layout import (
    Keys,
    UnreadableRowError,
    decode_channels,
    decode_notification,
    decode_record,
    encode_notification,
    from_attribute,
    is_legacy,
    over,
    record_fields,
    to_attribute,
)

UAID = Uaid(bytes.fromhex("5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"))
CHANNEL = ChannelId(bytes.fromhex("c0ffee0012344abc8def0123456789ab"))
CHID = dashed(CHANNEL)
KEYS = Keys()
NOW_S = 1_700_000_000

ROW_OF_AUTOPUSH: dict[str, Any] = {
    "uaid": {"S": "5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"},
    "chidmessageid": {"S": f"02:1700000000123:{CHID}"},
    "timestamp": {"N": str(NOW_S)},
    "expiry": {"N": str(NOW_S + 60)},
    "ttl": {"N": "60"},
    "data": {"S": "AbC_"},
    "headers": {"M": {"encoding": {"S": "aesgcm"}, "crypto_key": {"S": "dh=x"}}},
    "updateid": {"S": "gAAAAA-version"},
}


class TestKeys:
    def test_a_uaid_has_no_dashes_and_the_channel_set_a_blank(self) -> None:
        assert KEYS.channels(UAID) == {
            "uaid": {"S": "5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"},
            "chidmessageid": {"S": " "},
        }

    def test_with_a_key_hash_a_uaid_is_its_hmac(self) -> None:
        """HMAC-SHA-256 of the text, as RFC 4231 case 2 shows for another one"""
        text = Keys("Jefe").uaid(UAID)["S"]

        assert len(text) == 64
        assert text != Keys("other").uaid(UAID)["S"]
        assert "5f2b1c0d" not in text


class TestNotifications:
    def test_a_row_of_autopush_is_read(self) -> None:
        assert decode_notification(ROW_OF_AUTOPUSH) == Notification(
            CHANNEL,
            MessageId("gAAAAA-version"),
            SortKey(f"02:1700000000123:{CHID}"),
            NOW_S * 1000,
            60,
            data="AbC_",
            headers={"encoding": "aesgcm", "crypto_key": "dh=x"},
        )

    def test_a_topic_of_autopush_is_read(self) -> None:
        row = ROW_OF_AUTOPUSH | {"chidmessageid": {"S": f"01:{CHID}:news"}}

        assert decode_notification(row).topic == "news"

    def test_a_row_of_before_2017_is_read(self) -> None:
        """§5.3: its key holds the message id; `updateid` is something else"""
        row = ROW_OF_AUTOPUSH | {
            "chidmessageid": {"S": f"{CHID}:gAAAAA-legacy"},
            "updateid": {"S": "0123456789abcdef"},
        }

        assert decode_notification(row).message_id == "gAAAAA-legacy"
        assert is_legacy(f"{CHID}:gAAAAA-legacy")

    def test_a_row_without_payload_is_read(self) -> None:
        bare = {"data": {"NULL": True}, "headers": {"NULL": True}}

        read = decode_notification(ROW_OF_AUTOPUSH | bare)
        assert (read.data, read.headers) == (None, None)

    @pytest.mark.parametrize("sort_key", ["02:1700000000123:{0}", "02:1700000000123:{0}:7f"])
    def test_ours_comes_back_as_it_was(self, sort_key: str) -> None:
        whole = Notification(
            CHANNEL,
            MessageId("gAAAAA-1"),
            SortKey(sort_key.format(CHID)),
            NOW_S * 1000 + 123,
            60,
            data="AbC_",
            headers={"encoding": "aes128gcm"},
            urgency=Urgency.HIGH,
            sender=bytes(range(32)),
            reliability_id="r",
            reliable_state="stored",
        )
        row = encode_notification(KEYS.message(UAID, whole.sort_key), whole)

        assert decode_notification(row) == whole

    def test_ours_has_everything_that_autopush_asks_of_a_row(self) -> None:
        """It needs uaid, key, expiry, timestamp and updateid, and passes over what it does not
        know, as long as that is text or a number."""
        ours = decode_notification(ROW_OF_AUTOPUSH)
        row = encode_notification(KEYS.message(UAID, ours.sort_key), ours)

        assert row.items() >= ROW_OF_AUTOPUSH.items()
        added = {name: row[name] for name in row.keys() - ROW_OF_AUTOPUSH.keys()}
        assert added == {"accepted_ms": {"N": str(NOW_S * 1000)}}

    def test_no_row_is_kept_for_more_than_thirty_days(self) -> None:
        long = Notification(CHANNEL, MessageId("m"), SortKey(f"01:{CHID}:t"), NOW_S * 1000, 10**8)

        row = encode_notification({}, long)
        assert row["expiry"] == {"N": str(NOW_S + TTL_MAX_S)}

    @pytest.mark.parametrize(
        "change",
        [
            {"chidmessageid": {"S": "02:1:no-channel"}},
            {"chidmessageid": {"S": f"01:{CHID}"}},
            {"chidmessageid": {"S": f"01:{CHID}:a:b"}},
            {"chidmessageid": {"S": f"02:1:{CHID}:2:3"}},
            {"chidmessageid": {"S": "word"}},
            {"updateid": {"NULL": True}},
            {"timestamp": {"NULL": True}},
        ],
    )
    def test_what_nobody_has_written_is_told_apart(self, change: dict[str, Any]) -> None:
        with pytest.raises(UnreadableRowError):
            decode_notification(ROW_OF_AUTOPUSH | change)


class TestRecords:
    def test_a_record_of_autopush_is_read(self) -> None:
        row: dict[str, Any] = {
            "uaid": {"S": "5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"},
            "connected_at": {"N": "1700000000123"},
            "router_type": {"S": "fcm"},
            "router_data": {"M": {"token": {"S": "t"}, "app_id": {"S": "a"}}},
            "node_id": {"S": "http://10.0.0.7:8081"},
            "record_version": {"N": "1"},
            "last_connect": {"N": "2026110700003"},
            "current_month": {"S": "message_2026_11"},
        }

        assert decode_record(UAID, row, behind=False) == UserAgent(
            uaid=UAID,
            connected_at_ms=1_700_000_000_123,
            router_type="fcm",
            router_data={"token": "t", "app_id": "a"},
            node_id="http://10.0.0.7:8081",
        )

    def test_a_row_of_its_key_alone_is_no_record(self) -> None:
        with pytest.raises(UnreadableRowError):
            decode_record(UAID, {"uaid": {"S": "x"}}, behind=False)

    def test_ours_comes_back_as_it_was(self) -> None:
        whole = UserAgent(
            uaid=UAID,
            connected_at_ms=5,
            router_type="apns",
            router_data={"a": [1, 2.5, None, True, {"b": "ä"}]},
            node_id="http://n",
            record_version=None,
            current_timestamp_ms=7,
        )
        row = {name: value for name, value in record_fields(whole).items() if value is not None}

        assert decode_record(UAID, row, behind=False) == whole
        assert "record_version" not in row


class TestChannels:
    def test_the_set_is_read_and_what_is_no_channel_passed_over(self) -> None:
        row = {"chids": {"SS": [CHID, "nonsense"]}}

        assert decode_channels(row, now_s=NOW_S) == {CHANNEL}

    def test_a_set_whose_time_is_over_is_empty(self) -> None:
        row = {"chids": {"SS": [CHID]}, "expiry": {"N": str(NOW_S)}}

        assert decode_channels(row, now_s=NOW_S - 1) == {CHANNEL}
        assert decode_channels(row, now_s=NOW_S) == frozenset()
        assert decode_channels(None, now_s=NOW_S) == frozenset()
        assert over(row, NOW_S)
        assert not over({}, NOW_S), "rows of older generations have no expiry"


def test_values_of_json_come_back() -> None:
    value = {"a": [1, -2, 2.5, "", "ä", None, True, False, []], "b": {}}

    assert from_attribute(to_attribute(value)) == value


def test_what_json_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        to_attribute(b"")
