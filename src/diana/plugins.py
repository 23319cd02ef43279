"""The public door for authors of plug-ins: algorithms, actors, stores, sources, observers, filters, factors.

Everything that such a package needs of Diana is here; names elsewhere in `diana.core` may move. `diana.testing` checks what you wrote.
"""

from diana.core.actor import Actor, Identity, Surroundings
from diana.core.address import Proxies
from diana.core.charge import Charge, Charges, checked_cost
from diana.core.contracts import (
    Algorithm,
    AsyncStore,
    AsyncTake,
    Clock,
    Delaying,
    Editable,
    Edition,
    InLua,
    Observer,
    Params,
    Placing,
    Shared,
    Source,
    State,
    Store,
    Take,
    Tiered,
)
from diana.core.decision import NEVER, UNKNOWN, Decision, Outcome
from diana.core.division import divided, slowed
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError, SourceError, StoreError
from diana.core.filter import App, Filter, GatewayWorkers, Wrap
from diana.core.limit import Limit, Places
from diana.core.log import NO_LOG, Log, log_of
from diana.core.meter import Meter, meter_from_limit
from diana.core.plugins import algorithms
from diana.core.request import Request
from diana.core.shed import Activity, Factor, Level, Open, Sample, Shed
from diana.core.url import Url
from diana.core.verdict import Verdict
from diana.core.weigh import weigh
from diana.stores.clock import wall_us
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
    "ConfigError",
    "Decision",
    "Delaying",
    "Editable",
    "Edition",
    "Factor",
    "Filter",
    "GatewayWorkers",
    "Identity",
    "InLua",
    "Level",
    "Limit",
    "Log",
    "MemoryStore",
    "Meter",
    "Observer",
    "Open",
    "Outcome",
    "Params",
    "Places",
    "Placing",
    "Proxies",
    "Request",
    "Sample",
    "Shared",
    "Shed",
    "Source",
    "SourceError",
    "State",
    "Store",
    "StoreError",
    "Surroundings",
    "Take",
    "Tiered",
    "Url",
    "Verdict",
    "Wrap",
    "algorithms",
    "checked_cost",
    "divided",
    "log_of",
    "meter_from_limit",
    "slowed",
    "wall_us",
    "weigh",
]
