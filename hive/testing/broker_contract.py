"""The broker contract in executable form. Every carrier of queues passes it, a plug-in's as well.

Derive a class and give it a ``harness`` fixture::

    class TestMine(BrokerContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[Harness]:
            yield MyHarness(...)

The harness holds the broker and moves time for it (``hive.testing.harness``): no case sleeps. The broker must
be made with ``lease_seconds=60``, a child crash limit of 3 and a hive crash limit of 10.
"""

from hive.testing.delivery_cases import Deliveries
from hive.testing.ending_cases import Endings
from hive.testing.key_cases import Keys
from hive.testing.lease_cases import Leases


class BrokerContract(Deliveries, Keys, Leases, Endings):
    """What every broker promises; one method a promise."""
