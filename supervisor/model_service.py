"""The embedding model's process as a supervised service."""

import asyncio
import hashlib
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import anyio

from hive.errors import ConfigurationError, StoreDown
from hive.logger import get_logger
from hive.settings import Settings

log = get_logger(__name__)

SCRIPT = Path(__file__).with_name("model_server.py")
START_SECONDS = 60.0
STOP_SECONDS = 5.0
LONGEST_SOCKET = 100
"""A Unix socket's path holds 107 bytes."""

# What the child needs of our environment: where libraries and scratch space are, and how many threads to use.
PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
)


class ModelServer:
    """Starts ``supervisor/model_server.py`` and notices its end. ``run`` is the service, ``ready`` its start.

    It shares nothing with hive but a Unix socket, and gets no secret.
    """

    def __init__(self, settings: Settings) -> None:
        self.socket_path = _socket_path(settings.process.state_dir.absolute())
        self._listening = anyio.Event()

    async def ready(self) -> None:
        """Return when the server listens."""
        await self._listening.wait()

    async def run(self) -> None:
        """Run the server until cancelled; raises StoreDown when it ends by itself."""
        self._listening = anyio.Event()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            "--uds",
            str(self.socket_path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is hive's to act on
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        try:
            assert process.stdout is not None
            with anyio.move_on_after(START_SECONDS):
                line = await process.stdout.readline()
                if line:
                    said = json.loads(line)
                    log.info("model.listening", model=said["model"], dimension=said["dimension"])
                    self._listening.set()
            if not self._listening.is_set():
                raise StoreDown("the model server", "starting", f"exit code {process.returncode}")
            code = await process.wait()
            raise StoreDown("the model server", "running", f"it ended with {code}")
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    with anyio.move_on_after(STOP_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


def _socket_path(state: Path) -> Path:
    inside = state / "model.sock"
    if len(os.fsencode(inside)) <= LONGEST_SOCKET:
        return inside
    # Only this user may enter the folder, and the lock on the state folder keeps a second hive out.
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    folder = Path("/tmp") / f"hive-{os.geteuid()}-{digest}-model"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise ConfigurationError(f"{folder} belongs to somebody else", remedy="choose a shorter state folder")
    return folder / "model.sock"


def require_model() -> None:
    """Raise ConfigurationError where the embedded model is not installed."""
    if importlib.util.find_spec("wordllama") is None:
        raise ConfigurationError(
            "the embedded model is not installed",
            remedy="install hive-supervisor[embedded], or name a server with HIVE_EMBEDDING__URL",
        )
