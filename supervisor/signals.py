"""Signals: the first SIGTERM or SIGINT asks for a graceful stop, the second for the end at once."""

import asyncio
import signal
from types import TracebackType
from typing import Self

import anyio

from hive.logger import get_logger

log = get_logger(__name__)


class Signals:
    """``graceful`` and ``immediate`` are set by the first and the second signal; use it as a context.

    SIGHUP is ignored and logged: a closed terminal or a log rotation is no reason to drop work. The handlers
    that stood before come back at the end.
    """

    def __init__(self) -> None:
        self.graceful = anyio.Event()
        self.immediate = anyio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hangup)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """What the handlers do; also for a stop that was asked for by other means."""
        if not self.graceful.is_set():
            log.info("signal.stop", signal=number.name)
            self.graceful.set()
        elif not self.immediate.is_set():
            log.warning("signal.stop_at_once", signal=number.name)
            self.immediate.set()

    def _hangup(self) -> None:
        log.info("signal.hangup_ignored")
