"""Liveness and readiness as files, for probes that run a command instead of asking over HTTP.

``<state>/live/<service>`` is touched from the event loop while that service gets on; ``<state>/live/hive``
while the loop turns at all; ``<state>/ready`` while hive consumes. A file says in its text how old it may
grow, so the probe needs no settings. ``probes.command`` reads them.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import anyio

from hive.clock import Clock
from hive.logger import get_logger
from hive.pulse import Pulse

log = get_logger(__name__)

FOLDER: Final = "live"
READY_FILE: Final = "ready"
LOOP_FILE: Final = "hive"


class ProbeFiles:
    """Keeps the files true. ``run`` is the service; call ``clear`` before the first round and at the end.

    ``alive``: each service that is not stopped, and whether it gets on. A file of a service that does not is
    left to grow old, one of a service that is gone is removed. ``ready``: whether hive consumes.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        alive: Callable[[], Mapping[str, bool]],
        ready: Callable[[], bool],
        touch_seconds: float,
        clock: Clock,
    ) -> None:
        self._folder = state_dir / FOLDER
        self._ready_file = state_dir / READY_FILE
        self._alive = alive
        self._ready = ready
        self._touch_seconds = touch_seconds
        self._text = f"{3 * touch_seconds:g}\n"
        self._failing = False
        self.pulse = Pulse(clock, touch_seconds)

    def clear(self) -> None:
        """Remove every file, those of an earlier boot included. Raises OSError."""
        self._ready_file.unlink(missing_ok=True)
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    async def run(self) -> None:
        """Touch the files every ``touch_seconds``, and whenever readiness changes within a second."""
        was_ready: bool | None = None
        next_touch = float("-inf")
        while True:
            is_ready = self._ready()
            now = anyio.current_time()
            if now >= next_touch or is_ready is not was_ready:
                self.run_once()
                was_ready, next_touch = is_ready, now + self._touch_seconds
            await anyio.sleep(min(1.0, self._touch_seconds))

    def run_once(self) -> None:
        """Bring every file up to date. A disk that refuses is logged once; the files tell of it by age."""
        alive = self._alive()
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.iterdir():
                if path.name != LOOP_FILE and path.name not in alive:
                    path.unlink(missing_ok=True)
            for name in (LOOP_FILE, *(name for name, gets_on in alive.items() if gets_on)):
                self._touch(self._folder / name)
            if self._ready():
                self._touch(self._ready_file)
            else:
                self._ready_file.unlink(missing_ok=True)
        except OSError as error:
            if not self._failing:
                log.error("probes.files_failed", cause=str(error))
            self._failing = True
        else:
            self._failing = False
        self.pulse.beat()

    def _touch(self, path: Path) -> None:
        try:
            os.utime(path)
        except FileNotFoundError:
            # Written aside and renamed: a probe must never read an empty file.
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_text(self._text)
            fresh.replace(path)
