"""Redis behind TLS and a password."""

from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.ports import free_ports
from tests.servers.redis import running_redis
from waystation.base.clock import SystemClock
from waystation.base.errors import StoreUnavailableError
from waystation.storage.redis.push import RedisPushStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store

pytestmark = pytest.mark.redis


async def test_tls_with_a_user_of_its_own_and_a_certificate_that_is_checked(tmp_path: Path) -> None:
    Certificates(tmp_path)  # it leaves cert.pem and key.pem
    port = free_ports(1)
    tls = ("--tls-port", str(port), "--tls-auth-clients", "no", "--appendonly", "yes")
    tls += ("--tls-cert-file", f"{tmp_path}/cert.pem", "--tls-key-file", f"{tmp_path}/key.pem")
    tls += ("--tls-ca-cert-file", f"{tmp_path}/cert.pem")
    with running_redis(*tls) as server:
        server.command("ACL", "SETUSER", "push", "on", ">s%cret", "~*", "+@all")
        trusted = f"rediss://push:s%25cret@127.0.0.1:{port}/3?ssl_ca_certs={tmp_path}/cert.pem"
        stranger = f"rediss://push:s%25cret@127.0.0.1:{port}/3"
        store = await RedisPushStore.open(
            parse_redis_url(trusted), settings=Store(), clock=SystemClock()
        )
        unsure = await RedisPushStore.open(
            parse_redis_url(stranger), settings=Store(), clock=SystemClock()
        )

        assert await store.publish_broadcast("a", "1")
        assert await store.warnings() == []
        with pytest.raises(StoreUnavailableError, match="certificate"):
            await unsure.check()
        assert server.command("-n", "3", "HGET", "waystation/broadcasts", "a") == "1"
        await store.close()
        await unsure.close()
