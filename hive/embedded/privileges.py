"""As whom a server runs, and how it is tied to hive's life.

Not root: as hive itself. Root: as an unprivileged user, since PostgreSQL refuses root and Valkey has no need
of it. That user often cannot walk to the state folder or to the wheel (``/root`` is 0700). Modes of parents
are never changed; the server keeps one capability instead, the weakest that serves:

* CAP_DAC_READ_SEARCH: walk through any folder, read any file;
* CAP_DAC_OVERRIDE where the first is not to be had (Docker's default set) or the program may be run by its
  owner alone (a virtual environment made under umask 077).

``access(2)`` answers for the real user and forgets capabilities when that is not root, unless the process is
told by a secure bit not to adjust them to the user. ``initdb`` looks for ``postgres`` that way: without the
bit it finds nothing in a folder that only the capability opens.

hive's role in the database is no superuser, so SQL cannot use that capability to read files.
"""

import os
import pwd
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hive.errors import ConfigurationError

_CAP_DAC_OVERRIDE = 1
_CAP_DAC_READ_SEARCH = 2
_CAP_SETGID = 6
_CAP_SETUID = 7
_CAP_SETPCAP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user that a server runs as."""

    name: str
    uid: int
    gid: int


def server_identity(user: str) -> Identity | None:
    """Whom servers run as: None for hive's own user, else ``user``, where hive is root.

    Raises ConfigurationError when that user does not exist, is root, or hive may not become it.
    """
    if os.geteuid() != 0:
        return None
    remedy = (
        "run hive as an ordinary user, name another one in HIVE_EMBEDDED__USER, "
        "or set HIVE_POSTGRES__DSN and HIVE_REDIS__URL"
    )
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ConfigurationError(
            f"embedded.user: there is no user {user!r} on this machine", remedy=remedy
        ) from None
    if entry.pw_uid == 0:
        raise ConfigurationError("embedded.user: PostgreSQL refuses to run as root", remedy=remedy)
    if not _holds(_CAP_SETUID) or not _holds(_CAP_SETGID):
        raise ConfigurationError(
            f"hive is root but may not switch to user {user!r}: this container withholds SETUID or SETGID",
            remedy=remedy,
        )
    return Identity(name=user, uid=entry.pw_uid, gid=entry.pw_gid)


def launch_command(
    identity: Identity | None, *, death_signal: str, program: Path, walks_to: Sequence[Path]
) -> list[str]:
    """What to put before a server's own command line.

    ``death_signal``: sent to the server by the kernel when the thread that started it ends, as it does with
    hive. ``walks_to``: paths the server must reach by name; whether it can decides about the capability.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ConfigurationError(
            "the embedded stores are started by `setpriv`, which is not installed",
            remedy="install util-linux, or set HIVE_POSTGRES__DSN and HIVE_REDIS__URL",
        )
    command = [setpriv, "--no-new-privs", "--pdeathsig", death_signal]
    if identity is None:
        return [*command, "--"]
    command += ["--reuid", str(identity.uid), "--regid", str(identity.gid), "--clear-groups"]
    capability = _capability(identity, program, walks_to)
    kept = "-all" if capability is None else f"-all,+{capability}"
    for kind in ("inh-caps", "ambient-caps", "bounding-set"):
        command.append(f"--{kind}={kept}")
    if capability is not None and _holds(_CAP_SETPCAP):
        command.append("--securebits=+no_setuid_fixup")
    return [*command, "--"]


def _capability(identity: Identity, program: Path, walks_to: Sequence[Path]) -> str | None:
    if not _allows(identity, program, 0o1):
        if _holds(_CAP_DAC_OVERRIDE):
            return "dac_override"
    elif all(_reaches(identity, path) for path in (program, *walks_to)):
        return None
    elif _holds(_CAP_DAC_READ_SEARCH):
        return "dac_read_search"
    elif _holds(_CAP_DAC_OVERRIDE):
        return "dac_override"
    blocked = next((path for path in (program, *walks_to) if not _reaches(identity, path)), program)
    raise ConfigurationError(
        f"user {identity.name!r}, whom the embedded stores run as, cannot reach {blocked}",
        remedy="put it below folders that others may enter, run hive as an ordinary user, "
        "or set HIVE_POSTGRES__DSN and HIVE_REDIS__URL",
    )


def _reaches(identity: Identity, path: Path) -> bool:
    """By mode bits alone; where an access list says more, the server has a capability too many."""
    path = path.resolve()
    return all(_allows(identity, parent, 0o1) for parent in path.parents) and _allows(identity, path, 0o4)


def _allows(identity: Identity, path: Path, bits: int) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return True
    shift = 6 if status.st_uid == identity.uid else 3 if status.st_gid == identity.gid else 0
    return (status.st_mode >> shift) & bits == bits


def _holds(capability: int) -> bool:
    """Whether hive holds a capability and may hand it on."""
    masks = {"CapEff": 0, "CapBnd": 0}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in masks:
            masks[name] = int(value, 16)
    return all(mask >> capability & 1 for mask in masks.values())
