"""Lanes take turns, six to three to one, so that a higher one goes first and none starves."""

from typing import Final

from hive.broker.port import Lane

HIGH, NORMAL, LOW = Lane
_ROUND: Final = (HIGH, NORMAL, HIGH, HIGH, NORMAL, HIGH, LOW, HIGH, NORMAL, HIGH)


class LaneTurns:
    """Whose turn it is in one queue, as one process serves it. A lane's unused turns go to the others."""

    def __init__(self) -> None:
        self._at = 0

    def parts(self, count: int) -> list[int]:
        """How many of the next ``count`` are each lane's, in the order of the lanes."""
        rounds, rest = divmod(count, len(_ROUND))
        next_ones = [_ROUND[(self._at + step) % len(_ROUND)] for step in range(rest)]
        return [rounds * _ROUND.count(lane) + next_ones.count(lane) for lane in Lane]

    def served(self, count: int) -> None:
        """Go on by ``count`` turns."""
        self._at = (self._at + count) % len(_ROUND)
