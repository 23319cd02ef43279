"""What travels to and from the server: no socket, no thread, no loop.

scripts           the Lua scripts that run in the server
commands          one script call, step by step, as a generator
batch             requests that share one script call
compare_and_swap  algorithms without Lua, and refunds
wire_format       limits, keys, states and replies as bytes
server_clock      an estimate of the server's time, never ahead of it
"""
