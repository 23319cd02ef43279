"""For tests, yours and Diana's own.

fake_clock      a clock that moves only when it is told to; `reset_counters`
algorithm_laws  the laws that every algorithm obeys
store_contract  the contract that every store obeys
"""

from diana.testing.algorithm_laws import algorithm_laws
from diana.testing.fake_clock import FakeClock, reset_counters
from diana.testing.store_contract import store_contract

__all__ = ["FakeClock", "algorithm_laws", "reset_counters", "store_contract"]
