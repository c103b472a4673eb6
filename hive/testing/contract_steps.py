"""What the cases of the broker contract are made of."""

from hive.broker.port import Delivery, Settlement, Verdict
from hive.ids import TenantId, new_process_id
from hive.outcomes import ErrorKind, ErrorRecord, Failed, Outcome
from hive.testing.harness import QUEUE, Harness, message

ERROR = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="it did not work")
THROTTLED = ErrorRecord(kind=ErrorKind.THROTTLED, code="throttled", summary="throttled by api: not now")
ACME, OTHER = TenantId("acme"), TenantId("other")


def settlement(delivery: Delivery, outcome: Outcome) -> Settlement:
    """``outcome`` of ``delivery``, ready to be settled."""
    return Settlement(delivery=delivery, outcome=outcome)


class Steps:
    """The claims and settles of which cases are made."""

    me = new_process_id()
    somebody = new_process_id()

    async def one(self, harness: Harness) -> Delivery:
        """Claim the one message that waits."""
        (delivery,) = await harness.broker.claim(QUEUE, self.me, 10)
        return delivery

    async def settle(self, harness: Harness, delivery: Delivery, outcome: Outcome) -> Verdict:
        """Settle one delivery."""
        (verdict,) = await harness.broker.settle([settlement(delivery, outcome)])
        return verdict

    async def fail(self, harness: Harness) -> Delivery:
        """Publish one message and give it up."""
        await harness.broker.publish([message(key="k")])
        delivery = await self.one(harness)
        assert await self.settle(harness, delivery, Failed(error=ERROR)) is Verdict.ACCEPTED
        return delivery
