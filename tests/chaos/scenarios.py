"""Every scenario: its fault, the carriers it is about, and what must be seen for it to count as tried."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import faults
from faults import Fault

BOTH: Final = ("ledger", "stream")
STREAM: Final = ("stream",)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """``proxied``: consumers and publishers reach the stores through the arena's proxies.

    ``reruns``, ``stale``: how many handler starts beyond the first, and refused outcomes, there must be at
    least; without them the fault hit nothing. ``dies_at``: consumers kill themselves at each await in turn.
    """

    name: str
    fault: Fault
    carriers: tuple[str, ...] = BOTH
    proxied: bool = False
    reruns: int = 0
    stale: int = 0
    own_servers: bool = False
    wipes: bool = False


_ALL: Final = (
    Scenario(name="kill", fault=faults.kill, reruns=1),
    Scenario(name="kill_without_heir", fault=faults.kill_without_heir, reruns=1),
    Scenario(name="kill_during_transaction", fault=faults.kill_at_each_await, carriers=("ledger",)),
    Scenario(name="freeze", fault=faults.freeze, reruns=1, stale=1),
    Scenario(name="redis_restart", fault=faults.redis_restart, carriers=STREAM, own_servers=True),
    Scenario(name="redis_crash", fault=faults.redis_crash, carriers=STREAM, own_servers=True),
    Scenario(name="redis_flushall", fault=faults.redis_flushall, wipes=True),
    Scenario(name="client_kill", fault=faults.client_kill, carriers=STREAM),
    Scenario(
        name="redis_cut", fault=faults.cut(lambda arena: arena.redis_proxy), carriers=STREAM, proxied=True
    ),
    Scenario(
        name="redis_freeze",
        fault=faults.frozen(lambda arena: arena.redis_proxy),
        carriers=STREAM,
        proxied=True,
    ),
    Scenario(
        name="redis_half_close",
        fault=faults.half_closed(lambda arena: arena.redis_proxy),
        carriers=STREAM,
        proxied=True,
    ),
    Scenario(
        name="redis_half_open",
        fault=faults.half_open(lambda arena: arena.redis_proxy),
        carriers=STREAM,
        proxied=True,
    ),
    Scenario(
        name="redis_slow", fault=faults.slow(lambda arena: arena.redis_proxy), carriers=STREAM, proxied=True
    ),
    Scenario(name="postgres_restart_fast", fault=faults.postgres_restart_fast, own_servers=True),
    Scenario(name="postgres_restart_immediate", fault=faults.postgres_restart_immediate, own_servers=True),
    Scenario(name="postgres_terminate", fault=faults.postgres_terminate),
    Scenario(name="postgres_cut", fault=faults.cut(lambda arena: arena.postgres_proxy), proxied=True),
    Scenario(name="postgres_freeze", fault=faults.frozen(lambda arena: arena.postgres_proxy), proxied=True),
    Scenario(
        name="postgres_half_close", fault=faults.half_closed(lambda arena: arena.postgres_proxy), proxied=True
    ),
    Scenario(
        name="postgres_half_open", fault=faults.half_open(lambda arena: arena.postgres_proxy), proxied=True
    ),
    Scenario(name="postgres_slow", fault=faults.slow(lambda arena: arena.postgres_proxy), proxied=True),
)
SCENARIOS: Final[Mapping[str, Scenario]] = {each.name: each for each in _ALL}
PEER_SCENARIOS: Final = ("kill", "freeze")
"""Where a peer on Redis alone is known to lose or double."""
