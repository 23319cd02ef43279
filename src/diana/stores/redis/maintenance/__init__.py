"""Background work of a Redis store. No request waits for it.

topology_refresh   the store's thread: finds the servers, runs the periodic tasks
heartbeat          which nodes are alive; arrivals of keys, summed over the fleet
overrides_refresh  overrides that are kept in the store
script_publisher   scripts and limits, for other gateways
limit_publisher    the cost, tiers and overrides of a rule, for commands such as `diana peek`
connection_opener  the thread that opens connections to one server
silence            how long to wait until a server counts as silent
"""
