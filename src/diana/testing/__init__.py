"""For tests, yours and ours: a clock that jumps, empty counters, the laws every algorithm keeps, the contract every store keeps."""

from diana.testing.contract import store_contract
from diana.testing.fake_clock import FakeClock
from diana.testing.laws import algorithm_laws
from diana.testing.reset import reset_counters

__all__ = ["FakeClock", "algorithm_laws", "reset_counters", "store_contract"]
