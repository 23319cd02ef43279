"""The filters that come with the gateway. Entry points: `diana.filters`.

access           allows or denies requests by address or header
signature        allows requests that are signed with a shared secret
used_signatures  signatures that must not be accepted again
"""
