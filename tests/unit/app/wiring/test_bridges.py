"""Which bridges a worker has, by its settings."""

import json
import sys

import msgspec
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.servers.vendors import pem_of
from waystation.app.settings import Settings
from waystation.app.wiring.bridges import Bridges
from waystation.base.clock import ManualClock
from waystation.base.settings import SettingsError
from waystation.ops.doctor import Verdict, check_bridges
from waystation.push.errors import UnknownAppError, UnknownChannelError, UnknownRouterTypeError
from waystation.push.settings import Apns, Fcm, Stub

RSA = pem_of(rsa.generate_private_key(public_exponent=65537, key_size=2048))
EC = pem_of(ec.generate_private_key(ec.SECP256R1()))
ACCOUNT = {"client_email": "a@b", "private_key": RSA}
FCM = Fcm(credentials=json.dumps({"app": {"project_id": "p", "credential": json.dumps(ACCOUNT)}}))
APNS = Apns(channels=json.dumps({"release": {"key": EC, "key_id": "k", "team_id": "t"}}))
H2 = "waystation.net.http2.client"


def part(settings: Settings) -> Bridges:
    return Bridges(settings, clock=ManualClock(), log=structlog.get_logger())


async def test_without_settings_every_bridge_refuses_in_its_own_way() -> None:
    bridges = part(Settings())

    assert bridges.working() == {"apns": False, "fcm": False}
    for kind, error in (
        ("fcm", UnknownAppError),
        ("apns", UnknownChannelError),
        ("stub", UnknownRouterTypeError),
    ):
        with pytest.raises(error):
            bridges.by_type[kind].registered("app", "device-token-1", None)
    await bridges.close()


@pytest.mark.parametrize("nothing", ["", "{}", " { } "])
async def test_an_empty_table_is_as_none(nothing: str) -> None:
    bridges = part(Settings(fcm=Fcm(credentials=nothing), apns=Apns(channels=nothing)))

    assert bridges.working() == {"apns": False, "fcm": False}


async def test_what_is_configured_is_there() -> None:
    bridges = part(Settings(fcm=FCM, apns=APNS, stub=Stub(enabled=True)))

    assert bridges.working() == {"apns": True, "fcm": True}
    assert bridges.by_type["stub"].registered("success", "success", None)
    await bridges.close()


@pytest.mark.parametrize("section", ["fcm", "apns"])
async def test_without_the_library_the_extra_is_named(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(fcm=FCM) if section == "fcm" else Settings(apns=APNS)
    monkeypatch.setitem(sys.modules, H2, None)
    monkeypatch.delitem(sys.modules, f"waystation.push.endpoint.bridges.{section}", raising=False)

    with pytest.raises(SettingsError, match=r"pip install 'waystation\[bridges\]'"):
        part(settings)


async def test_a_token_service_that_is_no_url_is_refused_with_its_app() -> None:
    account = json.dumps({**ACCOUNT, "token_uri": "oauth2.googleapis.com/token"})
    credentials = json.dumps({"app": {"project_id": "p", "credential": account}})

    with pytest.raises(SettingsError, match="app app: token_uri is not a URL"):
        part(Settings(fcm=Fcm(credentials=credentials)))


@pytest.mark.parametrize("url", ["fcm.example", "ftp://fcm.example", "https://", "http://a:b"])
@pytest.mark.parametrize("section", ["fcm", "apns"])
async def test_an_address_that_is_no_url_is_named(section: str, url: str) -> None:
    fcm = msgspec.structs.replace(FCM, base_url=url)
    apns = msgspec.structs.replace(APNS, base_url=url)
    settings = Settings(fcm=fcm) if section == "fcm" else Settings(apns=apns)

    with pytest.raises(SettingsError, match=rf"{section}\.base_url is not a URL"):
        part(settings)


async def test_doctor_names_credentials_that_cannot_be_used() -> None:
    settings = Settings(fcm=Fcm(credentials='{"app":{"project_id":"p","credential":"/none"}}'))
    (finding,) = await check_bridges(settings)

    assert finding.verdict is Verdict.FAIL
    assert "/none cannot be read" in finding.text


async def test_doctor_has_nothing_to_say_where_nothing_is_configured() -> None:
    assert await check_bridges(Settings()) == []
