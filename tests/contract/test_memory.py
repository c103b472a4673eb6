"""The memory broker under the contract suite."""

import pytest
from hypothesis import settings

from hive.broker.memory import Memory
from hive.broker.port import Broker, Depth
from hive.ids import TenantId
from hive.testing.broker_contract import BrokerContract
from hive.testing.broker_machine import BrokerMachine
from hive.testing.fairness_contract import FairnessContract
from hive.testing.harness import QUEUE, assert_depth
from hive.testing.manual_clock import ManualClock
from hive.testing.operations_contract import OperationsContract


class MemoryHarness:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.weights: dict[TenantId, int] = {}
        self.broker = Memory(self.clock, weights=self.weights)

    async def peer(self) -> Broker:
        return self.broker

    async def limited(self, most: int) -> Broker:
        return self.broker.beside(max_depth={QUEUE: most})

    async def set_weight(self, tenant: TenantId, weight: int) -> None:
        self.weights[tenant] = weight

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        depth = await self.broker.depth(QUEUE)
        return assert_depth(depth, waiting=waiting, delayed=delayed, running=running)


class TestMemory(BrokerContract):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class TestMemoryOperations(OperationsContract):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class TestMemoryFairness(FairnessContract):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class MemoryMachine(BrokerMachine):
    async def start(self) -> MemoryHarness:
        return MemoryHarness()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
