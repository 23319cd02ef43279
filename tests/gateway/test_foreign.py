"""Parts of other packages that the gateway needs: a version that lacks one is told so, with the versions that have it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from diana.gateway.uvicorn_aiohttp_internals import RANGES

ROOT = Path(__file__).parents[2]
REMOVED = {
    "a method of uvicorn's": (
        "from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as part; del part._start_asgi_task",
        "uvicorn",
        "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol._start_asgi_task",
    ),
    "what uvicorn's WebSocket sets": (
        "from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol as part; "
        "part.__init__ = lambda self: None",
        "uvicorn",
        "WebSocketsSansIOProtocol.conn",
    ),
    "a module of uvicorn's": (
        "import uvicorn.protocols.websockets as part; sys.modules[part.__name__ + '.websockets_sansio_impl'] = None",
        "uvicorn",
        "uvicorn.protocols.websockets.websockets_sansio_impl",
    ),
    "an argument of aiohttp's": (
        "import aiohttp; aiohttp.ClientSession.__init__ = lambda self: None",
        "aiohttp",
        "ClientSession(max_headers=…)",
    ),
    "a method of aiohttp's": (
        "from aiohttp.client_proto import ResponseHandler as part; del part._on_read_timeout",
        "aiohttp",
        "aiohttp.client_proto.ResponseHandler._on_read_timeout",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REMOVED)
def test_what_is_missing_is_told_with_the_versions_that_have_it(kind: str, tmp_path: Path) -> None:
    removing, package, part = REMOVED[kind]
    rules = tmp_path / "rules.yaml"
    rules.write_text("limits: [{url: /, rules: [{unit: second, rpu: 1}]}]")
    code = f"import sys; {removing}; import diana.cli; diana.cli.main()"
    told = subprocess.run(
        [sys.executable, "-c", code, "gateway", "--sample", "--rules", str(rules)],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    assert (
        f"Error: diana's gateway needs {package} {RANGES[package]}, and {package} " in told.stderr
    )
    assert part in told.stderr
    assert "Traceback" not in told.stderr


def test_the_ranges_are_those_that_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["gateway"]
    for package, versions in RANGES.items():
        assert f"{package}{versions}" in wanted
