"""`diana demo`: a small web page behind a limiter, on the standard library's server."""

from __future__ import annotations

from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from math import ceil

import click

from diana.core.decision import Decision
from diana.core.errors import ConfigError
from diana.limiter import Limiter


@click.command()
@click.option("--limit", default="5/10s", show_default=True, help="How many per how long.")
@click.option("--algo", default="TB", show_default=True, help="TB, LB, W, SW or SL.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, help="0 takes a free one.")
def demo(limit: str, algo: str, host: str, port: int) -> None:
    """Serve a page that may be asked for only so often.

    Every address has its own counter. Over the limit the answer is 429 and says when to come back.
    """
    try:
        limiter = Limiter(limit, algo=algo)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        server = ThreadingHTTPServer((host, port), page_behind(limiter, limit))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from None
    address = f"http://{host}:{server.server_port}/"
    click.echo(f"Diana lets {limit} per address through to {address}\n")
    click.echo("Try:")
    click.echo(f"  curl -i {address}                                  # five times 200, then 429")
    click.echo(
        f"  for i in 1 2 3 4 5 6 7; do curl -so /dev/null -w '%{{http_code}} ' {address}; done"
    )
    click.echo(f"  or open {address} in a browser and reload quickly\n")
    click.echo("Stop with Ctrl-C.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        click.echo("\nStopped.")
    finally:
        server.server_close()


def page_behind(limiter: Limiter, limit: str) -> type[BaseHTTPRequestHandler]:
    template = files("diana.cli").joinpath("demo.html").read_text(encoding="utf-8")

    class Page(BaseHTTPRequestHandler):
        server_version = "diana-demo"

        def do_GET(self) -> None:
            decision = limiter.take(self.client_address[0])
            body = page(template, limit, decision).encode()
            self.send_response(200 if decision else 429)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            if not decision:
                self.send_header("Retry-After", str(ceil(decision.retry_after or 0)))
            self.end_headers()
            self.wfile.write(body)

    return Page


def page(template: str, limit: str, decision: Decision) -> str:
    verdict = "You may pass." if decision else f"Too soon: come back in {decision.retry_after:g} s."
    tokens = "●" * decision.remaining + "○" * (decision.limit - decision.remaining)
    for name, value in {
        "verdict": verdict,
        "state": "allowed" if decision else "denied",
        "limit": limit,
        "tokens": tokens if decision.limit <= 60 else f"{decision.remaining} left",
        "reset": f"{decision.reset_after:g}",
    }.items():
        template = template.replace(f"{{{{{name}}}}}", escape(value))
    return template
