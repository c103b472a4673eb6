"""What a process may do to itself so that another one learns less from it. Linux, standard library only.

prctl(2), capset(2), setresuid(2). The order matters to the kernel: a change of user clears the parent-death
signal and the dumpable flag, so both are set again after it.
"""

import ctypes
import os
import resource
import signal
from collections.abc import Iterable
from typing import Final, NamedTuple

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_KEEPCAPS: Final = 8
PR_SET_NAME: Final = 15
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

CAP_DAC_OVERRIDE: Final = 1
CAP_DAC_READ_SEARCH: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


class User(NamedTuple):
    """Whom to become."""

    uid: int
    gid: int


def make_undumpable() -> None:
    """Keep other processes of this user out of this one's memory and environment (and leave no core).

    hive calls it before it reads a secret. /proc/PID/environ, /proc/PID/mem and ptrace then need
    CAP_SYS_PTRACE. Lost at exec, kept over fork.
    """
    _prctl(PR_SET_DUMPABLE, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends. Exits if ``parent`` is gone."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none gets out of sight."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """The name that ``ps`` and ``top`` show, 15 bytes at the most."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(PR_SET_NAME, ctypes.addressof(text))


def limit_memory(max_bytes: int | None) -> None:
    """Bound what this process may allocate (RLIMIT_DATA: a clean MemoryError), and forbid core files.

    RLIMIT_AS would count file maps and thread stacks' reserve too, and breaks threads.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if max_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard != resource.RLIM_INFINITY:
            max_bytes = min(max_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))


def give_up_gaining() -> None:
    """No exec gives this process or its descendants rights it does not have (setuid programs included)."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def become_user(user: User, must_read: Iterable[str]) -> bool:
    """Drop root for ``user``, supplementary groups and all capabilities included; for good.

    If ``user`` may not read one of ``must_read``, the right to read any file is kept, and nothing else of
    root: CAP_DAC_READ_SEARCH, or CAP_DAC_OVERRIDE where a container withholds that one. Returns whether it
    was kept: the caller then narrows it (``confinement``). Raises OSError when this process may not change
    its user.
    """
    held = _permitted()
    _drop_bounding_set()
    _prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    # KEEPCAPS leaves them permitted, not effective: what `user` can read by itself shows here.
    wanted = not all(_readable(path) for path in must_read)
    kept = 0
    if wanted:
        kept = next((bit for cap in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if (bit := 1 << cap) & held), 0)
    _set_capabilities(kept)
    _prctl(PR_SET_KEEPCAPS, 0)
    return kept != 0


def _readable(path: str) -> bool:
    """Whether ``path`` can be read, and listed if it is a folder. What does not exist needs no right."""
    try:
        os.lstat(path)
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0))


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        _fail("prctl", option)


def _drop_bounding_set() -> None:
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            return  # past the kernel's last one, or not allowed: exec gains nothing anyway


def _permitted() -> int:
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    if _libc.capget(ctypes.byref(header), data) != 0:
        _fail("capget", 0)
    return int(data[0].permitted) | int(data[1].permitted) << 32


def _set_capabilities(mask: int) -> None:
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    for half, shift in ((0, 0), (1, 32)):
        data[half].effective = data[half].permitted = mask >> shift & 0xFFFF_FFFF
    if _libc.capset(ctypes.byref(header), data) != 0:
        _fail("capset", mask)


def _fail(call: str, argument: int) -> None:
    error = ctypes.get_errno()
    raise OSError(error, f"{call}({argument}): {os.strerror(error)}")
