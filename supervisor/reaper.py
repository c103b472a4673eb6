"""PID 1: reaping orphans without ever touching a child that hive itself waits for.

In a container the first process inherits every orphan and must reap it. Reaping inside hive was tried on
paper and rejected: ``waitpid(-1)`` steals the exit status that asyncio, Popen and the zygote's owner wait
for, and "every zombie I do not know" needs a list of known children that each starter must keep, races
included. So PID 1 forks at once, before any thread or import of weight: the parent is a small init that
reaps whatever comes and passes signals on, the child is hive and has only its own children.

The kernel kills whoever is left the moment PID 1 ends. A hive that stops has stopped its stores before; one
that a handler took down (a segfault, out of memory) has not: they are told by the kernel (PDEATHSIG) and need
their time. Cut off, Postgres forgot the claims that it had not yet written, so that no death was ever charged
to the handler and the crash loop had no end. So the init waits for them. What it cannot hold off is a kill of
the whole container at once.

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
STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
LAST_SECONDS = 10
"""So long those that outlive hive may take to end, unless a second signal asks for the end."""


def become_init_if_first() -> None:
    """As PID 1, fork: the child returns from here, the parent never does. Elsewhere: do nothing."""
    if os.getpid() == 1:
        become_init()


def become_init() -> None:
    """Fork; the child returns. The parent forwards signals, reaps, and ends with the child's exit code
    (128 + signal if a signal ended it), once nobody is left or ``LAST_SECONDS`` after the child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # none may be lost between the fork and the handlers
    child = os.fork()
    if child == 0:
        # A session of its own: Ctrl-C on a terminal then reaches hive once, through the init, and not twice,
        # which would mean "stop at once".
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    _Init(child).run()


class _Init:
    """The parent: first hive's go-between, then the one who waits for those that outlive hive."""

    def __init__(self, hive: int) -> None:
        self._hive = hive
        self._code: int | None = None  # known once hive has ended
        self._stops = 0

    def run(self) -> None:
        for number in FORWARDED:
            signal.signal(number, self._receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        self._reap()
        os._exit(1 if self._code is None else self._code)

    def _reap(self) -> None:
        """Reap every child that ends, until there is none."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, 0)
                if pid == self._hive:
                    code = os.waitstatus_to_exitcode(status)
                    self._code = code if code >= 0 else 128 - code
                    signal.signal(signal.SIGALRM, self._leave)
                    signal.alarm(LAST_SECONDS)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._stops += number in STOPPING
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._hive, number)
        elif number in STOPPING and self._stops > 1:
            self._leave(number, frame)

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        os._exit(1 if self._code is None else self._code)
