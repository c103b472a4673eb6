"""A progress bar for one attempt, on a terminal."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from supervisor.cli.plain_text import clean


class Bar:
    """Documents and batches of one attempt. Its total rises while the connector is still reading."""

    def __init__(self, attempt: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(f"attempt {attempt}", total=None, figures="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, row: dict[str, Any]) -> None:
        """Draw the attempt as it stands."""
        figures = (
            f"{row['documents_total']} documents, {row['documents_new']} new, "
            f"{row['batches_done']}/{row['batches_total']} batches"
            + (f", waits for {row['waiting_for']}" if row["waiting_for"] else "")
        )
        self._progress.update(
            self._task,
            description=clean(f"{row['connector']}: {row['status'].replace('_', ' ')}"),
            total=row["batches_total"] or None,
            completed=row["batches_done"],
            figures=clean(figures),
        )

    def waiting(self, why: str) -> None:
        """Say that hive does not answer at present; the line of its own stays above the bar."""
        self._progress.console.print(clean(why), style="yellow", markup=False, highlight=False)
