"""What a client receives, as pure functions of a verdict: used by all middlewares and the gateway.

denial_response    status, header lines and body of a denial; header lines of an allowed request
ratelimit_headers  the header lines `RateLimit`, `RateLimit-Policy` and `X-RateLimit-*`
preferred_kind     the kind of body that the request's `Accept` header prefers
"""
