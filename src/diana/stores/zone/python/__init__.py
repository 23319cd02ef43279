"""A zone without C.

python_zone    the store: decisions behind one lock on the zone's file
zone_layout    where everything is in the memory of a zone
counter_states the states of counters: read, written, and room made for new ones
known_limits   the limits of the zone, as this process knows them
entry_table    entries found by the hash of a key; eviction
log_entries    logs, kept in entries
zone_recovery  the lock of the file, and the undo log for processes that die while they write
"""
