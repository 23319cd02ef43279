"""How much is allowed: one file for each algorithm, with its kernel in Python and in Lua. Entry points: `diana.algorithms`.

fixed_window    W: a count per window
sliding_window  SW: a window of slices
sliding_log     SL: every request of the last unit
token_bucket    TB: a burst, then a steady rate
leaky_bucket    LB: a queue that releases at a steady rate
concurrency     C: so many at once
bucket          the kernel of TB and LB
"""
