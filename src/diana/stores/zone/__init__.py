"""`shared://NAME`: counters of all processes of a machine, in shared memory.

store        opens a zone by its URL
zone_file    the file: its header, owner and permissions
zone_header  the header of that file: what it is, and which clock it has
zone_size    sizes of a zone
c_zone       the zone in C
python/      the zone in Python, where there is no compiler
misfit_errors  errors for limits that do not fit into a zone
limit_names  the names of the limits in a zone in C, for `diana zone`
"""
