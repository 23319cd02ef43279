"""Admission: what the middlewares and route limits of all frameworks share.

Applications import `diana.asgi`, `diana.wsgi`, `diana.django` and so on.

startup             a guard from a middleware's options; the warning about several workers
scope_request       `ScopeRequest`: a request of ASGI, as rules see it
asgi_send           `send` as an app gets it: it adds header lines
asgi_types          the types of ASGI
identity_callbacks  functions of the application: `account=`, `device=`, `tier=`, `limit=`, `allow=`, `cost=`
admission           waiting for a delay, requests in flight, release of slots, what the application finds in the request
request_charges     what one request was charged, by middlewares and route limits: all or nothing together
status_settlement   `charge_on`: settles charges when the response's status is known
route_limit         a limit on a route, and the names of views
view_limits         the limit of each view that a decorator is on
route_headers       header lines of several limits on one route
"""
