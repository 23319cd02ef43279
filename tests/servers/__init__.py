"""Real servers for tests and benchmarks, and the bad days they have: frozen, killed, failed over, far away, out of time.

Everything here is a context manager, runs on free loopback ports and is gone when it is left. Whatever is left behind dies
with the process that started it.
"""
