"""What is in C is tested where it was built; a machine without a compiler counts in Python, and tests that."""

from __future__ import annotations

from diana.stores.c_kernels import kernels

collect_ignore_glob = [] if kernels() is not None else ["test_*.py"]
