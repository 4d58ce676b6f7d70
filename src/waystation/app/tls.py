"""Loads the TLS certificate of the public ports, at the start and on SIGHUP."""

import ssl
from pathlib import Path

from waystation.base.settings import SettingsError

from .settings import Tls


def load_tls(settings: Tls) -> ssl.SSLContext | None:
    """None if TLS is off. Raises `SettingsError` that names the faulty file."""
    if not settings.on:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.cert, settings.key)
    except FileNotFoundError:
        files = (("tls.cert", settings.cert), ("tls.key", settings.key))
        raise SettingsError(
            [f"{name} {path} does not exist" for name, path in files if not Path(path).exists()]
        ) from None
    except PermissionError:
        raise SettingsError([f"no permission to read tls.key {settings.key}"]) from None
    except ssl.SSLError as exc:
        raise SettingsError(
            [
                f"tls.cert {settings.cert} and tls.key {settings.key} do not match or are not PEM:"
                f" {exc.reason or exc}"
            ]
        ) from exc
    return context
