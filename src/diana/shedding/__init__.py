"""Graded load shedding: if the machine is overloaded, a growing share of requests is rejected before any rule is evaluated.

    factors/ ──sample──▶ gauge: smoothing, level ─┐
    a thread, twice a second (sampling)           ├─▶ load_shedder: is this request shed? ──▶ selection
    middleware ──▶ requests in flight (sampling)  │
                                                  └─▶ telemetry, `diana shed`

load_shedder  whether a request is shed
gauge         one factor: its smoothed value and its level
selection     which requests are shed; `last` and `except`
sampling      the thread that measures; the requests in flight
cgroup        the limits of a container
factors/      what is measured

Only `sampling` uses a clock and a thread.
"""
