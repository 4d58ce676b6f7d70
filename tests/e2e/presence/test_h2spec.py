"""h2spec, a conformance suite by others, against a running presence node (RFC 9113, RFC 7541)."""

import asyncio
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.certificates import self_signed
from tests.e2e.presence.node import Node
from tools.prepare_tests import H2SPEC

pytestmark = [pytest.mark.e2e, pytest.mark.h2spec]
CASES_MIN = 146  # generic, http2 and hpack, the strict ones too
PATIENCE_S = 100.0


async def failing_cases(port: int, report: Path, *options: str) -> list[str]:
    """Every case runs; h2spec skips none of them."""
    assert H2SPEC.is_file(), "no h2spec: run tools/prepare_tests.py, or SKIP=h2spec"
    command = [str(H2SPEC), "--strict", "--host", "127.0.0.1", "--port", str(port), *options]
    await asyncio.to_thread(
        subprocess.run,
        [*command, "--junit-report", str(report)],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    cases = ElementTree.parse(report).findall(".//testcase")
    assert len(cases) >= CASES_MIN
    return [
        f"{case.get('package')}: {case.get('classname')}"
        for case in cases
        if any(case.find(f".//{kind}") is not None for kind in ("failure", "error", "skipped"))
    ]


async def test_every_case_of_h2spec_passes(node: Node, tmp_path: Path) -> None:
    assert await failing_cases(node.port, tmp_path / "report.xml") == []


async def test_every_case_of_h2spec_passes_over_tls(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path / "tls")
    node = Node(tmp_path / "node")
    node._env.update({"WAYSTATION_TLS__CERT": str(cert), "WAYSTATION_TLS__KEY": str(key)})
    await asyncio.to_thread(node.start)
    try:
        failing = await failing_cases(node.port, tmp_path / "report.xml", "--tls", "--insecure")
    finally:
        await asyncio.to_thread(node.close)

    assert failing == []
