"""Foreign services (a model server, a search API) that bear only so much at once.

Every call to one stands in ``async with context.provider("openai") as call:``. As many may be under way as
``[providers]`` allows. A refusal for too much traffic (429, 503), reported by raising ``Throttled`` inside
the block, halves that number for this process and keeps everybody out for the Retry-After, or for a time that
grows with each refused round where there is none. Each call that goes through lets the number grow back, by
one for each whole round.

To be throttled is a wait, not a failure. A gate that opens soon is waited for; one that stays closed for more
than ``GATE_SECONDS`` refuses at once with ``Throttled``, and sends those away who wait already, so that a
closed provider does not fill a pool. Where ``Throttled`` leaves a handler its job is put back until the gate
opens and burns no attempt (``pools.judgement`` says what bounds that).

Processes do not talk about it: each finds its own share, as TCP connections do. (One count for all, in Redis,
was rejected: it costs a round trip for each call, and knows no better what the other side bears.)

A provider is named by code and configuration, and its figures are shown under that name. Where tenants have
credentials of their own, ``account`` keeps them apart, so that one who overdraws his slows nobody else down.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import anyio.lowlevel

from hive.clock import Clock, SystemClock
from hive.errors import ConfigurationError, Transient
from hive.events import Events, ProviderThrottled
from hive.logger import get_logger
from hive.retry_after import retry_after_seconds
from hive.throttle import Throttle

log = get_logger(__name__)

DEFAULT: Final = "default"
DEFAULT_CALLS: Final = 8
MOST_NAMES: Final = 100
MOST_ACCOUNTS: Final = 1_000
BUSY: Final = frozenset({429, 503})
GATE_SECONDS: Final = 5.0
"""How long a handler waits in its slot for a gate to open.

Most limits are per second, so most gates open within it. Above it the slot is worth more than what a put-back
costs: a second until a sweep brings the job back, and all that its handler had done so far.
"""


class Throttled(Transient):
    """The other side has too much to do: raise it inside the provider's block.

    It slows all calls to that provider down. Where it leaves the handler, the job is put back for
    ``retry_after_seconds``, else for a delay that grows, whatever its policy, and burns no attempt. A handler
    that would rather keep its slot catches it outside the block and enters the block again with
    ``patience_seconds=math.inf``; without that it would be refused again at once.
    """

    code = "throttled"

    def __init__(
        self,
        message: str = "the other side asks for patience",
        *,
        retry_after_seconds: float | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds, remedy=remedy)
        self.provider: str | None = None  # whose block has counted it


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCall:
    """One call under way."""

    provider: str

    def check(self, status: int, headers: Mapping[str, str]) -> None:
        """Raise ``Throttled`` when an HTTP answer says "not now": 429 and 503, with their Retry-After."""
        if status in BUSY:
            raise Throttled(
                f"{self.provider} answered {status}", retry_after_seconds=retry_after_seconds(headers)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderState:
    """Where a provider stands in this process. ``limit``: that of its slowest account."""

    provider: str
    limit: int
    under_way: int
    waiting: int
    closed_seconds: float


class Providers:
    """All providers of one process: ``context.service(Providers)``."""

    def __init__(
        self,
        ceilings: Mapping[str, int] | None = None,
        *,
        events: Events | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``ceilings``: the most calls at once by provider; ``default`` is for those not named."""
        self._ceilings = dict(ceilings or {})
        self._events = events
        self._clock = clock or SystemClock()
        self._names: dict[str, int] = {}
        self._throttles: dict[tuple[str, str | None], Throttle] = {}  # the longest unused first

    @asynccontextmanager
    async def call(
        self, name: str, *, account: str | None = None, patience_seconds: float | None = None
    ) -> AsyncGenerator[ProviderCall]:
        """Wait for one's turn at ``name``, and hold it for the block: one call to the other side.

        ``account``: whose credential it is, where there are several. ``patience_seconds``: who cannot wait
        any longer is refused with ``Throttled``, at once where the gate is known to stay closed. Without it
        one waits in turn for however long the calls before take, but at a closed gate for ``GATE_SECONDS``
        at the most. Raises ``ConfigurationError`` for a name too many. Cancelling leaves nothing behind.
        """
        throttle = self._throttle(name, account)
        round = await self._entered(throttle, name, patience_seconds)
        try:
            yield ProviderCall(provider=name)
        except Throttled as error:
            if error.provider is None:
                error.provider = name
                self._slow_down(throttle, name, account, round, error.retry_after_seconds)
                if not error.retry_after_seconds:
                    error.retry_after_seconds = throttle.closed_seconds or None
            raise
        else:
            throttle.success()
        finally:
            throttle.leave()

    def state(self, name: str) -> ProviderState:
        """Where ``name`` stands, over all its accounts."""
        throttles = [throttle for (each, _), throttle in self._throttles.items() if each == name]
        return ProviderState(
            provider=name,
            limit=min((throttle.limit for throttle in throttles), default=self._ceiling(name)),
            under_way=sum(throttle.inside for throttle in throttles),
            waiting=sum(throttle.waiting for throttle in throttles),
            closed_seconds=max((throttle.closed_seconds for throttle in throttles), default=0.0),
        )

    def states(self) -> list[ProviderState]:
        """Every provider that was called since the start."""
        return [self.state(name) for name in self._names]

    async def _entered(self, throttle: Throttle, name: str, patience_seconds: float | None) -> int:
        # Waiting in turn is not bounded by itself: those before make progress, and a handler of ten calls
        # that was put back at its ninth would begin with the first again, for ever.
        gate_seconds = GATE_SECONDS if patience_seconds is None else patience_seconds
        with anyio.move_on_after(patience_seconds):
            round = await throttle.enter(gate_seconds)
            if round is not None:
                return round
            await anyio.lowlevel.checkpoint()  # who comes again at once shall not hold up the loop
        refused = Throttled(f"{name} has no room", retry_after_seconds=throttle.closed_seconds or None)
        refused.provider = name
        raise refused

    def _slow_down(
        self, throttle: Throttle, name: str, account: str | None, round: int, seconds: float | None
    ) -> None:
        if throttle.overrun(round, seconds):
            log.warning(
                "provider.throttled",
                provider=name,
                account=account,
                limit=throttle.limit,
                retry_after_seconds=seconds,
                closed_seconds=throttle.closed_seconds,
            )
        if self._events is not None:
            self._events.publish(ProviderThrottled(provider=name))

    def _throttle(self, name: str, account: str | None) -> Throttle:
        if name not in self._names:
            if len(self._names) == MOST_NAMES:
                raise ConfigurationError(
                    f"provider {name}: {MOST_NAMES} providers are in use already",
                    remedy="name a provider in code; what differs by tenant is its account",
                )
            self._names[name] = self._ceiling(name)
        throttle = self._throttles.pop((name, account), None)
        if throttle is None:
            throttle = Throttle(self._names[name], self._clock)
            if len(self._throttles) >= MOST_ACCOUNTS:
                self._forget()
        self._throttles[name, account] = throttle
        return throttle

    def _forget(self) -> None:
        """Drop the account that nobody uses for longest. Should it still be slow, a refusal will say so."""
        for key, throttle in self._throttles.items():
            if not throttle.inside and not throttle.waiting:
                del self._throttles[key]
                return

    def _ceiling(self, name: str) -> int:
        return self._ceilings.get(name, self._ceilings.get(DEFAULT, DEFAULT_CALLS))
