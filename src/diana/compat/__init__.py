"""The interfaces of other limiters: their verbs and replies, decided by Diana.

For a move in two steps: first the import line, then, when nothing is left of the other limiter, `Limiter` and the rules file.
docs/coming-from has a page for each, with what differs and why.

redis_cell         redis-cell: `throttle`
redisson           Redisson: `RRateLimiter`
alibaba_sentinel   Sentinel: its controllers
spring             Spring Cloud Gateway: `RequestRateLimiter`
common_recipes     a funnel, a bucket in Lua, `INCR` and sorted sets
cached_limiters    limiters by their numbers
"""

from diana.compat.alibaba_sentinel import rate_limiter_controller, warm_up_controller
from diana.compat.common_recipes import Funnel, LuaBucket, is_action_allowed, is_below
from diana.compat.redis_cell import athrottle, throttle
from diana.compat.redisson import OVERALL, PER_CLIENT, RRateLimiter
from diana.compat.spring import RequestRateLimiter

__all__ = [
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
]
