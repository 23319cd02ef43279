"""What runs inside the server: all charges of a request looked at first, written only if all pass.

The Lua is in `lua/`, a file for each script or part of one.

The server speaks Lua 5.1, where every number is a double. So numbers stay whole and below 2**53; division goes by `fmod`, which is exact,
and never by `/` alone; and states are written digit by digit, because Lua's own way of writing a number keeps 14 digits and an exponent.

A counter is a string: the numbers of its state, joined by commas; or a sorted set, if its algorithm keeps a log (`lua/log.lua`). It
lives as long as it matters, `reset_after` and a grace.

`acquire` decides, see below; the other scripts are small, see their comments.

The script that decides, `acquire`: many requests at once, each all or nothing by itself, and an error of one hurts no other.

    KEYS  the counters of the first request, then those of the second, ...
    ARGV  now in µs, or "" for the server's own time; the latest time at which it may still write, or ""; a tag if you like, `#` and
          anything, which is given back behind the time;
          then for each request: `take`, `hold` (a take that may be given back in a moment, because another slot of the cluster has a
          say in it too), `look` (nothing is written), `fill` (each counter takes as much of its cost as it has room for) or `refund`
          (logs only; a cost is then written `cost@when it was charged`) or `renew` (places only; likewise);
          how many counters it has; and for each counter its limit (see `wire_limit`) and the cost.
          In short, a take of costs of 1: how many counters it has, and each one's limit; and of a single counter its limit alone
    gives now; then for each request a list, or a text if it failed: 1 or 0 (passed or not), five numbers per counter (an Outcome), and, if
          it was denied or looked at, the state of each counter ("-" if it has none; "" if it is longer than SHORT, and if it denied and
          a place was held a moment ago, so that the denial may not last; of a log as much as it takes to deny again, see
          `state_from_wire`). Of a refund: 1; of a renewal: 1, and of each counter the place's moment, 0 if it is lost.
          Past the latest time: now and -1, and nothing is written.

A script runs from its first line on every call, and a function costs something when its line is reached, most of all for each variable
outside that it uses. So the ordinary case, a take of counters without a log that all pass, is decided in the loop itself, with hardly a
function; and all that other cases need is made when the first of them comes.

The pool of leases inside the server: `leases.pool.answer` in Lua.

    KEYS  a counter; and who holds what of it
    ARGV  now in µs, or "" for the server's own time; the latest time at which it may still write, or ""; a tag, `#` and anything, which
          is given back behind the time; the algorithm's code; the numbers of its limit, and of the same uncapped, each as a JSON list;
          the node ("": a charge without a lease), `1` to write or `0` to look; and in whole numbers: cost, seq, base, used, keep, want,
          start, refill, ttl in µs, for how many ms what is held matters, and the most that can ever pass; and the numbers of the slowest
          limit that counts on it, or ""
    gives now, the tag, and the eight numbers of a Grant; -3 and zeros, if a later ask of this node was answered before; -1 past the latest
          time, and nothing is written

What is held is a hash: of each node `seq,base,used,held,expires,ends`, and behind an empty name `held by all,the earliest of all ends,when
a node last asked`. So nodes are looked at one by one only when one has come to its end, however many there are.

A Log inside the server: a sorted set, so that a decision costs the same at any length.

An entry's score is its moment, and its member says `serial:through:count`: its number, how much was admitted up to and with it since its
block began, and how much at this moment. So what lies between two entries is a subtraction, and the n-th is found by halving.

    score      member
    -3101      b1               how much was admitted before block 1 began is 3100
    17…001     254:3090:10      block 0: serials 0 to 255
    17…007     255:3100:10
    17…009     256:1:1          block 1: counted from its own beginning

A refund in the middle has to change what stands behind it: the rest of its block, and one number for each later block, instead of
all later entries. Block numbers have scores below 0, so no question for moments finds them.

A kernel is given a draft. Its changes are written when all charges of the request pass, and only then; `strike`, which only a
refund calls, is done at once. What has expired counts no more at once, and is removed with the next write, a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, NamedTuple

from diana.core.charge import WHOLE
from diana.core.contracts import Algorithm, Params, State
from diana.core.counter import CounterSpec, LimitWithOptions, params_of_tiers
from diana.core.entry_log import Log, log_of, partial_log
from diana.core.limit import Limit
from diana.core.settings import why_not_leased
from diana.runtime.entry_points import algorithms

LUA = files("diana.stores.redis.protocol").joinpath("lua")


def _lua(name: str) -> str:
    """A file of `lua/`, on lines of its own."""
    return "\n" + LUA.joinpath(f"{name}.lua").read_text(encoding="utf-8")


PRELUDE = _lua("prelude")
LIVE_FOR = _lua("live_for")
IN_FULL = _lua("in_full")
OF_ONE_PLACE = _lua("of_one_place")
ACQUIRE = _lua("acquire")
LEASE = _lua("lease")
LOG = _lua("log")
LOG_AS_TEXT = _lua("log_as_text")
READ = _lua("read")
SWAP = _lua("swap")
RESET = _lua("reset")
INIT = _lua("init")
BEAT = _lua("beat")
OVERRIDE = _lua("override")
CHANGES = _lua("changes")
ARRIVALS = _lua("arrivals")

STALE = -3
GRACE_MS = 1_000
GIVEN_GRACE_MS = 3_600_000
"""The same where the time is given: how fast that clock goes, the server's cannot know."""
HELD_MS = 12_000
"""How long a place may be held until another slot has spoken: longer than the largest budget."""
TOO_LATE = -1
INT = 2**31
"""Numbers below this are written by `%d`, which is quicker than `%.0f`, and on some machines no wider."""
SHORT = 4_096
"""States up to this length are told with a denial, so that it can be remembered."""


class Script(NamedTuple):
    """A script and the name under which a server knows it."""

    name: str
    text: bytes
    sha: bytes


def script(name: str, *parts: str) -> Script:
    text = "\n".join(part.strip() for part in parts).encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


def acquire_script(known: Iterable[Algorithm]) -> Script:
    """One script for all algorithms that have a kernel in Lua."""
    kernels = [
        f"if code == '{one.code}' then return {_kernel(one)} end"
        for one in sorted(known, key=lambda one: one.code)
        if getattr(one, "lua", None)
    ]
    constants = (
        f"local GRACE = ARGV[1] == '' and {GRACE_MS} or {GIVEN_GRACE_MS}\n"
        f"local TOO_LATE, SHORT, WHOLE, INT, HELD = {TOO_LATE}, {SHORT}, {WHOLE}, {INT}, {HELD_MS}"
    )
    choice = ["local function kernel_of(code)", *kernels, "end"]
    whole = ACQUIRE.replace("-- IN FULL", f"{LIVE_FOR}{LOG}{IN_FULL}").replace(
        "-- OF ONE PLACE", f"{LIVE_FOR}{OF_ONE_PLACE}"
    )
    return script("acquire", PRELUDE, constants, *choice, whole)


def lease_script(known: Iterable[Algorithm]) -> Script:
    """For all algorithms whose permits can be handed out in advance."""
    kernels = []
    for one in sorted(known, key=lambda one: one.code):
        if why_not_leased(one) is None:
            lua: Any = one
            end = getattr(one, "lua_lease_end", "nil").strip()
            kernels.append(f"if code == '{one.code}' then return {lua.lua.strip()}, {end} end")
    constants = (
        f"local GRACE = ARGV[1] == '' and {GRACE_MS} or {GIVEN_GRACE_MS}\n"
        f"local TOO_LATE, STALE, WHOLE = {TOO_LATE}, {STALE}, {WHOLE}"
    )
    choice = ["local function kernel_of(code)", *kernels, "end"]
    return script("lease", PRELUDE, constants, *choice, LEASE)


def _kernel(algorithm: Any) -> str:
    """The kernel; whether its state is a log; and its refund and its renewal, if it has them."""
    lua: str = algorithm.lua.strip()
    if not keeps_log(algorithm):
        return lua
    refund, renew = (
        getattr(algorithm, f"lua_{verb}", "nil").strip() for verb in ("refund", "renew")
    )
    return f"{lua}, true, {refund}, {renew}"


def keeps_log(algorithm: Algorithm) -> bool:
    return bool(getattr(algorithm, "keeps_log", False))


@cache
def scripts() -> dict[str, Script]:
    """All by name."""
    all_of_them = (
        acquire_script(algorithms().values()),
        script("read", LOG_AS_TEXT, READ),
        script("swap", f"local TOO_LATE = {TOO_LATE}", LOG_AS_TEXT, SWAP),
        script("reset", f"local TOO_LATE = {TOO_LATE}", RESET),
        script("init", _counts(algorithms().values()), INIT),
        script("beat", BEAT),
        script("override", OVERRIDE),
        script("changes", CHANGES),
        script("arrivals", ARRIVALS),
        lease_script(algorithms().values()),
    )
    return {one.name: one for one in all_of_them}


def _counts(known: Iterable[Algorithm]) -> str:
    """How many numbers each algorithm's limits have: alone, and beside other tiers."""
    tiers: list[LimitWithOptions] = [(Limit(1, 1_000_000), {}), (Limit(2, 1_000_000), {})]
    counts = []
    for one in known:
        if getattr(one, "lua", None) is not None:
            alone = len(one.params(tiers[0][0]).numbers)
            beside: Any = params_of_tiers(one, tiers)[0]
            counts.append(f"['{one.code}'] = {{{alone}, {len(beside.numbers)}}}")
    return f"local COUNTS = {{{', '.join(sorted(counts))}}}"


def wire_limit(meter: CounterSpec) -> bytes | None:
    """A limit as `acquire` takes it: `["TB",[1,2,3]]`, the algorithm's code and its numbers; with other limits on the same counters,
    `["TB",[1,2,3],[1,2,4]]`, also those that say for how long a counter lives. None if it has no kernel in Lua, or is a limit of 0."""
    if getattr(meter.algorithm, "lua", None) is None or meter.denies_all:
        return None
    lists = [wire_numbers(meter.params), *map(wire_numbers, slowest_params(meter))]
    return f'["{meter.algorithm.code}",{",".join(lists)}]'.encode()


def wire_numbers(params: Any) -> str:
    return f"[{','.join(map(str, params.numbers))}]"


def slowest_params(meter: CounterSpec) -> tuple[Params, ...]:
    """By which a counter is forgotten, if its family has slower limits than this one; else nothing."""
    longest = None if meter.family is None else meter.family.longest
    if longest is None or keeps_log(meter.algorithm):
        return ()
    own, slowest = meter.params, longest.params
    # As an example: a full counter. What windows count is over at the same moment, whatever the limit.
    state, (_, _, _, reset_us, _) = meter.decide(None, own, own.limit, 0)
    return () if meter.decide(state, slowest, 0, 0)[1][3] == reset_us else (slowest,)


def wire_state(state: State) -> bytes:
    """A log as `~` and (moment, how much) of each entry; `-` if there is nothing."""
    if isinstance(state, Log):
        entries = ",".join([f"{moment},{count}" for moment, count in state.entries()])
        return b"~" + entries.encode() if entries else b"-"
    return ",".join(map(str, state)).encode() or b"-"


def state_from_wire(text: bytes | None) -> State | None:
    """None also for what no counter of ours can be. Of a log that denied, only the oldest entries may be told, and behind a `;` the newest
    moment and how much there is besides."""
    try:
        if not text:
            return None
        if not text.startswith(b"~"):
            return tuple(map(int, text.split(b",")))
        told, _, rest = text[1:].partition(b";")
        numbers = iter(map(int, told.split(b",")))
        entries = zip(numbers, numbers, strict=False)
        if not rest:
            return log_of(entries)
        newest, more = map(int, rest.split(b","))
        return partial_log(entries, newest, more)
    except ValueError:
        return None
