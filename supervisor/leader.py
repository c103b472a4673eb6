"""Leadership: holding the leader lease, and knowing at every moment whether it may still be trusted.

::

    attempt starts                         trusted until            the lease ends at the latest
    |──── call ────|                            |◀──── margin ────▶|
    t                                    t + ttl − margin        t + ttl

The lease was extended no earlier than the call began, so trust counted from that moment ends before the lease
does, however long the answer took. It is measured on the boot-time clock, which runs on through a suspend.
A leader that cannot renew stops leading by itself, with no store to ask.
"""

from collections.abc import Awaitable, Callable

import anyio

from hive.backoff import jittered
from hive.clock import Clock
from hive.errors import StoreDown
from hive.events import Events, LeaderChanged
from hive.locks.port import LeaderLease
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.settings import Leases

log = get_logger(__name__)

CANDIDATE_SECONDS = 1.0  # how often a candidate looks whether the lease is free: a hand-over takes that long
RETRY_SECONDS = 1.0  # how soon a renewal that got no answer is tried again
WATCH_SECONDS = 0.5  # timers stand still in a suspend, so the end of trust is looked for, not only timed

RELEASED = "released"


class Leadership:
    """This process's part in the election. ``run`` is the service that keeps it going.

    ``pulse`` is beaten by each round that came to an answer, "the store is away" included.
    """

    def __init__(self, lease: LeaderLease, settings: Leases, *, clock: Clock, events: Events) -> None:
        self._lease = lease
        self._renew_seconds = settings.leader_renew_seconds
        self._trust_seconds = lease.ttl_seconds - settings.leader_margin_seconds
        self._clock = clock
        self._events = events
        self._term: int | None = None
        self._trusted_until = float("-inf")
        self._changed = anyio.Event()
        self._closed = False
        self.pulse = Pulse(clock, settings.leader_renew_seconds)

    @property
    def leading(self) -> bool:
        """Whether this process leads at this very moment."""
        return self.term is not None

    @property
    def term(self) -> int | None:
        """The term to write under, or None while this process does not lead."""
        return self._term if self._clock.monotonic() < self._trusted_until else None

    async def run(self) -> None:
        """Take the lease when it is free and renew it while it is held, until cancelled.

        Cancelling gives nothing up: call ``release`` for that.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            while True:
                started = self._clock.monotonic()
                pause = await self.run_once()
                # Counted from the start of the round: a slow answer must not delay the next renewal.
                await anyio.sleep(max(0.0, started + pause - self._clock.monotonic()))

    async def run_once(self) -> float:
        """One attempt to take or to renew the lease; returns the seconds from its start to the next one."""
        if self._closed:
            return CANDIDATE_SECONDS
        started = self._clock.monotonic()
        self.check_trust()
        try:
            if self._term is None:
                return await self._stand(started)
            return await self._renew(started)
        except StoreDown as error:
            log.warning("leader.store_away", leading=self.leading, cause=str(error))
            return jittered(RETRY_SECONDS, 0.2)
        finally:
            self.pulse.beat()

    def check_trust(self) -> None:
        """Stop leading if the trust in the lease has run out."""
        if self._term is not None and self._clock.monotonic() >= self._trusted_until:
            self._lose("the lease could not be renewed in time")

    async def release(self) -> None:
        """Stop leading and hand the lease over at once; this process does not stand again. For shutdown.

        A store that is away is no reason to wait: the lease then ends by its time.
        """
        self._closed = True
        self._lose(RELEASED)
        try:
            await self._lease.release()
        except StoreDown as error:
            log.info("leader.lease_left_to_expire", cause=str(error))

    async def close(self) -> None:
        """Close the lease's own connection."""
        await self._lease.close()

    async def while_leading(
        self, body: Callable[[int], Awaitable[None]], *, pulse: Pulse | None = None
    ) -> None:
        """Run ``body(term)`` whenever this process leads, until cancelled.

        The body is cancelled the moment its term is over, and started anew with the next one. Its error, or
        its return, ends this call too. ``pulse``: the body's, beaten while it stands by.
        """
        returned = False
        while not returned:
            term = await self._until_leading(pulse)
            async with anyio.create_task_group() as group:
                group.start_soon(self._cancel_after, term, group.cancel_scope)
                await body(term)
                returned = True
                group.cancel_scope.cancel()

    async def _stand(self, started: float) -> float:
        term = await self._lease.try_acquire()
        if term is None:
            return jittered(CANDIDATE_SECONDS, 0.2)
        self._trusted_until = started + self._trust_seconds
        if self._closed or self._clock.monotonic() >= self._trusted_until:
            await self._lease.release()
            return RETRY_SECONDS
        self._term = term
        log.info("leader.elected", term=term)
        self._announce(leading=True, term=term)
        return self._renew_seconds

    async def _renew(self, started: float) -> float:
        if not await self._lease.renew():
            self._lose("another process holds the lease, or its store forgot it")
            return 0.0
        if self._term is not None:
            self._trusted_until = started + self._trust_seconds
        return self._renew_seconds

    def _lose(self, reason: str) -> None:
        term, self._term = self._term, None
        self._trusted_until = float("-inf")
        if term is not None:
            say = log.info if reason == RELEASED else log.warning
            say("leader.over", term=term, reason=reason)
            self._announce(leading=False, term=term)

    def _announce(self, *, leading: bool, term: int) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._events.publish(LeaderChanged(leading=leading, term=term))

    async def _watch(self) -> None:
        while True:
            self.check_trust()
            left = self._trusted_until - self._clock.monotonic() if self._term is not None else WATCH_SECONDS
            await anyio.sleep(min(max(left, 0.0), WATCH_SECONDS))

    async def _until_leading(self, pulse: Pulse | None) -> int:
        while (term := self.term) is None:
            if pulse is not None:
                pulse.beat()
            await self._change()
        return term

    async def _cancel_after(self, term: int, scope: anyio.CancelScope) -> None:
        # By the term, not by `leading`: a lost and regained lease is another leadership.
        while self.term == term:
            await self._change()
        scope.cancel()

    async def _change(self) -> None:
        with anyio.move_on_after(WATCH_SECONDS):
            await self._changed.wait()
