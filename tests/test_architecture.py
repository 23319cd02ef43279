"""Imports point one way. This is the picture of the design as a test."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "diana"

LAYERS = [
    {"core", "processes", "_native"},
    {"actors", "algorithms"},
    {"sources", "stores"},
    {
        "waiting",
        "places",
        "queueing",
        "limiter",
        "decorator",
        "pacer",
        "judging",
        "guard",
        "shedding",
    },
    {
        "middleware",
        "asgi",
        "wsgi",
        "django",
        "fastapi",
        "flask",
        "litestar",
        "rest_framework",
        "starlette",
        "telemetry",
    },
    {"service", "gateway", "dashboard", "simulate", "compat", "nginx"},
    {"cli"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
ANYWHERE = {"testing", "pytest_plugin", "plugins", "__init__", "__main__"}
"""`diana.testing` looks at core and stores from outside; `diana.plugins` and the package itself only re-export."""

SHARED = {("sources", "diana.redis_client.redis_url")}
"""Counters and rules are in the same servers, which are written in one way."""

CORE_MAY_IMPORT = {
    "__future__", "array", "bisect", "collections", "dataclasses", "difflib", "functools", "hashlib", "importlib", "ipaddress",
    "math", "re", "typing", "urllib",
}  # fmt: skip


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "diana":
                yield from (f"diana.{name.name}" for name in node.names)
            else:
                yield node.module


FILES = sorted(SOURCE.rglob("*.py"))


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in FILES} <= set(RANK) | ANYWHERE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_to_the_left(path: Path) -> None:
    part = part_of(path)
    if part in ANYWHERE:
        return
    for module in imports(path):
        root, _, rest = module.partition(".")
        if root != "diana":
            continue
        other = rest.split(".")[0]
        assert other == part or RANK[other] <= RANK[part], f"{part} imports {module}"
        if RANK[other] == RANK[part] and other != part and (part, module) not in SHARED:
            assert RANK[part] == RANK["limiter"] or "middleware" in (part, other), (
                f"{part} and {other} stand side by side and must not know each other"
            )


ROOMS_OF_SOURCES = ["document", "places", "rules", "following"]
"""As on the map in `sources/__init__.py`."""


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "sources").rglob("*.py")), ids=lambda path: path.name
)
def test_sources_know_only_what_stands_above_them_on_their_map(path: Path) -> None:
    room = path.relative_to(SOURCE / "sources").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for module in imports(path):
        if module.startswith("diana.sources."):
            other = module.split(".")[2]
            assert ROOMS_OF_SOURCES.index(other) <= ROOMS_OF_SOURCES.index(room), module


@pytest.mark.parametrize("path", sorted((SOURCE / "core").glob("*.py")), ids=lambda path: path.name)
def test_core_knows_the_standard_library_only_and_no_clock_io_or_log(path: Path) -> None:
    # A fork waits while a plug-in is imported.
    more = {"os", "threading"} if path.name == "plugins.py" else set[str]()
    for module in imports(path):
        root = module.split(".")[0]
        assert root == "diana" or root in CORE_MAY_IMPORT | more, f"core imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nobody_but_stores_and_shells_asks_what_time_it_is(path: Path) -> None:
    if part_of(path) in ("core", "actors", "algorithms"):
        assert not {"time", "datetime"} & {module.split(".")[0] for module in imports(path)}


@pytest.mark.parametrize("modules", ["diana", "diana.asgi, diana.wsgi"])
def test_import_diana_needs_only_the_standard_library_and_yaml(modules: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import {modules}; "
        "print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    foreign = {name for name in answer.stdout.split() if not name.startswith(("__", "_cython"))}
    assert foreign - {"_virtualenv", "_distutils_hack", "sitecustomize", "cython_runtime"} <= {
        "diana",
        "yaml",
        "_yaml",
    }


def test_the_public_surface() -> None:
    import diana

    assert sorted(diana.__all__) == [
        "AsyncGuard",
        "AsyncLimiter",
        "ConfigError",
        "Decision",
        "DianaError",
        "Guard",
        "LimitExceeded",
        "Limiter",
        "Pacer",
        "Policy",
        "Request",
        "Rule",
        "StoreError",
        "Verdict",
        "limit",
        "load_rules",
    ]
    assert all(hasattr(diana, name) for name in diana.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = diana.nonsense


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("asgi", ["RateLimitMiddleware"]),
        (
            "compat",
            [
                "OVERALL",
                "PER_CLIENT",
                "Funnel",
                "LuaBucket",
                "RRateLimiter",
                "RequestRateLimiter",
                "athrottle",
                "is_action_allowed",
                "is_below",
                "rate_limiter_controller",
                "throttle",
                "warm_up_controller",
            ],
        ),
        ("wsgi", ["RateLimitMiddleware"]),
        ("django", ["RateLimitMiddleware", "rate_limit", "user"]),
        ("flask", ["RateLimitMiddleware", "rate_limit"]),
        (
            "litestar",
            ["RateLimitExceeded", "RateLimitMiddleware", "add_headers", "rate_limit"],
        ),
        ("starlette", ["RateLimitMiddleware", "rate_limit"]),
        (
            "fastapi",
            [
                "LimitedRoute",
                "RateLimit",
                "RateLimitExceeded",
                "RateLimitMiddleware",
                "answer",
                "exempt",
                "limited",
                "rate_limit",
            ],
        ),
    ],
)
def test_the_public_surface_of_its_parts(module: str, names: list[str]) -> None:
    imported = import_module(f"diana.{module}")
    assert imported.__all__ == names
    assert all(hasattr(imported, name) for name in names)


FORBIDDEN_IN_PROTOCOL = {"socket", "ssl", "select", "selectors", "threading", "asyncio", "redis"}


@pytest.mark.parametrize(
    "path",
    sorted((SOURCE / "stores" / "redis" / "protocol").glob("*.py")),
    ids=lambda path: path.name,
)
def test_what_is_said_to_redis_knows_no_socket_thread_or_loop(path: Path) -> None:
    for module in imports(path):
        assert module.split(".")[0] not in FORBIDDEN_IN_PROTOCOL
        assert not module.startswith(("diana.redis_client", "diana.stores.redis.maintenance"))
