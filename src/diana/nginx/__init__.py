"""nginx: its limits as rules, and rules for nginx.

importing/        `limit_req` and `limit_conn` as a rules file, and what could not be translated

wire_rules.py     rules as JSON that Lua reads, or why nginx could not obey them
unicode_tables.py what Lua has to know of characters
exporting.py      the folder that nginx includes; its Lua is in lua/
publishing.py     rules in the store, for nginx to read
"""
