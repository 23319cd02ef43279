"""Counters in Redis or Valkey, shared by a fleet: one server, Sentinel or Cluster.

store      charges in, decisions out: two shells that differ by an `await`
asking     what is asked, in order;  questions: of whom, and what the answers mean (no sockets, no threads)
wire       limits, keys and answers as they travel;  script: what runs inside the server
denials    who was just denied need not ask again
fallback   counting here while the store is lost;  settling: charging it to the store afterwards
swap       compare and swap, for algorithms without Lua and refunds;  changes: what it does to states
errands    what is to be done, and who does it: threads or tasks
talk       one command to one server and what may come back instead of an answer
link       a connection for threads;  turn: a connection for an event loop, where what waits travels together
server     one server: its ready links, its clock, its breaker
topology   which servers there are, and which of them has a key
keeper     the background thread: connects, probes, heals;  messenger: its own line to each server
publishing the scripts and limits that others find;  registry: that this node lives
client     somebody's own client instead of all that
counts     what happened, in whole numbers
url        how a store is written
"""
