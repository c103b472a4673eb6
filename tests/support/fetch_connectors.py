"""Connectors that misbehave on request. Fetch children import them by name ("fetch_connectors:Scripted")."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hive.ingest.connectors.files_config import FilesConfig
from hive.ingest.connectors.port import (
    Checkpoint,
    DocumentFailure,
    Item,
    Known,
    Pause,
    Section,
    SourceDocument,
    SourceError,
    Unchanged,
)


class Plan(BaseModel):
    """Steps, each a list of a word and its argument."""

    steps: list[list[Any]] = []
    path: str = ""


def document(name: str, body: str = "some text", **fields: Any) -> SourceDocument:
    return SourceDocument(
        source_id=name, title=name.upper(), link=f"test://{name}", sections=[Section(body=body)], **fields
    )


class Scripted:
    """Does what its plan says."""

    kind = "scripted"
    Config = Plan

    async def items(
        self, config: BaseModel, credential: Mapping[str, Any] | None, checkpoint: Any, known: Known
    ) -> AsyncIterator[Item]:
        assert isinstance(config, Plan | FilesPlan)
        for step in config.steps:
            word, *rest = step
            for item in await STEPS[word](*rest) if word in STEPS else ():
                yield item
            match word:
                case "known":
                    found = await known(rest[0])
                    yield document(
                        "answer", repr(sorted(found)) + repr([found[key] for key in sorted(found)])
                    )
                case "endless":
                    number = 0
                    while True:
                        yield document(f"d{number}", "word " * rest[0])
                        number += 1
                        if number % 4 == 0:
                            yield Checkpoint(state={"after": number})
                case "credential":
                    yield document("credential", repr(credential))
                case "resume":
                    yield document("resume", repr(checkpoint))
                case "huge":
                    yield document("huge", "a few more words\n" * (rest[0] // 17))
                case "drip":
                    for _ in range(rest[0]):
                        yield Pause(note="still here")
                        await asyncio.sleep(rest[1])


class FilesPlan(FilesConfig):
    """A plan that names files, as the ``files`` connector's configuration does."""

    steps: tuple[list[Any], ...] = ()


class ScriptedFiles(Scripted):
    """Does what its plan says, with the rights of the ``files`` connector."""

    Config = FilesPlan


async def _documents(count: int, body: str = "some text") -> Sequence[Item]:
    return [document(f"d{number}", body) for number in range(count)]


async def _checkpoint(state: Any) -> Sequence[Item]:
    return [Checkpoint(state=state)]


async def _unchanged(count: int) -> Sequence[Item]:
    return [Unchanged(count=count)]


async def _failure(name: str) -> Sequence[Item]:
    return [DocumentFailure(source_id=name, link="", code="unparsable", summary="no\x00use\ud800")]


async def _nasty(_: Any = None) -> Sequence[Item]:
    return [
        document("nul\x00", "a\x00b \ud800 c", source_state={"x\x00": ["\udfff"]}, metadata={"k": "\x00"}),
        SourceDocument(
            source_id="bad",
            title="bad",
            link="bad",
            sections=[Section(body="fine")],
            source_state={"when": object()},
        ),
        SourceDocument(source_id="none", title="none", link="none", sections=[]),
        document("revision", revision=2**80),
        document("after", "still read"),
    ]


async def _source_error(transient: bool) -> Sequence[Item]:
    raise SourceError("unreachable", "the host is away", transient=transient, retry_after_seconds=7)


async def _bug() -> Sequence[Item]:
    raise ZeroDivisionError("a bug")


async def _allocate(how: str) -> Sequence[Item]:
    hoard: list[bytearray] = []
    while True:
        if how == "map":  # anonymous shared memory: outside RLIMIT_DATA, so only the sampling finds it
            import mmap

            area = mmap.mmap(-1, 8 * 2**20)
            area.write(b"x" * (8 * 2**20))
            hoard.append(area)  # type: ignore[arg-type]
            await asyncio.sleep(0.01)
        else:
            hoard.append(bytearray(16 * 2**20))


async def _allocate_in_a_group() -> Sequence[Item]:
    async with asyncio.TaskGroup() as group:
        group.create_task(_allocate("heap"))
    return []


async def _sleep(seconds: float) -> Sequence[Item]:
    await asyncio.sleep(seconds)
    return []


async def _block() -> Sequence[Item]:
    while True:
        signal.pause()


async def _stop_self() -> Sequence[Item]:
    os.kill(os.getpid(), signal.SIGSTOP)
    return []


async def _die(number: int) -> Sequence[Item]:
    os.kill(os.getpid(), number)
    return []


async def _exit(status: int) -> Sequence[Item]:
    os._exit(status)


async def _garbage(text: str) -> Sequence[Item]:
    os.write(3, text.encode("latin-1"))
    return []


async def _grandchild(own_session: bool) -> Sequence[Item]:
    """A process of our own that outlives us unless someone looks for it; its id is the document's text."""
    return [document("grandchild", str(_popen(own_session))), Checkpoint(state=1)]


def _popen(own_session: bool) -> int:
    waits = "import signal; signal.pause()"
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", waits], start_new_session=own_session).pid


async def _hungry_grandchild() -> Sequence[Item]:
    _eat()
    return []


def _eat() -> None:
    program = "hoard = bytearray(b'x') * (300 * 2**20)\nimport signal\nsignal.pause()"
    subprocess.Popen([sys.executable, "-I", "-S", "-c", program])


async def _look(target: int, secret_file: str) -> Sequence[Item]:
    """Try to learn something of process ``target``, and of a file."""
    found = {
        "environ": _attempt(lambda: Path(f"/proc/{target}/environ").read_bytes()),
        "mem": _attempt(lambda: os.close(os.open(f"/proc/{target}/mem", os.O_RDONLY))),
        "maps": _attempt(lambda: Path(f"/proc/{target}/maps").read_bytes()),
        "descriptor": _attempt(lambda: os.close(os.open(f"/proc/{target}/fd/0", os.O_RDONLY))),
        "ptrace": _ptrace(target),
        "file": _attempt(lambda: Path(secret_file).read_bytes()),
        "write": _attempt(lambda: Path(secret_file).with_name("mine").write_bytes(b"x")),
        "own_environ": dict(os.environ),
        "descriptors": sorted(
            os.readlink(f"/proc/self/fd/{entry}").split(":")[0] for entry in os.listdir("/proc/self/fd")[:-1]
        ),
        "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()],
        "core": __import__("resource").getrlimit(4),
        "session": os.getsid(0) == os.getpid(),
    }
    import json

    return [document("look", json.dumps(found))]


async def _read(path: str) -> Sequence[Item]:
    return [document("read", _attempt(lambda: Path(path).read_text()))]


async def _import(name: str) -> Sequence[Item]:
    return [document("import", _attempt(lambda: __import__(name)))]


async def _now(_: Any = None) -> Sequence[Item]:
    return [document("now", str(time.clock_gettime(time.CLOCK_MONOTONIC)))]


def _attempt(action: Any) -> str:
    try:
        result = action()
    except OSError as error:
        return f"refused: {type(error).__name__}"
    except ImportError as error:
        return f"missing: {error}"
    return f"got: {result!r}"


def _ptrace(target: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, target, None, None) == 0:  # PTRACE_ATTACH
        libc.ptrace(17, target, None, None)
        return "got: attached"
    return f"refused: {os.strerror(ctypes.get_errno())}"


STEPS = {
    "documents": _documents,
    "checkpoint": _checkpoint,
    "unchanged": _unchanged,
    "failure": _failure,
    "nasty": _nasty,
    "source_error": _source_error,
    "bug": _bug,
    "allocate": _allocate,
    "allocate_in_a_group": _allocate_in_a_group,
    "sleep": _sleep,
    "block": _block,
    "stop_self": _stop_self,
    "die": _die,
    "exit": _exit,
    "garbage": _garbage,
    "grandchild": _grandchild,
    "hungry_grandchild": _hungry_grandchild,
    "look": _look,
    "read": _read,
    "import": _import,
    "now": _now,
}
