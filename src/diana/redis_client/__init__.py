"""Connections to Redis and Valkey within a time budget. Nothing here depends on limits or rules.

redis_url          the URLs of a server, Sentinels or a cluster
connection         one socket, and the replies that it receives
handshake          resolve, connect, TLS, log in
connection_pool    the ready connections to one server
redis_server       all parts of one server
topology           which servers there are, and which has a key
time_budget        how much longer a request may wait
circuit_breaker    whether requests may query a server
reply_errors       what may come instead of a reply
reconnector        the background thread of one server: probes it, loads scripts, closes the circuit breaker
thread_connection  a background thread's own connection
"""
