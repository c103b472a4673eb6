"""What must be true of each message while a broker is put to the test: the model behind ``BrokerMachine``."""

from collections.abc import Collection
from dataclasses import dataclass

from hive.broker.port import Verdict
from hive.ids import MessageId, ProcessId, TenantId
from hive.outcomes import Cancelled, Completed, Failed, Outcome, Released, Retrying
from hive.testing.contract_steps import ACME, ERROR, OTHER

LEASE_SECONDS = 60.0
DELAY_SECONDS = 10.0
EXPIRY_SECONDS = 50.0
TENANTS = (None, ACME, OTHER)
CHILD_LIMIT, HIVE_LIMIT = 3, 10

OUTCOMES: dict[str, Outcome] = {
    "completed": Completed(),
    "failed": Failed(error=ERROR),
    "cancelled": Cancelled(),
    "released": Released(),
    "retrying": Retrying(delay_seconds=DELAY_SECONDS, error=ERROR),
    "throttled": Retrying(delay_seconds=DELAY_SECONDS, error=ERROR, charged=False),
    "crashed": Retrying(delay_seconds=DELAY_SECONDS, error=ERROR, crashed=True),
}


@dataclass(slots=True)
class Model:
    """One message, and what each thing that can happen makes of it."""

    id: MessageId
    key: str | None
    state: str  # waiting, delayed, running, gone, dead
    tenant: TenantId | None = None
    resource: str | None = None
    cost: int = 1
    due: float = 0.0
    expires: float | None = None
    fence: int = 0
    attempts: int = 0
    owner: ProcessId | None = None
    lease_end: float = 0.0
    rerun: bool = False
    cancel: bool = False
    started: bool = False
    child_deaths: int = 0
    hive_deaths: int = 0

    @property
    def live(self) -> bool:
        return self.state in ("waiting", "delayed", "running")

    @property
    def holds(self) -> tuple[TenantId | None, str] | None:
        """The resource it keeps others from while it runs."""
        return None if self.resource is None else (self.tenant, self.resource)

    def claimed(self, *, fence: int, attempt: int, owner: ProcessId, now: float) -> None:
        assert self.state == "waiting", f"a {self.state} message was given"
        assert self.expires is None or self.expires > now, "an expired message was given"
        assert fence > self.fence, "the fence did not rise"
        assert attempt == self.attempts + 1, "an attempt was burned, or forgotten"
        self.state, self.fence, self.owner = "running", fence, owner
        self.lease_end = now + LEASE_SECONDS
        self.started = self.cancel = self.rerun = False

    def settled(self, word: str, verdict: Verdict, now: float) -> None:
        """Its holder has settled it with ``OUTCOMES[word]``."""
        assert verdict is not Verdict.STALE, "the holder's settle was refused"
        self.owner = None
        if word == "crashed":
            self.child_deaths += 1
        if word == "crashed" and self.child_deaths >= CHILD_LIMIT:
            assert verdict is Verdict.POISONED
            self.state = "dead"
        elif self.cancel and word in ("released", "crashed", "throttled", "retrying"):
            self.state = "gone"
        elif word == "released":
            self.state = "waiting"
        elif word in ("crashed", "throttled", "retrying"):
            self.state, self.due = "delayed", now + DELAY_SECONDS
            self.attempts += word == "retrying"
        elif self.rerun:
            assert verdict is Verdict.RERUN
            self.fresh()
        else:
            self.state = "dead" if word == "failed" else "gone"

    def fresh(self) -> None:
        """It waits as if it had just been sent: run again, or replayed."""
        self.state, self.child_deaths, self.hive_deaths, self.expires = "waiting", 0, 0, None
        self.attempts = 0

    def cancelled(self) -> None:
        if self.state == "running":
            self.cancel, self.rerun = True, False
        elif self.live:
            self.state = "gone"

    def swept(self, now: float, *, expire_leases: bool, failed_when_expired: bool) -> None:
        if expire_leases and self.state == "running" and self.lease_end < now:
            self.abandoned()
        if self.state in ("waiting", "delayed") and self.expires is not None and self.expires <= now:
            self.state = "dead" if failed_when_expired else "gone"
        elif self.state == "delayed" and self.due <= now:
            self.state = "waiting"

    def abandoned(self) -> None:
        """Its owner is gone, or its lease is."""
        self.hive_deaths += self.started
        if self.started and self.hive_deaths >= HIVE_LIMIT:
            self.state = "dead"
        else:
            self.state = "gone" if self.cancel else "waiting"
        self.owner, self.started = None, False


def could_run(models: Collection[Model]) -> int:
    """How many could run now: of those that share a resource one, and none beside one that runs."""
    waiting = [each for each in models if each.state == "waiting"]
    busy = {each.holds for each in models if each.state == "running"} - {None}
    resources = {each.holds for each in waiting} - {None} - busy
    return sum(each.resource is None for each in waiting) + len(resources)


def assert_nobody_is_ahead(models: Collection[Model], served: set[TenantId | None]) -> None:
    """Whoever was served has no more in flight than one that waits would have with its next message."""
    loads = {
        tenant: [each.cost for each in models if each.state == "running" and each.tenant == tenant]
        for tenant in TENANTS
    }
    for other in TENANTS:
        waits = [
            each.cost
            for each in models
            if each.state == "waiting" and each.tenant == other and each.resource is None
        ]
        if waits:
            bound = sum(loads[other]) + max(waits)
            for tenant in served - {other}:
                ahead = sum(loads[tenant]) - max(loads[tenant])
                assert ahead <= bound, f"{tenant} was served before {other}"
