"""Counters in Redis or Valkey, shared by a fleet: one server, Sentinel or Cluster.

store       charges in, decisions out: two shells that differ by an `await`
asking      what is asked, in order;  questions: of whom, and what the answers mean (no sockets, no threads)
deny_cache  a key that was just denied need not ask again
fallback    counting here while the store is lost;  settling: charging it to the store afterwards
errands     what is to be done, and who does it: threads or tasks
url         how a store is written;  counts: what happened, in whole numbers
protocol/   scripts, limits, keys and replies as they travel; no socket, no thread, no loop
connection/ threads, event loops, servers and which of them has a key; a client of the application's own
background/ what may take its time: connecting, probing, healing, the heartbeat, publishing
"""
