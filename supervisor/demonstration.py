"""`hive run --demo`: hive's own documentation as a first source, and what to try next."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hive.errors import Conflict
from hive.ids import DEFAULT_TENANT
from hive.logger import get_logger

if TYPE_CHECKING:
    from supervisor.assembly import Assembly

log = get_logger(__name__)

NAME: Final = "hive-docs"
PAGES: Final = ("README.md", "CHANGELOG.md", "docs/**/*.md")
HINTS: Final = """
hive is ready on http://127.0.0.1:{port}

  In another terminal:
    {hive} search "graceful shutdown"
    {hive} connector add files --name mine --path ~/documents
    {hive} attempts
    {hive} queues

  Ctrl-C stops it; a second one stops it at once.
"""


async def present(hive: "Assembly") -> None:
    """Add the documentation, unless it was added before, and print what to try."""
    folder = documentation()
    if folder is None:
        log.warning("demo.no_documentation", looked_in=str(Path.cwd()))
    else:
        path = hive.roots.add(folder)
        try:
            pair = await hive.pairs.add(
                DEFAULT_TENANT,
                kind="files",
                name=NAME,
                config={"path": str(path), "include": list(PAGES)},
                credential=None,
                refresh_seconds=600,
            )
            # Not with the next check, which may be a quarter of a minute away.
            await hive.pairs.request_run(DEFAULT_TENANT, pair.id, client=hive.client)
        except Conflict:
            log.debug("demo.added_before")
    command = Path(sys.argv[0])
    shown = command if command.name == "hive" and command.is_absolute() else Path("hive")
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    sys.stderr.write(HINTS.format(port=hive.http.port, hive=shown))
    sys.stderr.flush()


def documentation() -> Path | None:
    """The folder of hive's README and docs: the working folder's own, or that of a checkout."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[1]):
        if (folder / "README.md").is_file() and (folder / "docs").is_dir():
            return folder
    return None
