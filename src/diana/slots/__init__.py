"""`algo: C` in use. A slot is acquired by a decision, renewed while its request runs, and released at its end.

A slot that is neither renewed nor released expires in the store after `slot_ttl`.

slot            a slot that a request holds
acquired_slots  the slots of one request
slot_renewer    the thread that renews and releases slots
wait_queue      waiting until a limit allows: first come, first served, per key
waiting         how a request waits for a slot
"""
