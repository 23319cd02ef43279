"""Permits in batches from the fleet's pool: a decision costs no round trip, and the fleet never exceeds the limit.

pool       what the store does with an ask: pure; `protocol.lease_in_lua` is the same in Lua, and tests hold one against the other
lease      what a node holds of one counter: pure, time comes in
table      all leases of this node, and which counters are hot enough for one
in_zone    the same, held by all processes of a machine together
asking     an ask as it travels, and what the reply means
refiller   the background thread that asks ahead of need
decide     the decisions that a lease does not answer
store      the shell around them, for threads and for coroutines
"""
