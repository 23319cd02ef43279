"""A differential fuzzer: the same random histories on all back ends, where every field of every decision must agree.

`make fuzz` runs it; see `__main__.py`. `back_ends.py` has what is compared, `model.py` what it is compared with. `limiters.py` and
`guards.py` run a history, `random_limiters.py` and `random_guards.py` invent one, `laws.py` checks what must hold besides.
"""
