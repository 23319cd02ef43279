"""A reverse proxy with a chain of filters, the limiter first: `diana gateway`.

client ─▶ access log ─▶ limiter ─▶ filters, in the file's order ─▶ proxy ─▶ upstream
                           │          │
                           ╰──────────┴─▶ a response at once: nothing further right is called

app                         the chain, and from options to a serving gateway
access_log                  one line per request
filters/                    the filters that come with the gateway
proxy                       from a request to the upstream's response
upstream                    the pool of connections to the upstream
upload_body                 the body of a request, and whether the client is still there
forwarding_headers          which header lines are passed on
path_traversal              paths that leave the upstream's prefix
websocket_relay             a WebSocket, relayed to the upstream
error_response              responses of the gateway itself

server                      uvicorn, set up for the gateway
supervisor                  several worker processes
worker                      one worker process
http_protocol               a client's connection
websocket_protocol          a client's WebSocket
head_validation             which heads are refused
read_backlog                how much of pipelined requests is read at once
client_limits               how much of the gateway one client may use; the number of connections
slow_readers                clients that do not read their responses
uvicorn_aiohttp_internals   parts of uvicorn and aiohttp that are overridden
sample_app                  a small upstream: `diana gateway --sample`
"""
