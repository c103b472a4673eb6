"""What is done to a trial in the midst of its work. Each returns when its cause is gone: from there recovery
is measured.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from arena import Arena, Servers
from crew import Crew, Member
from hive.testing.fault_proxy import FaultProxy
from publisher import Publisher
from watch import Watch, until

PATIENCE_SECONDS = 60.0
FEW_AWAITS, MANY_AWAITS = 5, 200
OUTAGE_SECONDS = 1.5
"""How long what is cut stays cut."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a fault can get at."""

    arena: Arena
    crew: Crew
    watch: Watch
    publisher: Publisher
    random: random.Random
    carrier: str
    lease_seconds: float

    @property
    def servers(self) -> Servers:
        assert self.arena.servers is not None, "these stores are not ours to restart"
        return self.arena.servers

    def victim(self) -> Member:
        return self.random.choice(self.crew.members)

    async def work(self, count: int) -> None:
        """Let so many more jobs be done."""
        goal = await self.watch.done() + count
        await until(lambda: self._reached(goal), seconds=PATIENCE_SECONDS, what=f"{count} more jobs")

    async def _reached(self, goal: int) -> bool:
        return await self.watch.done() >= goal


Fault = Callable[[Stage], Awaitable[None]]


# -- processes ----------------------------------------------------------------------------------------------


async def kill(stage: Stage) -> None:
    """SIGKILL a consumer twice; the next boot on its state folder knows it dead."""
    for _ in range(2):
        victim = stage.victim()
        await stage.work(20)
        await victim.kill()
        await victim.start()


async def kill_without_heir(stage: Stage) -> None:
    """SIGKILL a consumer; what it held comes back by the end of its leases alone."""
    victim = stage.victim()
    await victim.kill()
    await victim.start(heir=False)


async def kill_at_each_await(stage: Stage) -> None:
    """Let a consumer kill itself at the first, the second … await of a handler, until one lives on."""
    victim = stage.crew.members[0]
    await victim.kill()
    for at in range(MANY_AWAITS):
        await victim.start(die_at=at)
        if await until(lambda: _died_or_survived(victim), seconds=PATIENCE_SECONDS, what="its death") == 2:
            assert at > FEW_AWAITS, f"a transactional handler has more than {at} awaits"
            return
    raise AssertionError(f"the handler did not come to its end in {MANY_AWAITS} awaits")


async def _died_or_survived(victim: Member) -> int:
    status = await victim.status()
    return 1 if status is None else 2 if status["survived"] else 0


async def freeze(stage: Stage) -> None:
    """SIGSTOP a consumer until others have done what it holds, then let the zombie go on."""
    victim = stage.victim()
    held = await until(lambda: _stop_with_work(stage, victim), seconds=PATIENCE_SECONDS, what="a zombie")
    await until(
        lambda: _taken_over(stage, victim, held),
        seconds=PATIENCE_SECONDS,
        what="others doing the zombie's jobs",
    )
    victim.send(signal.SIGCONT)


async def _stop_with_work(stage: Stage, victim: Member) -> list[UUID]:
    """Stop it in the midst of jobs that others can take over: not in a transaction, and not yet done."""
    victim.send(signal.SIGSTOP)
    await until(lambda: _stopped(victim.pid), seconds=10, what="SIGSTOP to work")
    held = list(victim.running())
    if stage.carrier == "ledger":
        held = await stage.watch.unlocked(held)
    held = await stage.watch.without_effect(held)
    if len(held) <= await stage.watch.open_transactions():
        victim.send(signal.SIGCONT)
        return []
    return held


async def _taken_over(stage: Stage, victim: Member, held: list[UUID]) -> bool:
    """Whether others have done all of it that they can.

    Where the zombie stands in a transaction with an effect of its own, theirs waits until it ends (or until
    Postgres ends it, after a minute).
    """
    left = await stage.watch.without_effect(held)
    done = set(held) - set(left)
    if not done or not done <= set(stage.crew.others(victim).messages):
        return False
    return len(left) <= await stage.watch.open_transactions()


async def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# -- Redis --------------------------------------------------------------------------------------------------


async def redis_restart(stage: Stage) -> None:
    """Stop the server as an operator does, and start it again."""
    await stage.servers.valkey.stop()
    await asyncio.sleep(OUTAGE_SECONDS)
    await stage.servers.valkey.start()


async def redis_crash(stage: Stage) -> None:
    """SIGKILL the server and start it again on its log of writes."""
    await _end(stage.servers.valkey.pid, signal.SIGKILL)
    await stage.servers.valkey.start()


async def redis_flushall(stage: Stage) -> None:
    """Wipe it twice; publishers send what has no effect yet again."""
    stage.publisher.regenerates = True
    for _ in range(2):
        await stage.watch.ask_redis("FLUSHALL")
        await asyncio.sleep(0.5)


async def client_kill(stage: Stage) -> None:
    """Drop every client, three times."""
    for _ in range(3):
        await stage.watch.ask_redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await stage.work(10)


# -- Postgres -----------------------------------------------------------------------------------------------


async def postgres_restart_fast(stage: Stage) -> None:
    """Shut the server down, open transactions rolled back, and start it again."""
    await stage.servers.postgres.stop()
    await asyncio.sleep(OUTAGE_SECONDS)
    await stage.servers.postgres.start()


async def postgres_restart_immediate(stage: Stage) -> None:
    """Shut it down without a word; it recovers from its log."""
    await _end(stage.servers.postgres.pid, signal.SIGQUIT)
    await stage.servers.postgres.start()


async def postgres_terminate(stage: Stage) -> None:
    """pg_terminate_backend on every connection, three times."""
    for _ in range(3):
        await stage.watch.ask(
            """
            select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
            """
        )
        await stage.work(10)


async def _end(pid: int | None, number: signal.Signals) -> None:
    assert pid is not None
    os.kill(pid, number)
    await until(lambda: _gone(pid), seconds=PATIENCE_SECONDS, what=f"the server's end by {number.name}")


async def _gone(pid: int) -> bool:
    return _may_be_reaped(pid)


def _may_be_reaped(pid: int) -> bool:
    """Whether all of it has ended. That its main thread is a zombie says nothing of the others."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


# -- the network --------------------------------------------------------------------------------------------


def cut(proxy: Callable[[Arena], FaultProxy]) -> Fault:
    """Reset all connections and refuse new ones for a while."""

    async def fault(stage: Stage) -> None:
        line = proxy(stage.arena)
        line.refuse()
        line.cut()
        await asyncio.sleep(OUTAGE_SECONDS)
        await line.heal()

    return fault


def frozen(proxy: Callable[[Arena], FaultProxy]) -> Fault:
    """Let nothing pass for longer than a lease, then all of it: late commands arrive late."""

    async def fault(stage: Stage) -> None:
        line = proxy(stage.arena)
        line.freeze()
        await asyncio.sleep(stage.lease_seconds * 1.5)
        await line.heal()

    return fault


def half_closed(proxy: Callable[[Arena], FaultProxy]) -> Fault:
    """End the stream of every connection, first toward the clients, then toward the server."""

    async def fault(stage: Stage) -> None:
        line = proxy(stage.arena)
        line.half_close("client")
        await stage.work(10)
        line.half_close("server")

    return fault


def half_open(proxy: Callable[[Arena], FaultProxy]) -> Fault:
    """The server forgets every connection; the clients are not told."""

    async def fault(stage: Stage) -> None:
        proxy(stage.arena).half_open()

    return fault


def slow(proxy: Callable[[Arena], FaultProxy]) -> Fault:
    """A long, narrow line for a while."""

    async def fault(stage: Stage) -> None:
        line = proxy(stage.arena)
        line.delay(0.1)
        line.throttle(200_000)
        await asyncio.sleep(stage.lease_seconds)
        await line.heal()

    return fault
