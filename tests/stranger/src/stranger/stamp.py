"""A filter of a stranger: `stamp: {word: ...}` adds a line to every answer."""

from diana.plugins import Filter


def _stamp(proxies, *, word="stamped"):
    def wrap(app):
        async def stamped(scope, receive, send):
            async def stamping(message):
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"x-stamp", word.encode())]
                await send(message)

            await app(scope, receive, stamping)

        return stamped

    return wrap


stamp = Filter(_stamp, options=("word",))
