"""The consumers of a trial, as seen from outside: started, asked, killed, frozen."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from consumer import Plan
from hive.ids import new_process_id

HERE = Path(__file__).parent
ANSWER_SECONDS = 30.0


class Member:
    """One consumer's place: an instance whose boots follow each other."""

    def __init__(self, name: str, folder: Path, options: Mapping[str, Any]) -> None:
        self.name = name
        self.journals: list[Path] = []
        """One of each boot, the newest last."""
        self.errors = folder / f"{name}.log"
        self._folder = folder
        self._options = dict(options)
        self._instance = str(uuid4())
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def new_journal(self) -> Path:
        """For one more boot."""
        journal = self._folder / f"{self.name}-{len(self.journals)}.jsonl"
        self.journals.append(journal)
        return journal

    async def start(self, *, heir: bool = True, **changes: Any) -> None:
        """Begin a boot. ``heir``: of the same instance, so that it knows its predecessors dead."""
        assert not self.alive
        if not heir:
            self._instance = str(uuid4())
        journal = self.new_journal()
        plan = Plan(
            **{
                **self._options,
                **changes,
                "instance": self._instance,
                "owner": str(new_process_id()),
                "journal": str(journal),
            }
        )
        path = os.pathsep.join([str(HERE), str(HERE.parent / "support"), *filter(None, sys.path)])
        with self.errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / "consumer.py"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
            )
        assert self._process.stdin is not None
        self._process.stdin.write(plan.text().encode() + b"\n")

    async def status(self) -> dict[str, Any] | None:
        """What it holds; None when it is dead."""
        return await self._ask(b"status\n")

    async def stop(self) -> dict[str, Any] | None:
        """Let it drain and end; returns its last status, None when it was dead already."""
        last = await self._ask(b"stop\n")
        if last is not None:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._gone()
        return last

    async def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.send(signal.SIGKILL)
        await self._gone()

    async def wait(self) -> None:
        """Until it has ended by itself."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._gone()

    def running(self) -> set[UUID]:
        """Messages whose handler its newest boot has entered, and whose end it has not noted."""
        facts = Facts(self.journals[-1:])
        return set(facts.messages) - facts.ended

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _gone(self) -> None:
        assert self._process is not None
        await self._process.wait()

    async def _ask(self, command: bytes) -> dict[str, Any] | None:
        if not self.alive:
            return None
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        async with self._asking, asyncio.timeout(ANSWER_SECONDS):
            try:
                process.stdin.write(command)
                await process.stdin.drain()
                line = await process.stdout.readline()
            except ConnectionError:
                line = b""
        if line:
            return json.loads(line)
        await self._gone()
        return None

    def tail(self, lines: int = 20) -> str:
        """The end of what it logged."""
        return "\n".join(self.errors.read_text("utf-8", "replace").splitlines()[-lines:])


class Crew:
    """All consumers of a trial."""

    def __init__(
        self, members: int, folder: Path, options: Mapping[str, Any], kind: type[Member] = Member
    ) -> None:
        self.members = [kind(f"consumer-{at}", folder, options) for at in range(members)]

    async def start(self) -> None:
        for member in self.members:
            await member.start()

    async def end(self) -> None:
        """However they stand, end them."""
        for member in self.members:
            if member.alive:
                await member.kill()

    async def statuses(self) -> list[dict[str, Any]]:
        """Of those that live."""
        found = [await member.status() for member in self.members]
        return [each for each in found if each is not None]

    def facts(self) -> "Facts":
        """What they all noted, dead boots included."""
        return Facts(journal for member in self.members for journal in member.journals)

    def others(self, member: Member) -> "Facts":
        """What all but ``member`` noted."""
        return Facts(journal for each in self.members if each is not member for journal in each.journals)


class Facts:
    """What journals say: handler starts by number and by message, outcomes, those of each message."""

    def __init__(self, journals: Iterable[Path]) -> None:
        self.started: Counter[int] = Counter()
        self.messages: Counter[UUID] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.completed: Counter[UUID] = Counter()
        self.ended: set[UUID] = set()
        for journal in journals:
            if journal.exists():
                for line in journal.read_text().splitlines():
                    self._add(json.loads(line))

    def _add(self, fact: dict[str, Any]) -> None:
        message = UUID(fact["message"])
        if "started" in fact:
            self.started[fact["started"]] += 1
            self.messages[message] += 1
            return
        self.ended.add(message)
        self.outcomes[fact["outcome"]] += 1
        if fact["outcome"] == "completed":
            self.completed[message] += 1
