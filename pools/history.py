"""How long each task used to take: what the drain planner predicts from."""

from collections import deque
from statistics import median

KEPT = 64


class History:
    """The run times of the newest completed runs of each task, in seconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def record(self, task: str, seconds: float) -> None:
        """Note one completed run."""
        known = self._seconds.get(task)
        if known is None:
            known = self._seconds[task] = deque(maxlen=KEPT)
        known.append(seconds)

    def remaining(self, task: str, elapsed_seconds: float) -> float | None:
        """How long a run that has taken ``elapsed_seconds`` will still take; None when nothing tells.

        The median of those earlier runs that took longer than this one has so far. A task without history,
        and a run that has outlasted all of it, cannot be predicted.
        """
        longer = [seconds for seconds in self._seconds.get(task, ()) if seconds > elapsed_seconds]
        return median(longer) - elapsed_seconds if longer else None
