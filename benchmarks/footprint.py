"""What Diana costs to have: resident bytes per key, and the time of `import diana`.

Each measurement is a fresh interpreter, since memory and modules of this one would be counted too. Resident memory is read as Linux
shows it.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from resource import getpagesize

from benchmarks.race import Contestant, race
from benchmarks.report import Figure, Section, at_most

ROOT = Path(__file__).parent.parent
LIMIT = "100/minute"


def run(quick: bool) -> Section:
    # A quarter of the keys fills the dictionary to the same degree: the bytes per key are the same.
    keys, starts = (250_000, 5) if quick else (1_000_000, 15)
    return Section(
        name="footprint",
        title="bytes per key, and importing",
        how=(
            f"Memory: what is resident in a fresh interpreter after {keys:,} keys of 21 characters, made on the way, under {LIMIT} (TB), "
            f"less what was before; the keys count. Import: the median of {starts} fresh interpreters, less the median of as many that "
            "import nothing, in turns."
        ),
        figures=[_memory(keys), *_import(starts), _modules()],
        quick=quick,
    )


def _memory(keys: int) -> Figure:
    resident = float(_said_by_fresh_python(f"print(footprint.resident_bytes_per_key({keys}))"))
    goal = at_most(resident, 340, "bytes")
    return Figure(f"resident per key, at {keys:,} keys", resident, "bytes", goals=(goal,))


def _import(starts: int) -> list[Figure]:
    bare = Contestant("a bare interpreter", lambda _: _runs_in_fresh_python("pass"))
    diana = Contestant("with `import diana`", lambda _: _runs_in_fresh_python("import diana"))
    times = race([bare, diana], ["start"], turn=1, rounds=starts)
    bare_ms, diana_ms = (times.median_us(one.name) / 1_000 for one in (bare, diana))
    added_ms = diana_ms - bare_ms
    return [
        Figure("`import diana`", added_ms, "ms", goals=(at_most(added_ms, 60, "ms"),)),
        Figure("start of a bare interpreter", bare_ms, "ms"),
        Figure("start and `import diana`", diana_ms, "ms"),
    ]


def _modules() -> Figure:
    names = _said_by_fresh_python("print(*footprint.modules_imported_by_diana())").split()
    what = "modules beyond the standard library"
    return Figure(what, len(names), "", note=", ".join(names))


def resident_bytes_per_key(keys: int) -> float:
    """Run in a fresh interpreter."""
    from diana import Limiter

    Limiter(LIMIT).take("pays for whatever is loaded on first use")
    limiter = Limiter(LIMIT)
    gc.collect()
    before = _resident_bytes()
    for number in range(keys):
        limiter.take(f"user:{number:016d}")
    gc.collect()
    return (_resident_bytes() - before) / keys


def modules_imported_by_diana() -> list[str]:
    """Run in a fresh interpreter."""
    before = set(sys.modules)
    import diana  # noqa: F401

    imported = {name.partition(".")[0] for name in set(sys.modules) - before}
    return sorted(imported - sys.stdlib_module_names)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * getpagesize()


def _said_by_fresh_python(code: str) -> str:
    command = [sys.executable, "-c", f"from benchmarks import footprint; {code}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _runs_in_fresh_python(code: str) -> bool:
    return subprocess.run([sys.executable, "-c", code], check=True).returncode == 0
