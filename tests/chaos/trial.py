"""One trial: consumers at work, one fault in their midst, and what came of it.

crew starts ─▶ jobs flow ─▶ fault ─▶ … full speed again ─▶ all done ─▶ quiet ─▶ crew stops ─▶ verdict
"""

import asyncio
import random
from dataclasses import asdict, dataclass, field
from typing import Any

from arena import Arena
from crew import Crew, Facts, Member
from faults import Stage
from peer import PeerMember, PeerPublisher
from publisher import Publisher
from scenarios import Scenario
from watch import NotInTime, Watch, until

MEMBERS = 2
SLOTS = 8
PREFETCH = 2
START_SECONDS = 60.0
RECOVER_SECONDS = 60.0
DONE_SECONDS = 120.0
PEER_SECONDS = 30.0
"""What a peer has not done so long after all else counts as lost, though it may come back in ten minutes."""
QUIET_SECONDS = 20.0
FULL_SPEED = 0.8
"""This share of the speed before the fault counts as full speed: it varies by as much without any fault."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a trial found. ``clean``: nothing lost, doubled or leaked, full speed again, and the fault bit.

    A peer's slots and connections are not looked at.
    """

    scenario: str
    seed: int
    lost: int
    doubled: int
    slots_leaked: int
    connections_leaked: int
    recovery_seconds: float | None
    carrier: str
    system: str = "hive"
    jobs: int = 0
    reruns: int = 0
    stale: int = 0
    per_second: float = 0.0
    connections: tuple[int, int] = (0, 0)  # before the fault, and once all was quiet
    remarks: tuple[str, ...] = field(default=())

    @property
    def clean(self) -> bool:
        leaked = self.slots_leaked or self.connections_leaked
        return not (self.lost or self.doubled or leaked or self.remarks) and self.recovery_seconds is not None

    def row(self) -> dict[str, Any]:
        """As ``.bench/chaos.json`` has it."""
        return asdict(self)


class Trial:
    """``jobs``: published at the least; more are, until full speed is reached again."""

    def __init__(
        self,
        scenario: Scenario,
        carrier: str,
        arena: Arena,
        *,
        seed: int,
        jobs: int = 2000,
        lease_seconds: float = 3.0,
        full_speed: float = FULL_SPEED,
        peer: str | None = None,
    ) -> None:
        self._scenario = scenario
        self._carrier = carrier
        self._arena = arena
        self._seed = seed
        self._jobs = jobs
        self._lease_seconds = lease_seconds
        self._full_speed = full_speed
        self._peer = peer
        self._random = random.Random(f"{scenario.name} {carrier} {seed}")
        self._watch = Watch(arena.dsn, arena.redis_url)
        self._remarks: list[str] = []
        dsn = arena.consumer_dsn if scenario.proxied else arena.dsn
        redis_url = arena.consumer_redis_url if scenario.proxied else arena.redis_url
        self._publisher = (PeerPublisher if peer else Publisher)(
            self._watch,
            carrier=carrier,
            dsn=dsn,
            redis_url=redis_url,
            at_least=jobs,
            seed=self._random.randrange(1 << 30),
        )
        self.crew = Crew(
            MEMBERS,
            arena.folder,
            {
                "carrier": carrier,
                "dsn": dsn,
                "redis_url": redis_url,
                "slots": SLOTS,
                "prefetch": PREFETCH,
                "lease_seconds": lease_seconds,
                # As it ships, unless the fault is about the end of a lease.
                "idle_seconds": lease_seconds if scenario.stale else None,
            },
            PeerMember if peer else Member,
        )

    async def run(self) -> Verdict:
        """The whole trial. Raises nothing for what is found: it stands in the verdict."""
        try:
            await self.crew.start()
            await until(self._all_ready, seconds=START_SECONDS, what="consumers ready")
            async with self._publisher, asyncio.TaskGroup() as group:
                group.create_task(self._publisher.run())
                before, per_second, recovery = await self._at_work()
                self._publisher.finish()
            await self._noting(self._all_done())
            slots_leaked, connections_leaked, after = await self._leaks()
            return await self._judge(
                recovery_seconds=recovery,
                per_second=per_second,
                slots_leaked=slots_leaked,
                connections_leaked=connections_leaked,
                connections=(before, after),
            )
        finally:
            await self.crew.end()
            await self._watch.close()

    async def _at_work(self) -> tuple[int, float, float | None]:
        """Until full speed after the fault: connections and speed before it, and the seconds that took."""
        stage = Stage(
            arena=self._arena,
            crew=self.crew,
            watch=self._watch,
            publisher=self._publisher,
            random=self._random,
            carrier=self._carrier,
            lease_seconds=self._lease_seconds,
        )
        await stage.work(round(self._jobs * self._random.uniform(0.15, 0.3)))
        before = await self._connections()
        per_second = await self._watch.speed()
        await self._scenario.fault(stage)
        since = await self._watch.now()
        wanted = per_second * self._full_speed

        async def fast() -> bool:
            return await self._watch.seconds_to_speed(since, wanted) is not None

        await self._noting(until(fast, seconds=RECOVER_SECONDS, what="full speed"))
        return before, per_second, await self._watch.seconds_to_speed(since, wanted)

    async def _all_ready(self) -> bool:
        statuses = await self.crew.statuses()
        if len(statuses) < len(self.crew.members):
            raise AssertionError(
                "a consumer did not start:\n" + "\n".join(m.tail() for m in self.crew.members)
            )
        return all(status["ready"] for status in statuses)

    async def _all_done(self) -> None:
        async def done() -> bool:
            return await self._watch.done() >= self._publisher.sent

        await until(done, seconds=PEER_SECONDS if self._peer else DONE_SECONDS, what="all jobs done")

    async def _noting(self, waiting: Any) -> None:
        try:
            await waiting
        except NotInTime as error:
            self._remarks.append(str(error))

    # -- what is left behind --------------------------------------------------------------------------------

    async def _leaks(self) -> tuple[int, int, int]:
        """Slots and connections that stay in use with nothing to do; and how many connections are open.

        A quiet consumer still borrows a connection for its polls now and then: what counts is what never
        comes back.
        """
        least_slots = least_connections = 1 << 30
        after = 0
        held: list[Any] = []

        async def none_left() -> bool:
            nonlocal least_slots, least_connections, after, held
            statuses = await self.crew.statuses()
            after = await self._connections()
            slots = sum(each["slots"]["in_use"] + each["slots"]["written_off"] for each in statuses)
            stores = [each[store] for each in statuses for store in ("postgres", "redis") if store in each]
            held = [each["slots"] for each in statuses] + stores
            known = sum(store["open"] for store in stores)
            borrowed = sum(store["borrowed"] for store in stores)
            least_slots = min(least_slots, slots)
            least_connections = min(least_connections, max(0, after - known) + borrowed)
            return least_slots == least_connections == 0

        try:
            await until(none_left, seconds=QUIET_SECONDS, what="quiet")
        except NotInTime:
            self._remarks.append(f"never quiet: {after} connections, and at the end {held}")
        for member in self.crew.members:
            last = await member.stop()
            if last is None:
                self._remarks.append(f"{member.name} had died by itself")
            elif last["drained"]["abandoned"]:
                self._remarks.append(f"{member.name} abandoned {last['drained']['abandoned']}")

        async def closed() -> bool:
            return await self._connections() == 0

        try:
            await until(closed, seconds=QUIET_SECONDS, what="connections closed")
        except NotInTime:
            least_connections += (left := await self._connections())
            self._remarks.append(f"{left} connections outlive their processes")
        return least_slots, least_connections, after

    async def _connections(self) -> int:
        count = await self._watch.postgres_connections()
        if self._carrier == "stream":
            count += await self._watch.redis_connections()
        return count

    # -- the verdict ----------------------------------------------------------------------------------------

    async def _judge(self, **found: Any) -> Verdict:
        facts = self.crew.facts()
        given_up = await (
            self._watch.unfinished_jobs() if self._carrier == "ledger" else self._watch.dead_letters()
        )
        lost = max(len(await self._watch.missing(self._publisher.sent)), given_up)
        doubled = max(await self._watch.doubled(), self._completed_twice(facts))
        reruns = sum(facts.started.values()) - len(facts.started)
        stale = facts.outcomes["stale"]
        for word, seen, wanted in (
            ("reruns", reruns, self._scenario.reruns),
            ("stale", stale, self._scenario.stale),
        ):
            if seen < wanted and self._peer is None:  # a peer that loses a job reruns none
                self._remarks.append(f"the fault hit nothing: {seen} {word}")
        if failed := facts.outcomes["failed"]:
            self._remarks.append(f"{failed} failed")
        return Verdict(
            scenario=self._scenario.name,
            seed=self._seed,
            carrier=self._carrier,
            system=self._peer or "hive",
            lost=lost,
            doubled=doubled,
            jobs=self._publisher.sent,
            reruns=reruns,
            stale=stale,
            remarks=tuple(self._remarks),
            **found,
        )

    def abandoned(self, remarks: tuple[str, ...]) -> Verdict:
        """The verdict of a trial that could not be brought to its end."""
        return Verdict(
            scenario=self._scenario.name,
            seed=self._seed,
            carrier=self._carrier,
            system=self._peer or "hive",
            lost=0,
            doubled=0,
            slots_leaked=0,
            connections_leaked=0,
            recovery_seconds=None,
            remarks=remarks,
        )

    def _completed_twice(self, facts: Facts) -> int:
        """Messages with two accepted ends: two owners. Those published twice may have had two lives."""
        if self._scenario.wipes and self._carrier == "stream":
            return 0
        return sum(
            count - 1 for message, count in facts.completed.items() if message not in self._publisher.repeated
        )
