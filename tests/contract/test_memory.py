"""The memory broker under the contract suite."""

import pytest
from hypothesis import settings

from hive.broker.memory import Memory
from hive.broker.port import Broker, Depth
from hive.testing.broker_contract import BrokerContract
from hive.testing.broker_machine import BrokerMachine
from hive.testing.harness import QUEUE, assert_depth
from hive.testing.manual_clock import ManualClock


class MemoryHarness:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = Memory(self.clock)

    async def peer(self) -> Broker:
        return self.broker

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        depth = await self.broker.depth(QUEUE)
        return assert_depth(depth, waiting=waiting, delayed=delayed, running=running)


class TestMemory(BrokerContract):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class MemoryMachine(BrokerMachine):
    async def start(self) -> MemoryHarness:
        return MemoryHarness()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
