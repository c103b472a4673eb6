"""Runs one command as a subreaper and ends only when nothing that descends from it is left.

Usage: python cradle.py STATUS_FILE COMMAND…  The command's pid, then its exit code, go to STATUS_FILE as JSON
lines. Orphans of a killed hive come to this process; while one of them lives, this process lives.
"""

import ctypes
import json
import os
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    status_file, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    child = os.posix_spawn(command[0], command, os.environ, setpgroup=0)
    with open(status_file, "w", encoding="utf-8", buffering=1) as status:
        status.write(json.dumps({"pid": child}) + "\n")
        while True:
            try:
                pid, code = os.waitpid(-1, 0)
            except ChildProcessError:
                return 0
            if pid == child:
                status.write(json.dumps({"exit": os.waitstatus_to_exitcode(code)}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
