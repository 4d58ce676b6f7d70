"""Bridged devices while FCM and APNs misbehave at random: a 201 is a promise there too."""

import asyncio
import base64
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.platform import Serve
from tests.e2e.stores import opened
from tests.servers.http2_double import Asked, Fault, Said
from tests.servers.vendors import ApnsDouble, FcmDouble
from tests.unit.waiting import until
from waystation.base.ids import parse_uuid
from waystation.client.http import HttpClient
from waystation.push.model import Uaid

pytestmark = pytest.mark.e2e

AT_ONCE = 64
ANSWERS = {201, 410, 502, 503}


class Device(msgspec.Struct, frozen=True):
    uaid: str
    endpoint: str
    token: str
    kind: str


class Trouble:
    """What a vendor does instead of taking a message, by chance."""

    def __init__(self, seed: int, vendor: FcmDouble | ApnsDouble, gone: Said) -> None:
        self._random = random.Random(seed)
        self._vendor = vendor
        self._gone = gone
        self.counts: Counter[str] = Counter()

    def __call__(self, asked: Asked) -> Said | tuple[Fault, Said] | Fault | None:
        what: Any = self._random.choices(
            (
                None,
                (Fault.GOAWAY_AFTER, Said(200)),
                *(Fault.GOAWAY_BEFORE, Fault.REFUSE, Fault.RESET, Fault.CUT, Fault.HANG),
                Said.of(400, {"reason": "Odd", "error": {"status": "INVALID_ARGUMENT"}}),
                self._gone,
            ),
            weights=(1000, 5, 3, 10, 3, 2, 1, 10, 20),
        )[0]
        if what is self._gone:
            self._vendor.gone.add(self._token(asked))
            what = None  # the double answers what a vendor says of an unknown device
        self.counts[str(what)] += 1
        return what

    @staticmethod
    def _token(asked: Asked) -> str:
        if asked.path.startswith("/3/device/"):
            return asked.path.removeprefix("/3/device/")
        return json.loads(asked.body)["message"]["token"]


async def registered(http: HttpClient, server: Serve, kind: str, number: int) -> Device:
    app_id = "app" if kind == "fcm" else "release"
    token = f"{kind}-device-{number}"
    answer = await http.request(
        "POST",
        f"{server.endpoint_url}/v1/{kind}/{app_id}/registration",
        headers={"Content-Type": "application/json"},
        body=json.dumps({"token": token}).encode(),
    )
    assert answer.status == 200, answer.body
    made = json.loads(answer.body)
    return Device(made["uaid"], made["endpoint"], token, kind)


async def check_storm(tmp_path: Path, *, devices: int, messages: int) -> None:
    chance = random.Random(17)
    async with FcmDouble(streams_max=32) as fcm, ApnsDouble(streams_max=32) as apns:
        server = Serve(
            tmp_path / "data",
            roles=("endpoint",),
            fcm__credentials=fcm.credentials(),
            fcm__base_url=fcm.url,
            fcm__timeout_s=2,
            apns__channels=apns.channels(),
            apns__base_url=apns.url,
            apns__request_timeout_s=2,
            endpoint__rate_registrations=0,
        )
        with server:
            async with HttpClient() as http:
                known = [
                    await registered(http, server, kind, number)
                    for kind in ("fcm", "apns")
                    for number in range(devices // 2)
                ]
                fcm.fault, apns.fault = (
                    Trouble(1, fcm, Said(404)),
                    Trouble(2, apns, Said(410)),
                )
                gate = asyncio.Semaphore(AT_ONCE)
                accepted: set[tuple[str, str]] = set()  # device token, body
                answers: Counter[int] = Counter()

                async def post(number: int) -> None:
                    device = chance.choice(known)
                    body = f"message {number}".encode()
                    async with gate:
                        answer = await http.request(
                            "POST",
                            device.endpoint,
                            headers={"TTL": "600", "Content-Encoding": "aes128gcm"},
                            body=body,
                        )
                    answers[answer.status] += 1
                    if answer.status == 201:
                        accepted.add((device.token, f"message {number}"))

                await asyncio.gather(*(post(number) for number in range(messages)))
                fcm.fault = apns.fault = lambda _: None
                # An answer may have been lost with its connection: the next message tells it.
                for device in known:
                    if device.token in fcm.gone | apns.gone:
                        again = await http.request("POST", device.endpoint, headers={"TTL": "600"})
                        assert again.status == 410
                await until(lambda: len(fcm.http.connections) + len(apns.http.connections) <= 4)

            taken = Counter(
                (token, _text(message.get("data", message)))
                for double in (fcm, apns)
                for token, message in double.taken
            )
            gone = fcm.gone | apns.gone
            left = {device.uaid for device in known if device.token in gone}
            async with opened(server) as store:
                still = [
                    uaid for uaid in left if await store.get_user_agent(_uaid(uaid)) is not None
                ]

    assert set(answers) <= ANSWERS, answers
    assert answers[201] > messages / 2
    assert accepted <= set(taken), "a 201 that no vendor took"
    assert max(taken.values()) == 1, "a vendor was given a message twice"
    assert left
    assert still == [], "a device that the vendor does not know is still there"
    assert fcm.complaints == apns.complaints == []


def _uaid(text: str) -> Uaid:
    raw = parse_uuid(text)
    assert raw is not None
    return Uaid(raw)


def _text(fields: dict[str, Any]) -> str:
    body = fields["body"]
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()


async def test_what_is_answered_201_was_taken_as_it_was_sent(tmp_path: Path) -> None:
    await check_storm(tmp_path, devices=100, messages=1000)


@pytest.mark.soak
async def test_ten_thousand_messages_to_a_thousand_devices(tmp_path: Path) -> None:
    await check_storm(tmp_path, devices=1000, messages=10_000)
