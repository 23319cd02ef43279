"""For tests, yours and ours: a clock that jumps, empty counters, the laws every algorithm keeps, the contract every store keeps."""

from diana.testing.algorithm_laws import algorithm_laws
from diana.testing.fake_clock import FakeClock, reset_counters
from diana.testing.store_contract import store_contract

__all__ = ["FakeClock", "algorithm_laws", "reset_counters", "store_contract"]
