"""The public door for authors of plug-ins: algorithms, actors, stores, sources, observers, filters, factors.

Everything that such a package needs of Diana is here; names elsewhere in `diana.core` may move. `diana.testing` checks what you wrote.
"""

from diana.core.actor import Actor, Identity, RuleContext
from diana.core.charge import Charge, Charges, checked_cost, decide_all_or_nothing
from diana.core.client_address import Proxies
from diana.core.contracts import (
    Algorithm,
    AsyncStore,
    AsyncTake,
    Clock,
    ConcurrencyAlgorithm,
    Delaying,
    InLua,
    Observer,
    Params,
    Revision,
    Shared,
    Source,
    State,
    Store,
    Take,
    Tiered,
    WritableSource,
)
from diana.core.counter import CounterSpec, meter_from_limit
from diana.core.decision import NEVER, UNKNOWN, Decision, Outcome
from diana.core.duration import SECOND_US
from diana.core.entry_log import NO_LOG, Log, log_of
from diana.core.errors import ConfigError, SourceError, StoreError
from diana.core.filter_settings import App, Filter, GatewayWorkers, Wrap
from diana.core.limit import ConcurrencyLimit, Limit
from diana.core.node_share import divided, slowed
from diana.core.request import Request
from diana.core.shed_settings import Activity, Factor, Level, Open, Sample, Shed
from diana.core.url_pattern import Url
from diana.core.verdict import Verdict
from diana.runtime.clock import wall_us
from diana.runtime.entry_points import algorithms
from diana.stores.memory import MemoryStore

__all__ = [
    "NEVER",
    "NO_LOG",
    "SECOND_US",
    "UNKNOWN",
    "Activity",
    "Actor",
    "Algorithm",
    "App",
    "AsyncStore",
    "AsyncTake",
    "Charge",
    "Charges",
    "Clock",
    "ConcurrencyAlgorithm",
    "ConcurrencyLimit",
    "ConfigError",
    "CounterSpec",
    "Decision",
    "Delaying",
    "Factor",
    "Filter",
    "GatewayWorkers",
    "Identity",
    "InLua",
    "Level",
    "Limit",
    "Log",
    "MemoryStore",
    "Observer",
    "Open",
    "Outcome",
    "Params",
    "Proxies",
    "Request",
    "Revision",
    "RuleContext",
    "Sample",
    "Shared",
    "Shed",
    "Source",
    "SourceError",
    "State",
    "Store",
    "StoreError",
    "Take",
    "Tiered",
    "Url",
    "Verdict",
    "Wrap",
    "WritableSource",
    "algorithms",
    "checked_cost",
    "decide_all_or_nothing",
    "divided",
    "log_of",
    "meter_from_limit",
    "slowed",
    "wall_us",
]
