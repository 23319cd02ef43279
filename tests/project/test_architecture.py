"""Which package may import which: the picture of the design as a test."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "diana"

_ENGINE = [
    "core",
    "runtime",
    "actors",
    "algorithms",
    "redis_client",
    "stores",
    "rules",
    "slots",
    "shedding",
]
_PUBLIC = [*_ENGINE, "engine", "guard", "limiter"]
_WEB = [*_PUBLIC, "decorator", "pacer", "responses", "telemetry"]
_ADAPTERS = [*_WEB, "web", "asgi", "wsgi", "django"]
_FRAMEWORKS = [*_ADAPTERS, "starlette", "flask", "litestar", "fastapi", "rest_framework"]

MAY_IMPORT: dict[str, list[str]] = {
    "core": [],
    "runtime": ["core"],
    "actors": ["core", "runtime"],
    "algorithms": ["core"],
    "redis_client": ["core", "runtime"],
    "responses": ["core"],
    "telemetry": ["core"],
    "stores": ["core", "runtime", "redis_client"],
    "rules": ["core", "runtime", "actors", "redis_client"],
    "slots": ["core", "runtime", "stores", "redis_client"],
    "shedding": ["core", "runtime", "stores", "redis_client"],
    "engine": _ENGINE,
    "guard": [*_ENGINE, "engine"],
    "limiter": [*_ENGINE, "engine"],
    "decorator": _PUBLIC,
    "pacer": _PUBLIC,
    "web": _WEB,
    "asgi": [*_WEB, "web"],
    "wsgi": [*_WEB, "web"],
    "django": [*_WEB, "web", "wsgi"],
    "starlette": _ADAPTERS,
    "flask": _ADAPTERS,
    "litestar": [*_ADAPTERS, "starlette"],
    "fastapi": [*_ADAPTERS, "starlette"],
    "rest_framework": _ADAPTERS,
    "gateway": _ADAPTERS,
    "nginx": [*_WEB, "web"],
    "compat": [*_PUBLIC, "pacer"],
    "cli": [*_FRAMEWORKS, "gateway", "nginx", "compat"],
}
"""What each package may import, lowest first; `_native` is C, and anyone's that counts."""
ANYWHERE = {"testing", "pytest_plugin", "plugins", "__init__", "__main__"}
"""`diana.testing` looks at core and stores from outside; `diana.plugins` and the package itself only re-export."""

NOT_YET = {
    (
        "redis_client",
        "stores",
    ): "connections call back into the store that uses them, and read its wire format",
    ("runtime", "redis_client"): "the pause between attempts is a time budget's",
    ("shedding", "rules"): "the factor redis_length reads a Redis by the client of the rules",
    ("core", "runtime"): "the URL of a store is checked by the plug-in that opens it",
}
"""Imports that the table forbids and that are still there, each with its reason. None is to be added."""

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


def test_every_package_is_in_the_table() -> None:
    assert {part_of(path) for path in FILES} == set(MAY_IMPORT) | ANYWHERE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_what_its_package_may(path: Path) -> None:
    part = part_of(path)
    if part in ANYWHERE:
        return
    for module in imports(path):
        root, _, rest = module.partition(".")
        other = rest.split(".")[0]
        if root == "diana" and other not in (part, "_native", ""):
            assert other in MAY_IMPORT[part] or (part, other) in NOT_YET, f"{part} imports {module}"


def test_no_reason_outlives_its_import() -> None:
    found = {
        (part_of(path), module.split(".")[1])
        for path in FILES
        for module in imports(path)
        if module.startswith("diana.")
    }
    assert set(NOT_YET) <= found


def test_no_module_is_longer_than_400_lines() -> None:
    long = {
        str(path.relative_to(SOURCE))
        for path in FILES
        if len(path.read_text(encoding="utf-8").splitlines()) > 400
    }
    assert not long


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
                "exempt",
                "rate_limit",
                "rate_limit_exceeded_handler",
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
        assert not module.startswith("diana.stores.redis.maintenance")
        assert (
            not module.startswith("diana.redis_client")
            or module == "diana.redis_client.reply_errors"
        )
