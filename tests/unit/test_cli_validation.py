"""What does not fit together is said before anything starts, and all of it at once."""

import pytest

import hive
from hive.errors import ConfigurationError
from hive.settings import Pool, Redis, Settings
from hive.tasks import Registry
from supervisor.validation import problems, register_tasks, verify


async def work(context: hive.Context) -> None:
    """Does nothing."""


def registered(**queues: str) -> Registry:
    registry = Registry()
    for name, queue in queues.items():
        hive.task(queue=queue, name=name, into=registry)(work)
    return registry


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {
        "pools": {"one": Pool(slots=1, ledger=("a",), stream=("s",))},
        "schedules": {},
    }
    return Settings.model_validate({**values, **changes})


def test_what_fits_has_no_problems() -> None:
    assert problems(settings(), registered(first="a", second="s")) == ()


def test_every_problem_is_listed() -> None:
    with pytest.raises(ConfigurationError) as refused:
        verify(settings(schedules={"nonesuch": 5, "off": 0}), registered(stray="nowhere", other="elsewhere"))
    for word in ("stray", "nowhere", "other", "elsewhere", "nonesuch"):
        assert word in str(refused.value)
    assert "schedules.off" not in str(refused.value)


def test_a_pool_without_slots_must_not_hold_work() -> None:
    idle = {"one": Pool(slots=0, ledger=("a", "b"))}
    found = problems(settings(pools=idle), registered(first="a"))
    assert len(found) == 1
    assert "pools.one.slots" in found[0]
    assert problems(settings(pools=idle), registered()) == ()


def test_a_transactional_task_needs_the_ledger() -> None:
    registry = registered(process_batch="s")
    assert "ledger" in problems(settings(), registry)[0]
    assert problems(settings(redis=Redis(enabled=False)), registry) == ()


def test_hives_own_tasks_fit_its_own_settings() -> None:
    from hive.tasks import registry

    register_tasks(Settings())
    assert problems(Settings(), registry) == ()


def test_a_module_that_cannot_be_imported_is_named() -> None:
    broken = Settings.model_validate({"process": {"modules": ["no_such_module_of_mine"]}})
    with pytest.raises(ConfigurationError, match="no_such_module_of_mine"):
        register_tasks(broken)
