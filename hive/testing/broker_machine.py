"""A state machine that interleaves everything that can happen to a broker, and checks what must always hold.

Derive a class, give it ``start`` and ``stop``, and hand its ``TestCase`` to pytest::

    class MyMachine(BrokerMachine):
        async def start(self) -> Harness: ...
        async def stop(self) -> None: ...

    TestMyMachine = MyMachine.TestCase

Checked after every step: no message has two accepted owners, fences rise, what has ended does not come back,
no resource runs twice, nothing is handed out of a paused queue, the counts equal the model's. Where claims
are fair by themselves (``fair_claims``), no tenant gets ahead of another that waits. At the end: nothing is
lost, every message that lives can be claimed.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hive.broker.port import Delivery, Settlement, Verdict
from hive.errors import Conflict
from hive.ids import MessageId, ProcessId, TaskName, TenantId, new_process_id
from hive.outcomes import Completed
from hive.testing.broker_model import (
    DELAY_SECONDS,
    EXPIRY_SECONDS,
    LEASE_SECONDS,
    OUTCOMES,
    TENANTS,
    Model,
    assert_nobody_is_ahead,
    could_run,
)
from hive.testing.harness import QUEUE, Harness, message

T = TypeVar("T")


class BrokerMachine(RuleBasedStateMachine):
    """See the module. ``start`` gives a harness over an empty store; ``stop`` ends it."""

    fair_claims = True
    """Whether a claim levels what tenants have in flight. False where shares are cut at admission."""
    failed_when_expired = True
    """Whether what expired is kept as a dead letter. False where it is dropped and counted."""

    async def start(self) -> Harness:
        """An empty store with its broker."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Clean up after the example."""

    def __init__(self) -> None:
        super().__init__()
        # With a factory, so that the loop of the tests around is left alone.
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.harness = self._do(self.start())
        self.broker = self.harness.broker
        self.now = 0.0
        self.paused = False
        self.models: dict[MessageId, Model] = {}
        self.deliveries: list[Delivery] = []
        self.owners: list[ProcessId] = []

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def _held(self, delivery: Delivery) -> Model | None:
        model = self.models[delivery.id]
        holds = (model.state, model.fence, model.owner) == ("running", delivery.fence, delivery.owner)
        return model if holds else None

    def _pick(self, at: int) -> Delivery:
        return self.deliveries[at % len(self.deliveries)]

    @initialize()
    def boot(self) -> None:
        self.owners = [new_process_id() for _ in range(3)]
        self._announce()

    def _announce(self) -> None:
        """Slots for all that an example can publish: the claims' limits are what is tested."""
        for each in self.owners:
            self._do(self.broker.announce(each, {QUEUE: 2_000}))

    @rule(
        keys=st.lists(st.sampled_from([None, None, "a", "b"]), min_size=1, max_size=4),
        tenant=st.sampled_from(TENANTS),
        resource=st.sampled_from([None, None, None, "r"]),
        cost=st.sampled_from([1, 1, 3]),
        delayed=st.booleans(),
        drop=st.booleans(),
        expires=st.sampled_from([None, None, None, EXPIRY_SECONDS]),
        notify=st.booleans(),
    )
    def publish(
        self,
        *,
        keys: list[str | None],
        tenant: TenantId | None,
        resource: str | None,
        cost: int,
        delayed: bool,
        drop: bool,
        expires: float | None,
        notify: bool,
    ) -> None:
        delay = DELAY_SECONDS if delayed else 0.0
        meanwhile = "drop" if drop else "rerun"
        batch = [
            message(
                key=key,
                tenant=tenant,
                resource=resource,
                cost=cost,
                delay_seconds=delay,
                expires_seconds=expires,
                while_running=meanwhile,
                max_attempts=1_000,
            )
            for key in keys
        ]
        self.sweep()  # so that no holder of a key has expired unnoticed
        answers = self._do(self.broker.publish(batch, notify=notify))
        for sent, answer in zip(batch, answers, strict=True):
            holder = next(
                (
                    each
                    for each in self.models.values()
                    if sent.key and (each.tenant, each.key) == (tenant, sent.key) and each.live
                ),
                None,
            )
            assert answer.id == (holder.id if holder else sent.id)
            assert answer.duplicate == (holder is not None)
            if holder is None:
                state = "delayed" if delayed else "waiting"
                self.models[sent.id] = Model(
                    id=sent.id,
                    key=sent.key,
                    state=state,
                    tenant=tenant,
                    resource=resource,
                    cost=cost,
                    due=self.now + delay,
                    expires=None if expires is None else self.now + expires,
                )
            elif holder.state == "running" and not drop:
                holder.rerun = True

    @rule(who=st.integers(0, 2), limit=st.integers(1, 4))
    def claim(self, who: int, limit: int) -> None:
        self.sweep()
        free = could_run(self.models.values())
        got = self._do(self.broker.claim(QUEUE, self.owners[who], limit))
        if self.paused:
            assert not got, "a paused queue handed something out"
        else:
            assert len(got) == min(limit, free), "a waiting message was not given"
        for each in got:
            self.models[each.id].claimed(
                fence=each.fence, attempt=each.attempt, owner=each.owner, now=self.now
            )
            self.deliveries.append(each)
        if got and self.fair_claims:
            assert_nobody_is_ahead(self.models.values(), {self.models[each.id].tenant for each in got})

    @precondition(lambda self: self.deliveries)
    @rule(at=st.integers(0), word=st.sampled_from(sorted(OUTCOMES)))
    def settle(self, at: int, word: str) -> None:
        delivery = self._pick(at)
        held = self._held(delivery)
        (verdict,) = self._do(self.broker.settle([Settlement(delivery=delivery, outcome=OUTCOMES[word])]))
        if held is None:
            assert verdict is Verdict.STALE, "a stale settle was accepted"
        else:
            held.settled(word, verdict, self.now)

    def _end(self, delivery: Delivery) -> None:
        settled = Settlement(delivery=delivery, outcome=Completed())
        assert self._do(self.broker.settle([settled])) == [Verdict.ACCEPTED]
        self.models[delivery.id].state = "gone"

    @precondition(lambda self: self.deliveries)
    @rule(at=st.integers(0))
    def renew(self, at: int) -> None:
        delivery = self._pick(at)
        lost = list(self._do(self.broker.renew([delivery])))
        held = self._held(delivery)
        assert lost == ([] if held else [delivery])
        if held:
            held.lease_end = self.now + LEASE_SECONDS

    @precondition(lambda self: self.deliveries)
    @rule(at=st.integers(0))
    def begin(self, at: int) -> None:
        delivery = self._pick(at)
        self._do(self.broker.mark_started([delivery]))
        if held := self._held(delivery):
            held.started = True

    @precondition(lambda self: self.deliveries)
    @rule(at=st.integers(0))
    def progress(self, at: int) -> None:
        delivery = self._pick(at)
        held = self._held(delivery)
        assert self._do(self.broker.progress(delivery, stage="s", done=1, total=2)) == (held is not None)
        if held:
            held.child_deaths = held.hive_deaths = 0

    @precondition(lambda self: self.models)
    @rule(at=st.integers(0))
    def cancel(self, at: int) -> None:
        model = list(self.models.values())[at % len(self.models)]
        assert self._do(self.broker.cancel([model.id])) == model.live
        model.cancelled()

    @rule(
        tenant=st.sampled_from(TENANTS[1:]),
        queue=st.booleans(),
        task=st.sampled_from([None, "task", "other"]),
    )
    def cancel_where(self, tenant: TenantId, queue: bool, task: str | None) -> None:
        fitting = [
            each
            for each in self.models.values()
            if each.tenant == tenant and each.live and task != "other" and not each.cancel
        ]
        assert self._do(
            self.broker.cancel_where(
                queue=QUEUE if queue else None, tenant=tenant, task=None if task is None else TaskName(task)
            )
        ) == len(fitting)
        for model in fitting:
            model.cancelled()

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self._do(self.broker.pause(QUEUE) if paused else self.broker.resume(QUEUE))
        assert self._do(self.broker.paused()) == ({QUEUE} if paused else set())
        self.paused = paused

    @rule(seconds=st.sampled_from([7.0, 35.0, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self._do(self.harness.pass_time(seconds))
        self.now += seconds
        self._announce()

    @rule(expire_leases=st.booleans())
    def sweep(self, expire_leases: bool = True) -> None:
        # Twice: what came back by the first may have expired meanwhile.
        for _ in range(2):
            self._do(self.broker.sweep([QUEUE], expire_leases=expire_leases))
        for each in self.models.values():
            each.swept(self.now, expire_leases=expire_leases, failed_when_expired=self.failed_when_expired)

    @rule(who=st.integers(0, 2))
    def die(self, who: int) -> None:
        dead = self.owners[who]
        mine = [each for each in self.models.values() if each.state == "running" and each.owner == dead]
        assert self._do(self.broker.owner_died(dead)) == len(mine)
        for each in mine:
            each.abandoned()
        self.owners[who] = new_process_id()
        self._announce()

    @rule(word=st.sampled_from(sorted(OUTCOMES)))
    def a_zombie_wakes_up(self, word: str) -> None:
        """What is rare by chance: all that runs is taken over, then its former owners come back."""
        before = [each for each in self.deliveries if self._held(each)]
        for who in range(3):
            self.die(who)
        self.pause(False)
        self.claim(0, 1_000)
        zombies = [Settlement(delivery=each, outcome=OUTCOMES[word]) for each in before]
        assert set(self._do(self.broker.settle(zombies))) <= {Verdict.STALE}, "a zombie was believed"
        assert list(self._do(self.broker.renew(before))) == before
        self._do(self.broker.mark_started(before))

    @precondition(lambda self: any(each.state == "dead" for each in self.models.values()))
    @rule(at=st.integers(0))
    def replay(self, at: int) -> None:
        dead = [each for each in self.models.values() if each.state == "dead"]
        model = dead[at % len(dead)]
        holder = (model.tenant, model.key)
        held = any(
            each.live and (each.tenant, each.key) == holder for each in self.models.values() if model.key
        )
        try:
            assert self._do(self.broker.replay([model.id])) == 1
            assert not held, "a key has two holders"
        except Conflict:
            assert held, "a replay was refused although the key is free"
            return
        model.fresh()

    @invariant()
    def no_resource_runs_twice(self) -> None:
        held = [each.holds for each in self.models.values() if each.state == "running" and each.holds]
        assert len(held) == len(set(held)), "two of one resource run"

    @invariant()
    def counts_equal_the_models(self) -> None:
        states = [each.state for each in self.models.values()]
        counts = {name: states.count(name) for name in ("waiting", "delayed", "running")}
        self._do(self.harness.expect_depth(**counts))
        letters = self._do(self.broker.dead_letters(limit=1_000))
        assert {each.id for each in letters} == {
            each.id for each in self.models.values() if each.state == "dead"
        }

    def teardown(self) -> None:
        try:
            if self.owners:
                self.pause(False)
                self.pass_time(61.0)
                self.sweep()
                left = {each.id for each in self.models.values() if each.live}
                while left:
                    # One of each resource at a time, so that each gets its turn.
                    first = len(self.deliveries)
                    self.claim(0, 10_000)
                    got = self.deliveries[first:]
                    assert got, "something was lost"
                    for each in got:
                        self._end(each)
                        left.discard(each.id)
        finally:
            self._do(self.stop())
            self.runner.close()
