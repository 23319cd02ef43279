"""Parts of other packages that the gateway uses or overrides though their authors promise nothing of them.

A version that lacks one would fail at a client's first request, with an AttributeError. So they are looked for when the gateway is
imported, and what is missing is told with the versions that have it. The ranges are those of `pyproject.toml`; a test compares them.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

RANGES = {"uvicorn": ">=0.52.4,<0.60", "aiohttp": ">=3.14,<4", "websockets": ">=16,<18"}


def require(package: str, part: type, *names: str) -> None:
    """ImportError unless the class has all of them, as members or as what its `__init__` sets."""
    made = {name for base in part.__mro__ for name in _set_by_init(base)}
    for name in names:
        if not hasattr(part, name) and name not in made:
            refuse(package, f"{part.__module__}.{part.__qualname__}.{name}")


def refuse(package: str, missing: str) -> NoReturn:
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "unknown"
    raise ImportError(
        f"diana's gateway needs {package} {RANGES[package]}, and {package} {found} has no {missing}; "
        f"run pip install 'diana-limiter[gateway]'",
        name=package,
    )


def _set_by_init(part: type) -> tuple[str, ...]:
    code = getattr(part.__dict__.get("__init__"), "__code__", None)
    return code.co_names if code is not None else ()
