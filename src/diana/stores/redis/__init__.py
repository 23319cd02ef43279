"""Counters in Redis or Valkey, shared by a fleet: one server, Sentinel or Cluster.

store       prepare, send, conclude; async_store  the same for coroutines: they differ by an `await`
decide      what is asked of which server, and what the replies mean: pure
jobs        what `decide` wants done, and doing it for threads and for tasks
deny_cache  a key that was just denied need not ask again
fallback    counting here while the store is lost, and charging it to the store afterwards
url         how a store is written;  counts: what happened, in whole numbers;  notices: what operators read
protocol/   scripts, batches, limits, keys and replies as they travel; no socket, no thread, no loop
connection/ how threads and event loops ask; servers, their breakers, and which of them has a key; a client of the application's own
background/ what may take its time: connecting, probing, healing, the heartbeat, publishing
"""
