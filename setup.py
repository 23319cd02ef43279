"""The C part, which Diana works without: where it cannot be built, everything is counted in Python. All else is in pyproject.toml."""

import os
import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup

# Tables in private memory rely on the interpreter's lock, and a free-threaded one has no stable ABI to build for.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
WANTED = os.name == "posix" and not FREE_THREADED and os.environ.get("DIANA_NATIVE") != "0"

native = Extension(
    "diana._native",
    sources=sorted(glob("native/*.c")),
    depends=sorted(glob("native/*.h")),
    extra_compile_args=[
        "-std=gnu11",
        "-O3",
        "-fno-strict-aliasing",  # a slot is a key's, or holds more of a state
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
    ],
    extra_link_args=["-pthread"] if sys.platform.startswith("linux") else [],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[native] if WANTED else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if WANTED else {},
)
