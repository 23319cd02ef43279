"""For tests, yours and ours: a clock that jumps, the laws every algorithm keeps, the contract every store keeps."""

from diana.testing.contract import store_contract
from diana.testing.fake_clock import FakeClock
from diana.testing.laws import algorithm_laws

__all__ = ["FakeClock", "algorithm_laws", "store_contract"]
