"""Counters in Redis or Valkey, shared by a fleet: one server, Sentinel or Cluster.

store            wiring; prepare, send, conclude: two shells that differ by an `await`
async_store      the same store for coroutines
verbs            the same store for leased counters
decisions        what is asked of which server, and what the replies mean: pure
cluster_routing  which server has a counter, by hash slot
dispatch         sends what `decisions` yields: `send` for threads, `asend` for tasks
thread_batcher   how threads share connections
asyncio_batcher  how tasks of an event loop share connections
in_flight_call   a call that is under way, and the tasks that wait for it
app_client       the application's own redis-py or valkey-py client
deny_cache       a key that was just denied causes no round trip
local_fallback   counting here while the store is unreachable, and charging it to the store afterwards
refunds          refunds of charges
pending_refunds  refunds that are tried again in the background
reachable        `require_store`: whether the store can be reached at the start
advice           what to write instead, by the text of an error
store_metrics    what is counted for telemetry
protocol/        scripts, batches, keys and replies as they travel; no socket, no thread, no loop
maintenance/     background work: discovery, heartbeat, publishing
leases/          `scope: leased`: permits in batches
"""
