"""What a fetch child may touch on this host: another user where hive is root, and Landlock where the kernel
has it.

| layer | when | effect |
|---|---|---|
| user | hive is root and ``fetch.user`` is set | root's rights are gone; see ``hardening.become_user`` |
| Landlock 1 | always | writing only in temporary folders, no reading in hidden ones (the state folder) |
| Landlock 2 | the right to read any file had to be kept | reading only the connector's roots, and libraries |

The second case is a clone under /root: neither the sources nor hive's own libraries can be read by another
user. Importing everything beforehand was tried and is not enough: parsers open data files and import codecs
when they meet a document that needs them. Without Landlock (Linux before 5.13, or switched off) the layers
are missing and nothing else changes. landlock(7).
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from pools.fetch.birth import Birth
from pools.fetch.hardening import become_user, die_with_parent, give_up_gaining, make_undumpable

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_PATH_BENEATH: Final = 1

_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_CHANGE_FOLDER: Final = sum(1 << bit for bit in range(4, 13))  # remove and make entries of any kind
_TRUNCATE: Final = 1 << 14  # from the third version on
_ON_FILES: Final = _WRITE_FILE | _READ_FILE | _TRUNCATE

_WRITABLE: Final = ("/tmp", "/var/tmp", "/dev")
_SYSTEM: Final = (
    *("/usr", "/lib", "/lib64", "/bin", "/proc", "/sys", "/dev", "/tmp", "/var/tmp"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf"),
    *("/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/localtime"),
    *("/etc/mime.types", "/etc/passwd", "/etc/group", "/run/systemd/resolve"),
)

_libc = ctypes.CDLL(None, use_errno=True)
_add_rule = _libc["syscall"]  # a function of its own, declared once: ctypes guesses anew at each call
_add_rule.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def confine(
    birth: Birth, zygote: int, *, must_read: Sequence[str], may_read: Sequence[str], hidden: Sequence[str]
) -> None:
    """Give up, for good, what the connector does not need.

    ``must_read``: files and folders without which it is useless; ``may_read``: where else it may look;
    ``hidden``: what it never may. Raises OSError when the user cannot be changed: rather no run than one as
    root.
    """
    give_up_gaining()
    version = _landlock_version()
    outer = _outer_layer(version, hidden) if version else None
    libraries = _libraries()
    kept = become_user(birth.user, (*must_read, *libraries)) if birth.user is not None else False
    if outer is not None:
        _restrict(outer)
    if kept and version:
        _restrict(_inner_layer(hidden, (*must_read, *may_read, *libraries, *_SYSTEM)))
    make_undumpable()
    die_with_parent(zygote)


def rehearse_confinement() -> None:
    """Make the layers, and let go of them: see ``child.rehearse``."""
    if version := _landlock_version():
        os.close(_outer_layer(version, ("/nonexistent",)))
        os.close(_inner_layer((), (*_libraries(), *_SYSTEM)))


def _libraries() -> tuple[str, ...]:
    """Where Python and its packages stand."""
    entries = {sys.prefix, sys.base_prefix, *(entry for entry in sys.path if entry)}
    entries |= {os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ}
    return tuple(entry for entry in sorted(entries) if entry != "/")


def _outer_layer(version: int, hidden: Sequence[str]) -> int:
    """Everything may be read but the hidden folders; written only where it does no harm."""
    write = _WRITE_FILE | _CHANGE_FOLDER | (_TRUNCATE if version >= 3 else 0)
    read = _READ_FILE if hidden else 0
    ruleset = _ruleset(write | read)
    closed = _resolved(hidden)
    for path in _WRITABLE:
        for part in _without(path, closed):
            _allow(ruleset, part, write | read)
    if hidden:
        for part in _without("/", closed):
            _allow(ruleset, part, read)
    return ruleset


def _inner_layer(hidden: Sequence[str], readable: Iterable[str]) -> int:
    ruleset = _ruleset(_READ_FILE)
    closed = _resolved(hidden)
    for path in _outermost(_resolved(readable)):
        for part in _without(path, closed):
            _allow(ruleset, part, _READ_FILE)
    return ruleset


def _resolved(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(_real, paths))


def _real(path: str) -> str:
    """``os.path.realpath`` in three system calls: the kernel walks the links, and says where it came to."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)
    finally:
        os.close(descriptor)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Those that lie below none of the others: a rule for a folder holds for all that is in it."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda path: path.rstrip("/") + "/"):
        if not kept or not _within(path, kept[-1]):
            kept.append(path)
    return kept


def _without(folder: str, hidden: Sequence[str]) -> Iterator[str]:
    """``folder``, in as few pieces as leave the hidden ones out. Landlock can only allow, never except."""
    if any(_within(folder, closed) for closed in hidden):
        return
    if not any(_within(closed, folder) for closed in hidden):
        yield folder
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_symlink():
                yield from _without(entry.path, hidden)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _landlock_version() -> int:
    """0 where the kernel has none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def _ruleset(handled: int) -> int:
    attributes = ctypes.c_uint64(handled)
    descriptor = int(
        _libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint32(0))
    )
    if descriptor < 0:
        _fail("landlock_create_ruleset")
    return descriptor


def _allow(ruleset: int, path: str, access: int) -> None:
    """Allow ``access`` at and below ``path``; what cannot be opened stays refused."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _ON_FILES
        rule = _PathBeneath(access, descriptor)
        if _add_rule(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0) != 0:
            _fail(f"landlock_add_rule for {path}")
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> None:
    try:
        if _libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) != 0:
            _fail("landlock_restrict_self")
    finally:
        os.close(ruleset)


def _fail(call: str) -> None:
    error = ctypes.get_errno()
    raise OSError(error, f"{call}: {os.strerror(error)}")
