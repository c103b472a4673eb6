"""Signals, sent to this very process."""

import os
import signal

import anyio

from patience import until
from supervisor.signals import Signals


async def test_the_first_signal_is_graceful_the_second_immediate_and_a_hangup_neither() -> None:
    async with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(signals.graceful.is_set)
        assert not signals.immediate.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        with anyio.fail_after(10):
            await signals.immediate.wait()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_stop_can_be_asked_for_without_a_signal() -> None:
    signals = Signals()
    signals.stop()
    assert signals.graceful.is_set()
    assert not signals.immediate.is_set()
