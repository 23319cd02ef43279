"""The kernels in C, if they are there: `diana._native`, built with Diana where there is a compiler.

Without them, or with `DIANA_NATIVE=0` in the environment, everything is counted in Python.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.errors import CostError, KeyTypeError
from diana.runtime.clock import EPOCH_OFFSET_US

if TYPE_CHECKING:
    from diana._native import Terms

SWITCH = "DIANA_NATIVE"
INTERFACE = 1
"""Of the C part; another number with every change of what it offers. In a working copy it may be older than what calls it."""


@cache
def kernels() -> Any:
    """The module `diana._native`, or None. Not typed as that module: it need not be there."""
    return _loaded()[0]


def description() -> str:
    """For `diana --version`: what counts on this machine."""
    module, why_not = _loaded()
    return f"counting in Python ({why_not})" if module is None else "counting in C"


@cache
def _loaded() -> tuple[ModuleType | None, str]:
    if os.environ.get(SWITCH, "").strip().lower() in ("0", "off", "no", "false"):
        return None, f"{SWITCH}={os.environ[SWITCH]}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None, "the kernels in C need Python with its global lock"
    try:
        from diana import _native
    except ImportError as error:
        is_there = (error.path or "").endswith((".so", ".pyd"))
        return None, f"{error}" if is_there else "built without a C compiler"
    if getattr(_native, "INTERFACE", 0) != INTERFACE:
        return None, "the C part is of another version; install Diana again"
    _native.setup(Decision, CostError, KeyTypeError, terms_of, os.urandom(16), EPOCH_OFFSET_US)
    return _native, ""


def terms_of(meter: CounterSpec) -> Terms:
    """The meter as a kernel takes it; the same until its family has another longest."""
    native = kernels()
    kind: int = _kinds().get(vars(type(meter.algorithm)).get("kernel", ""), native.NUMBERS)
    family = meter.family
    longest = None if family is None else family.longest
    ages_by = longest or meter
    is_own = longest is None or longest is meter
    meter.compiled = terms = native.Terms(
        kind,
        meter.id,
        meter.params.limit,
        () if kind == native.NUMBERS else _numbers(meter),
        None if is_own or kind == native.NUMBERS else _numbers(ages_by),
        _horizon_us(kind, ages_by),
        family,
        longest,
    )
    return cast("Terms", terms)


def _numbers(meter: CounterSpec) -> tuple[int, ...]:
    numbers: tuple[int, ...] = meter.params.numbers  # type: ignore[attr-defined]
    return numbers


@cache
def _kinds() -> dict[str, int]:
    native = kernels()
    return {
        "bucket": native.BUCKET,
        "window": native.WINDOW,
        "sliding window": native.SLIDING,
        "sliding log": native.LOG,
    }


def _horizon_us(kind: int, meter: CounterSpec) -> int:
    """For how long a state may count: it only decides how finely keys are ordered by age."""
    if kind == kernels().BUCKET:
        params: Any = meter.params
        drain: int = params.drain * params.tick
        return drain
    return 2 * meter.limit.unit_us
