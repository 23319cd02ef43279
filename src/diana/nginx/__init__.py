"""nginx: its limits as rules, and rules for nginx.

config.py    a configuration file as a tree of directives
keys.py      what nginx counts by, as actors
zones.py     what it counts in
importing.py `limit_req` and `limit_conn` as a rules file, and what could not be translated
"""
