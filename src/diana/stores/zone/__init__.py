"""`shared://NAME`: counters of all processes of a machine, in shared memory.

store        opens a zone by its URL
zone_file    the file: its header, owner and permissions
c_zone       the zone in C
python/      the zone in Python, where there is no compiler
limit_names  the names of the limits in a zone in C, for `diana zone`
"""
