"""Live reload of rules.

live_rules       follows a file and a remote backend, and swaps in new policies
local_copy       a copy of the last good remote rules, for a start without the backend
rules_health     what is wrong with a source of rules now
swap_without_gc  loads many rules in a serving process without a noticeable pause
"""
