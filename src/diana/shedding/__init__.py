"""Graded load shedding: under load, a growing share of requests is rejected before any rule is asked.

    factors/ ──sample──▶ smoothing ──▶ levels ──▶ gauge ─┐
    a thread, twice a second (sampling)                   ├─▶ shedding: may this request be shed? ──▶ choice
    middleware ──▶ activity                               │             exemption
                                                          └─▶ telemetry, `diana shed`

Pure: smoothing, levels, choice, exemption. Only sampling knows a clock and a thread.
"""
