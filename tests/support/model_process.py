"""The real model server as a process, for tests that embed."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import hive

SCRIPT = Path(hive.__file__).parent.parent / "supervisor" / "model_server.py"


class ModelProcess:
    """``with ModelProcess("--uds", path) as model``: listens when the body begins, is gone when it ends."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.listening = ""

    def __enter__(self) -> "ModelProcess":
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *self._arguments], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.stdout.close()
            raise AssertionError(f"the model server ended with {self.process.wait(timeout=10)}")
        self.listening = json.loads(line)["listening"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        finally:
            self.process.kill()
            self.process.wait(timeout=10)
            if self.process.stdout is not None:
                self.process.stdout.close()
