"""When workers that die are replaced no more."""

from __future__ import annotations

from headrace.engines.deaths import Deaths


def test_as_many_false_starts_as_workers_are_borne():
    deaths = Deaths(2)
    for _ in range(2):
        deaths.count(has_worked=False)
    assert not deaths.are_too_many
    deaths.count(has_worked=False)
    assert deaths.are_too_many


def test_a_worker_that_starts_makes_up_for_those_that_did_not():
    deaths = Deaths(1)
    for _ in range(10):
        deaths.count(has_worked=False)
        deaths.note_start()
    assert not deaths.are_too_many


def test_deaths_without_any_outcome_between_are_too_many_at_last():
    deaths = Deaths(2)
    n = 0
    while not deaths.are_too_many:
        deaths.count(has_worked=True)
        n += 1
    assert 10 < n < 100
    deaths.note_outcome()
    assert not deaths.are_too_many


def test_deaths_at_a_sample_are_counted_by_epoch_task_and_position():
    deaths = Deaths(2)
    assert [deaths.count_at(0, 1, 2), deaths.count_at(0, 1, 2), deaths.count_at(1, 1, 2)] == [1, 2, 1]


def test_the_limit_can_be_set_and_is_told():
    deaths = Deaths(2, most_restarts=3)
    for _ in range(3):
        deaths.count(has_worked=True)
    assert not deaths.are_too_many
    deaths.count(has_worked=False)
    assert deaths.are_too_many
    assert "4 workers within 0.0 s, with no batch in between" in deaths.describe()
    assert "max_restarts=" in deaths.describe()
