"""`diana demo`: a small web page behind a rules file, on the standard library's server."""

from __future__ import annotations

import time
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path
from urllib.parse import urlsplit

import click

from diana.cli.output import say, say_text
from diana.core.errors import ConfigError, StoreError
from diana.core.request import Request
from diana.core.verdict import Verdict
from diana.guard import Guard
from diana.responses.denial_response import DenialResponse, ResponseBuilder
from diana.web.identity_callbacks import refuse_code
from diana.wsgi import lines_from_fields

TRY = """\
Try:
  curl -i {address}
  for i in 1 2 3 4 5 6 7; do curl -so /dev/null -w '%{{http_code}} ' {address}; done; echo
  or open {address} in a browser and reload quickly

Stop with Ctrl-C."""


@click.command()
@click.option(
    "--rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A rules file; without it, five requests in ten seconds per address.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 takes a free one.",
)
def demo(rules: Path | None, host: str, port: int) -> None:
    """Serve a small page behind rules, to try them.

    It may be asked for only as often as the rules allow, and shows which rules were asked and what they said.
    """
    try:
        with as_file(files("diana.cli").joinpath("demo.yaml")) as shipped:
            guard = Guard.from_file(rules or shipped)
        refuse_code("diana demo", guard.policy)
    except ConfigError as error:
        raise click.ClickException(f"these rules cannot be used:\n{error}") from None
    except StoreError as error:
        raise click.ClickException(str(error)) from None
    try:
        server = ThreadingHTTPServer((host, port), page_behind(guard))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from None
    address = f"http://{host}:{server.server_port}/"
    try:
        say(f"Diana guards {address} by {len(guard.policy.rules)} rules:")
        for rule in guard.policy.rules:
            say(f"  {rule}")
        say()
        say_text(TRY.format(address=address))
        server.serve_forever()
    except KeyboardInterrupt:
        say_text("\nStopped.")
    finally:
        server.server_close()
        guard.close()


def page_behind(guard: Guard) -> type[BaseHTTPRequestHandler]:
    template = files("diana.cli").joinpath("demo.html").read_text(encoding="utf-8")
    answers = ResponseBuilder(guard.policy)

    class Page(BaseHTTPRequestHandler):
        server_version = "diana-demo"

        def do_GET(self) -> None:
            target = urlsplit(self.path)
            peer = self.client_address[0]
            request = Request(self.command, target.path, self.headers.items(), target.query, peer)
            verdict = guard.check(request)
            time.sleep(verdict.delay)
            status, fields, body = answer(answers, verdict, template)
            self.send_response(status)
            for name, line in lines_from_fields(fields):
                self.send_header(name, line)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    return Page


def answer(answers: ResponseBuilder, verdict: Verdict, template: str) -> DenialResponse:
    """Diana's own answer, but where no body is configured, a page that explains."""
    if verdict:
        status, fields = 200, [(b"cache-control", b"no-store"), *answers.fields(verdict)]
    else:
        status, fields, body = answers.denial(verdict)
        if answers.has_words_for(verdict) or not body:
            return DenialResponse(status, fields, body)
        fields = [field for field in fields if not field[0].startswith(b"content-")]
    page = explained(verdict, template)
    fields.append((b"content-type", b"text/html; charset=utf-8"))
    fields.append((b"content-length", str(len(page)).encode()))
    return DenialResponse(status, fields, page)


def explained(verdict: Verdict, template: str) -> bytes:
    if verdict:
        said = "You may pass."
    elif verdict.denial is None or verdict.denial.retry_after is None:
        free = verdict.denial is not None and not verdict.denial.never
        said = "All places are taken." if free else "You may not pass."
    else:
        said = f"Too soon: come back in {verdict.denial.retry_after:g} s."
    page = template
    for name, value in {
        "verdict": said,
        "state": "allowed" if verdict else "denied",
        "explanation": verdict.explain(),
    }.items():
        page = page.replace(f"{{{{{name}}}}}", escape(value))
    return page.encode("utf-8", "replace")
