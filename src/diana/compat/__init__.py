"""What other limiters call it: their verbs and replies, decided by ours.

For a move in two steps: first the import line, then, when nothing is left of the other one, `Limiter` and the rules file. A file each;
docs/coming-from has a page each, with what differs and why.
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
