"""A zone without C.

python_zone    the store: decisions behind one lock on the zone's file
zone_layout    where everything is in the memory of a zone
entry_table    the layout of the memory; entries found by the hash of a key; eviction
log_entries    logs, kept in entries
zone_recovery  the lock of the file, and the undo log for processes that die while they write
"""
