"""The peers' environments: one each, made once for each list of packages."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES: Mapping[str, Sequence[str]] = {
    name: entry["packages"] for name, entry in tomllib.loads((HERE / "peers.toml").read_text()).items()
}


class Environments:
    """Below ``root``. ``missing`` says which could not be made, and why."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.missing: dict[str, str] = {}

    def program(self, environment: str, name: str) -> str:
        """The path of a program of an environment; hive's is the one this runs in."""
        folder = Path(sys.executable).parent if environment == "hive" else self._root / environment / "bin"
        return str(folder / name)

    def prepare(self, names: Sequence[str]) -> None:
        """Make those that are not made yet."""
        for name in names:
            if name == "hive" or name in self.missing:
                continue
            mark = self._root / name / "packages"
            wanted = "\n".join(PACKAGES[name])
            if mark.exists() and mark.read_text() == wanted:
                continue
            print(f"installing {name}", flush=True)
            try:
                self._make(name)
            except subprocess.CalledProcessError as error:
                lines = (error.stderr or error.stdout or "").strip().splitlines()
                self.missing[name] = "not installed: " + (lines[-1] if lines else str(error))[:200]
            else:
                mark.write_text(wanted)

    def versions(self, name: str) -> dict[str, str]:
        """Package and version of what ``peers.toml`` names, as installed."""
        program = (
            "import sys; from importlib.metadata import version\n"
            "for name in sys.argv[1:]: print(name, version(name))"
        )
        wanted = [package.split("=")[0].split("[")[0] for package in PACKAGES[name]]
        said = subprocess.run(
            [self.program(name, "python"), "-c", program, *wanted], capture_output=True, text=True
        ).stdout
        return dict(line.split() for line in said.splitlines())

    def _make(self, name: str) -> None:
        folder = self._root / name
        uv = Path(sys.executable).parent / "uv"
        if uv.exists():
            commands = [
                [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)],
                [str(uv), "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")],
            ]
        else:
            commands = [
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"],
            ]
        commands[1] += PACKAGES[name]
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True)
