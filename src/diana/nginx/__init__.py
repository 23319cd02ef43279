"""nginx: its limits as rules, and rules for nginx.

importing/       `limit_req` and `limit_conn` as a rules file, and what could not be translated
rules_json       rules as JSON for Lua, or why nginx cannot apply them
exporter         the folder that nginx includes; its Lua is in lua/
rules_publisher  rules in the store, for nginx to read
"""
