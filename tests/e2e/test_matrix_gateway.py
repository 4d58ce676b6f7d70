"""A Matrix homeserver and a UnifiedPush distributor that meet at our endpoint."""

import json

import pytest

from tests.e2e.platform import Serve
from tests.e2e.wire_clients import Vapid, from_b64url, http, new_channel, user_agent

pytestmark = pytest.mark.e2e

NOTIFICATION = {
    "event_id": "$3957tyerfgewrf384",
    "room_id": "!slw48wfj34rtnrf:example.org",
    "type": "m.room.message",
    "prio": "high",
    "counts": {"unread": 2},
}


def notify(*pushkeys: str) -> bytes:
    devices = [{"app_id": "org.example.chat", "pushkey": key, "data": {}} for key in pushkeys]
    return json.dumps({"notification": {**NOTIFICATION, "devices": devices}}).encode()


async def test_a_client_finds_the_gateway(server: Serve) -> None:
    answer = await http("GET", f"{server.endpoint_url}/_matrix/push/v1/notify")

    assert answer.status == 200
    assert answer.json == {"unifiedpush": {"gateway": "matrix"}}


async def test_a_homeserver_reaches_a_device_and_hears_of_dead_ones(server: Serve) -> None:
    url = f"{server.endpoint_url}/_matrix/push/v1/notify"
    channel_id, gone = new_channel(), new_channel()
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe(channel_id)
        dead = await agent.subscribe(gone)
        bound = await agent.subscribe(key=Vapid().key)
        await agent.unregister(gone)
        foreign = "https://push.example.org/wpush/v1/gAAAA"
        answer = await http("POST", url, {}, notify(endpoint, dead, bound, foreign))
        message = await agent.notification(ack=True)

        assert answer.status == 200
        assert sorted(answer.json["rejected"]) == sorted([dead, bound, foreign])
        assert message["channelID"] == channel_id
        assert json.loads(from_b64url(message["data"])) == {"notification": NOTIFICATION}
        await agent.expect_silence(0.1)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"notification":{}}', notify()])
async def test_what_is_no_notification_is_refused(server: Serve, body: bytes) -> None:
    answer = await http("POST", f"{server.endpoint_url}/_matrix/push/v1/notify", {}, body)

    assert answer.status == 400
