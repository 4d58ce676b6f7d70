"""`waystation doctor`: checks for common problems and says how to fix them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .listen import check_url
from .terminal import EXIT_FAILED, say, settings_or_exit

if TYPE_CHECKING:
    from waystation.ops.doctor import Finding


def doctor(
    *,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The server's data directory.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")] = None,
    store: Annotated[
        str | None, typer.Option(help="URL of the store, if `serve` was given one.")
    ] = None,
    connect_url: Annotated[
        str, typer.Option(help="WebSocket URL to test; default: that of the running server.")
    ] = "",
) -> None:
    """Check settings, files, ports, store, keys, TLS, bridges; send one notification to itself.

    Exit code 0 if nothing failed (warnings are fine), 1 otherwise.
    """
    from waystation.app.serve import parse_roles
    from waystation.ops import doctor
    from waystation.ops.self_test import check_server

    if connect_url:
        check_url(connect_url)
    flags = {"data_dir": None if data_dir is None else str(data_dir), "store.url": store}
    serving = doctor.running_server(settings_or_exit(config, flags, roles=()))
    roles = parse_roles(serving.roles if serving else ())
    settings = settings_or_exit(config, flags, roles)
    worst = False

    def tell(finding: "Finding") -> None:
        nonlocal worst
        worst = worst or finding.verdict is doctor.Verdict.FAIL
        say(f"{finding.verdict:<5} {finding.about:<15} {finding.text}")
        if finding.advice:
            say(f"{'':<21} → {finding.advice}")

    for finding in (
        *doctor.check_files(settings),
        *doctor.check_machine(),
        *doctor.check_ports(settings, serving),
        *doctor.check_tls(settings),
    ):
        tell(finding)

    async def examine_what_runs() -> None:
        tell(await doctor.check_store(settings))
        for finding in (
            *await doctor.check_bridges(settings),
            *await doctor.check_cluster(settings),
        ):
            tell(finding)
        ws_url = connect_url or (serving.connect_url if serving else "")
        endpoint_url = serving.endpoint_url if serving else settings.endpoint.url
        if not ws_url and serving is None:
            say("      self-test       not done: no server runs on this data directory")
            return
        async for found in check_server(ws_url, endpoint_url):
            tell(found)

    asyncio.run(examine_what_runs())
    if worst:
        raise SystemExit(EXIT_FAILED)
