"""PID 1: reaping orphans without ever touching a child that hive itself waits for.

In a container the first process inherits every orphan and must reap it. Reaping inside hive was tried on
paper and rejected: ``waitpid(-1)`` steals the exit status that asyncio, Popen and the zygote's owner wait
for, and "every zombie I do not know" needs a list of known children that each starter must keep, races
included. So PID 1 forks at once, before any thread or import of weight: the parent is a small init that
reaps whatever comes and passes signals on, the child is hive and has only its own children.

The standard library only; ``supervisor.main`` calls it first.
"""

import os
import signal
from contextlib import suppress
from types import FrameType

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)


def become_init_if_first() -> None:
    """As PID 1, fork: the child returns from here, the parent never does. Elsewhere: do nothing."""
    if os.getpid() == 1:
        become_init()


def become_init() -> None:
    """Fork; the child returns. The parent forwards signals, reaps, and ends with the child's exit code
    (128 + signal if a signal ended it)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # none may be lost between the fork and the handlers
    child = os.fork()
    if child == 0:
        # A session of its own: Ctrl-C on a terminal then reaches hive once, through the init, and not twice,
        # which would mean "stop at once".
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    os._exit(_reap_until(child))


def _reap_until(child: int) -> int:
    """Reap every child that ends, until ``child`` does; returns its exit code."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 1
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
