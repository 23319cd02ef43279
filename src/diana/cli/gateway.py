"""`diana gateway`: the rules in front of a service that need not know of them."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from typing import Any

import click

from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy
from diana.guard import AsyncGuard
from diana.sources.following.low_impact import may_tune_process

TRY = """\
Try:
  curl {address}/"""
TRY_SEARCHES = """\
  curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'X-Account-Id: alice' '{address}/search?q=[1-4]'
  curl {address}/healthz"""


def _seconds(_: click.Context, __: click.Parameter, value: str) -> float:
    """`30s`, `500ms`, `2m`."""
    try:
        return micros_from_spelling(value) / 1_000_000
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None


def _address(_: click.Context, __: click.Parameter, value: str) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080`, or a port alone."""
    host, _colon, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or (":" in host and host[0] != "["):
        raise click.BadParameter(f"{value!r} is no address; write one such as 127.0.0.1:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@click.option("--upstream", metavar="URL", help="The service, such as http://127.0.0.1:9000.")
@click.option("--sample", is_flag=True, help="Instead of an upstream: a small service to try with.")
@click.option(
    "--rules",
    required=True,
    metavar="FILE|URL",
    help="The rules file, whose filters: are the chain behind the limiter; or where rules come from. Changes are followed.",
)
@click.option(
    "--bind",
    default="127.0.0.1:8080",
    show_default=True,
    callback=_address,
    metavar="HOST:PORT",
    help="Where to listen; port 0 takes a free one.",
)
@click.option("--store", metavar="URL", help="Wins over the file's store.")
@click.option(
    "--connect-timeout",
    default="5s",
    show_default=True,
    callback=_seconds,
    metavar="DURATION",
    help="How long the upstream may take to accept a connection.",
)
@click.option(
    "--read-timeout",
    default="60s",
    show_default=True,
    callback=_seconds,
    metavar="DURATION",
    help="How long it may send nothing.",
)
@click.option(
    "--body-timeout",
    default="60s",
    show_default=True,
    callback=_seconds,
    metavar="DURATION",
    help="How long a client may send nothing of its body, or take nothing of an answer.",
)
@click.option(
    "--body-rate",
    default=500,
    show_default=True,
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Bytes per second that a client must send or take to be waited for longer than that.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    metavar="N",
    help="Clients at once; when they are more, those go first that are idle for the longest."
    "  [default: 4096, or half of the descriptors]",
)
@click.option(
    "--grace",
    default="30s",
    show_default=True,
    callback=_seconds,
    metavar="DURATION",
    help="How long requests under way may take to finish when the gateway is stopped.",
)
@click.option(
    "--rewrite-host", is_flag=True, help="Send the upstream its own name as Host, not the client's."
)
@click.option(
    "--allow-underscore",
    multiple=True,
    metavar="NAME",
    help="Forward this header, though its name has an underscore; all others are dropped. May be repeated.",
)
@click.option(
    "--tune-process/--no-tune-process",
    default=True,
    help="While changed rules are read, pause the garbage collector and switch threads more often.  [default: on]",
)
@click.option("--access-log/--no-access-log", default=True, help="One line per request, on stdout.")
def gateway(
    upstream: str | None,
    sample: bool,
    rules: str,
    bind: tuple[str, int],
    store: str | None,
    connect_timeout: float,
    read_timeout: float,
    body_timeout: float,
    body_rate: int,
    max_connections: int | None,
    grace: float,
    rewrite_host: bool,
    allow_underscore: tuple[str, ...],
    tune_process: bool,
    access_log: bool,
) -> None:
    """Forward requests to an upstream, as often as the rules allow.

    A request over its limit is answered at once; neither the filters behind the limiter nor the upstream see it.
    """
    if (upstream is None) == (not sample):
        raise click.UsageError("write --upstream URL, such as http://127.0.0.1:9000, or --sample")
    try:
        from diana.gateway import sample as shipped
        from diana.gateway import server
        from diana.gateway.bounds import Bounds
        from diana.gateway.chain import gateway as chain
        from diana.gateway.connection_limit import most_connections, raise_descriptor_limit
        from diana.gateway.upstream import upstream_from_url
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"the gateway needs {missing.name}; run pip install 'diana-limiter[gateway]'"
        ) from None
    except ImportError as missing:
        raise click.ClickException(str(missing)) from None
    guard = _guard(rules, store)
    with ExitStack() as stack:
        stack.callback(lambda: asyncio.run(guard.close()))
        try:
            if sample:
                beside = stack.enter_context(server.bound_socket("127.0.0.1", 0))
                stack.enter_context(server.served_beside(shipped.sample, beside))
                upstream = f"http://127.0.0.1:{beside.getsockname()[1]}"
            target = upstream_from_url(
                upstream or "",
                connect_timeout=connect_timeout,
                read_timeout=read_timeout,
                own_host=rewrite_host,
                underscores=allow_underscore,
            )
            raise_descriptor_limit(max_connections)
            bounds = Bounds(
                body_seconds=body_timeout,
                body_rate=body_rate,
                connections=most_connections(max_connections),
            )
            listening = stack.enter_context(server.bound_socket(*bind))
            log = sys.stdout if access_log else None
            app = chain(guard, target, access_log=log, bounds=bounds)
        except ConfigError as error:
            raise click.ClickException(_told(error, rules)) from None
        address = f"http://{_shown(listening.getsockname())}"
        behind = "a sample service" if sample else upstream or ""
        if tune_process:
            may_tune_process()
        server.serve(
            app,
            listening,
            grace_seconds=max(1, round(grace)),
            bounds=bounds,
            announce=lambda: _introduce(guard.policy, address, behind),
        )
    click.echo("Stopped.")


def _guard(rules: str, store: str | None) -> AsyncGuard:
    try:
        return AsyncGuard.from_file(rules, store)
    except (ConfigError, SourceError) as error:
        raise click.ClickException(f"these rules cannot be used:\n{error}") from None


def _told(error: ConfigError, rules: str) -> str:
    if error.line is None:
        return str(error)
    return (
        f"these rules cannot be used:\n{rules}:{error.line}:{error.column}: {error.path}: {error}"
    )


def _introduce(policy: Policy, address: str, upstream: str) -> None:
    rules, filters = policy.rules, policy.settings.filters
    click.echo(f"Diana listens on {address} and forwards to {upstream}.")
    click.echo(f"{len(rules)} rule{'' if len(rules) == 1 else 's'}:")
    for rule in rules:
        click.echo(f"  {rule}")
    if filters:
        click.echo(f"Filters behind them: {', '.join(line.name for line in filters)}")
    if upstream == "a sample service":
        click.echo(TRY.format(address=address))
        if any(rule.url.spelling == "/search" for rule in rules):
            click.echo(TRY_SEARCHES.format(address=address))
    click.echo("Stop with Ctrl-C.")
    sys.stdout.flush()


def _shown(bound: tuple[Any, ...]) -> str:
    host, port = bound[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
