"""Counters in this process: in C where Diana was built with a compiler, else in Python. Only the speed differs.

c_store       the table in C
python_store  dictionaries behind one lock
limit_table   the counters of one limit, in Python
limit_tables  the tables of all limits, in Python: what is forgotten, and when
eviction      which keys expire next, and which limit has the most keys
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from diana.stores.c_kernels import kernels
from diana.stores.memory.limit_tables import GRACE_US
from diana.stores.memory.python_store import LONGEST_KEY, MAX_KEYS, bounded_key

if TYPE_CHECKING or kernels() is None:
    from diana.stores.memory.python_store import PythonMemoryStore as Chosen
else:
    from diana.stores.memory.c_store import CMemoryStore as Chosen

__all__ = ["GRACE_US", "LONGEST_KEY", "MAX_KEYS", "MEMORY_STORES", "MemoryStore", "bounded_key"]

MemoryStore = Chosen
MEMORY_STORES: WeakSet[MemoryStore] = MemoryStore.all_of_process
"""All of this process, for tests that begin with empty counters."""
