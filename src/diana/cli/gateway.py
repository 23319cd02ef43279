"""`diana gateway`: the rules in front of a service that need not know of them."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from shlex import quote
from typing import Any

import click

from diana.cli.output import say, say_text
from diana.core.contracts import Observer
from diana.core.duration import micros_from_spelling
from diana.core.errors import ConfigError, SourceError, StoreError
from diana.core.filter_settings import GatewayWorkers
from diana.core.policy import Policy, Settings
from diana.core.rule import Rule
from diana.guard import AsyncGuard
from diana.rules import is_url
from diana.rules.loading import load_rules
from diana.telemetry.denial_log import CLIENTS

HEADERS = {"account": "header X-Account-Id", "device": "header X-Device-Id"}
"""Where identities are if a rules file does not say."""
TRY = """\
Try:
  curl {address}/"""
TRY_SEARCHES = """\
  curl -s -o /dev/null -w '%{{http_code}}\\n' {header}'{address}/search?q=[1-4]'
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
    "--local-store",
    metavar="URL",
    help="Where rules of scope local count; wins over the file's local_store.  [default: the file's; with several workers a zone,"
    " shared://gateway-HOST-PORT]",
)
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
@click.option(
    "--denial-log/--no-denial-log",
    default=True,
    help="A line per denied request, at most 20 in ten seconds, on stderr.  [default: on]",
)
@click.option(
    "--log-clients",
    default="digest",
    show_default=True,
    type=click.Choice(CLIENTS),
    help="How the denial log writes the key that a client was counted by.",
)
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(min=1, max=1_024),
    metavar="N",
    help="Processes that serve; they share the address and, unless local_store says otherwise, one count. SIGHUP replaces them one by one.",
)
def gateway(
    upstream: str | None,
    sample: bool,
    rules: str,
    bind: tuple[str, int],
    store: str | None,
    local_store: str | None,
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
    denial_log: bool,
    log_clients: str,
    workers: int,
) -> None:
    """Forward requests to an upstream as the rules allow.

    A request over its limit is answered at once; neither the filters behind the limiter nor the upstream see it.
    """
    if upstream is not None and sample:
        raise click.UsageError("write --upstream URL or --sample, not both")
    if upstream is None and not sample:
        raise click.UsageError("write --upstream URL, such as http://127.0.0.1:9000, or --sample")
    try:
        from diana.gateway import app as running
        from diana.gateway import sample_app as shipped
        from diana.gateway import server
        from diana.gateway.supervisor import Supervisor
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"the gateway needs {missing.name}; run pip install 'diana-limiter[gateway]'"
        ) from None
    except ImportError as missing:
        raise click.ClickException(str(missing)) from None
    with ExitStack() as stack:
        try:
            listening = stack.enter_context(server.bound_socket(*bind))
            local_store = _local_store(local_store, rules, workers, bind, listening, stack)
            observers = running.observers_of_gateway(log_clients if denial_log else None)
            guard = _guard(rules, store, local_store, observers)
            closing = stack.enter_context(ExitStack())
            closing.callback(lambda: asyncio.run(guard.close()))
            if sample:
                beside = stack.enter_context(server.bound_socket("127.0.0.1", 0))
                stack.enter_context(server.served_beside(shipped.sample, beside))
                upstream = f"http://127.0.0.1:{beside.getsockname()[1]}"
            options = running.GatewayOptions(
                upstream=upstream or "",
                rules=rules,
                store=store,
                local_store=local_store,
                connect_timeout=connect_timeout,
                read_timeout=read_timeout,
                body_timeout=body_timeout,
                body_rate=body_rate,
                max_connections=max_connections and -(-max_connections // workers),
                grace=grace,
                rewrite_host=rewrite_host,
                allow_underscore=list(allow_underscore),
                tune_process=tune_process,
                access_log=access_log,
                denial_log=log_clients if denial_log else None,
                workers=workers,
            )
            app, bounds = running.prepared(options, guard, sys.stdout)
        except ConfigError as error:
            raise click.ClickException(_told(error, rules)) from None
        address = f"http://{_shown(listening.getsockname())}"
        behind = "a sample service" if sample else upstream or ""

        def announce() -> None:
            _introduce(guard.policy, address, behind, workers)

        if workers == 1:
            running.serve(options, app, bounds, listening, announce)
        else:
            closing.close()  # to follow rules and to count is the workers' business
            if not Supervisor(asdict(options), listening, workers, grace, announce).run():
                raise click.ClickException("the workers did not start")
    say("Stopped.")


def _local_store(
    given: str | None,
    rules: str,
    workers: int,
    bind: tuple[str, int],
    listening: socket.socket,
    stack: ExitStack,
) -> str | None:
    """Several workers count together, in a zone of their own, unless they are told where to count."""
    if given is not None or workers == 1:
        return given
    if _written_local_store(rules) != Settings().local_store:
        return None
    host, port = listening.getsockname()[:2]
    name = f"gateway-{host.replace(':', '_')}-{port}"
    if bind[1] == 0:
        # No later gateway opens them again.
        stack.callback(_remove_zone, name)
        stack.callback(_remove_zone, GatewayWorkers(workers, name).name("signatures"))
    return f"shared://{name}"


def _written_local_store(rules: str) -> str:
    """What is wrong with a file is told when its rules are opened."""
    try:
        settings = Settings() if is_url(rules) else load_rules(rules).settings
    except ConfigError:
        settings = Settings()
    return settings.local_store


def _remove_zone(name: str) -> None:
    from diana.stores.zone.zone_file import remove_zone_file

    with suppress(ConfigError, StoreError):
        remove_zone_file(name)


def _guard(
    rules: str, store: str | None, local_store: str | None, observers: Sequence[Observer]
) -> AsyncGuard:
    try:
        return AsyncGuard.from_file(rules, store, local_store=local_store, observers=observers)
    except (ConfigError, SourceError) as error:
        raise click.ClickException(f"these rules cannot be used:\n{error}") from None
    except StoreError as error:
        raise click.ClickException(str(error)) from None


def _told(error: ConfigError, rules: str) -> str:
    if error.line is None:
        return str(error)
    return (
        f"these rules cannot be used:\n{rules}:{error.line}:{error.column}: {error.path}: {error}"
    )


def _introduce(policy: Policy, address: str, upstream: str, workers: int) -> None:
    rules, filters = policy.rules, policy.settings.filters
    among = "" if workers == 1 else f", with {workers} workers"
    say(f"Diana listens on {address} and forwards to {upstream}{among}.")
    say(f"{len(rules)} rule{'' if len(rules) == 1 else 's'}:")
    for rule in rules:
        say(f"  {rule}")
    if filters:
        say(f"Filters behind them: {', '.join(line.name for line in filters)}")
    if upstream == "a sample service":
        say_text(TRY.format(address=address))
        searches = [rule for rule in rules if rule.url.spelling == "/search"]
        if searches:
            header = header_of_rule(searches[0], policy.settings)
            option = "" if header is None else f"-H {quote(f'{header}: alice')} "
            say_text(TRY_SEARCHES.format(address=address, header=option))
    say("Stop with Ctrl-C.")
    sys.stdout.flush()


def header_of_rule(rule: Rule, settings: Settings) -> str | None:
    """The request header by which a rule tells clients apart; None if it looks at something else."""
    for actor in rule.actor.split(" + "):
        word, _, name = str(settings.identity.get(actor, HEADERS.get(actor, actor))).partition(" ")
        if word == "header":
            return name
    return None


def _shown(bound: tuple[Any, ...]) -> str:
    host, port = bound[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
