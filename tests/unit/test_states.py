"""Terminal states move only by an operator's replay; every move stands in the one table."""

import pytest

from hive.states import MOVES, TERMINAL, JobState, allowed


def test_every_state_has_a_row() -> None:
    assert set(MOVES) == set(JobState)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_terminal_states_move_only_back_to_pending(state: JobState) -> None:
    assert {after for after in JobState if allowed(state, after)} <= {JobState.PENDING}


def test_completed_never_moves() -> None:
    assert not any(allowed(JobState.COMPLETED, after) for after in JobState)


def test_only_pending_jobs_are_claimed() -> None:
    assert [before for before in JobState if allowed(before, JobState.RUNNING)] == [JobState.PENDING]


def test_every_waiting_state_can_be_cancelled() -> None:
    for state in set(JobState) - TERMINAL:
        assert allowed(state, JobState.CANCELLED)
