"""Jobs in forked children: every job has one outcome, whatever becomes of its process."""

import os
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_kernels.harness import isolated


def ended(jobs, work, **options):
    return sorted(isolated.each(jobs, work, **options), key=lambda row: row[0])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_job_has_one_outcome(workers):
    assert ended(range(7), lambda job: job * job, workers=workers) == [(i, i * i, "") for i in range(7)]


def test_one_worker_keeps_the_order():
    assert [row[0] for row in isolated.each([3, 1, 2], lambda job: job)] == [3, 1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_death_costs_its_own_job(workers):
    def work(job):
        if job == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if job == 4:
            os._exit(7)
        return job

    rows = ended(range(6), work, workers=workers)
    assert [row[1] for row in rows] == [0, 1, None, 3, None, 5]
    assert "SIGKILL" in rows[2][2]
    assert "ended with 7" in rows[4][2]


def test_the_last_job_of_a_process_hands_over_its_outcome():
    seen = []

    def work(job):
        if job == 1:
            raise isolated.LastJob("lost")
        return os.getpid()

    for job, outcome, _ in isolated.each(range(4), work):
        seen.append((job, outcome))
    assert seen[1] == (1, "lost")
    assert seen[0][1] != seen[2][1] == seen[3][1]


def test_a_job_without_end_is_ended():
    rows = ended(range(3), lambda job: time.sleep(60) if job == 1 else job, seconds=1, workers=2)
    assert [row[1] for row in rows] == [0, None, 2]
    assert "no end after 1 s" in rows[1][2]


def test_what_has_no_outcome_in_time_is_given_up_without_a_word():
    begin = time.monotonic()
    rows = list(isolated.each(range(4), lambda job: time.sleep(60 * (job > 0)), workers=2, until=begin + 2))
    assert [job for job, *_ in rows] == [0]
    assert time.monotonic() - begin < 60


def test_deaths_in_a_row_give_up_the_rest():
    rows = ended(range(6), lambda job: os._exit(1))
    assert sum("not tried" in row[2] for row in rows) == 3
    assert all(row[1] is None for row in rows)


def test_nothing_is_left_running_when_the_caller_stops():
    jobs = isolated.each(range(4), lambda job: os.getpid() if job == 0 else time.sleep(60), workers=2)
    pid = next(jobs)[1]
    jobs.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 3))
def test_groups_are_worked_on_together(groups, workers):
    """A group moves to a second process only when there is no group without one."""
    jobs = list(enumerate(groups))
    rows = list(isolated.each(jobs, lambda job: os.getpid(), workers=workers, group=lambda job: job[1]))
    assert sorted(row[0] for row in rows) == jobs
    if workers == 1:
        assert len({row[1] for row in rows}) == 1


def test_a_number_of_workers_that_is_none(monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_JOBS", "many")
    with pytest.raises(ValueError, match="expected a number"):
        isolated.workers()
    monkeypatch.setenv("ASCEND_PERF_JOBS", "3")
    assert isolated.workers() == 3


def test_what_never_ends_is_ended_with_its_words():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match=r"importing k.py takes more than 0.2 s"):
        with isolated.in_time(0.2, "importing k.py"):
            while True:
                pass
    with isolated.in_time(60, "nothing"):
        pass
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_an_alarm_of_somebody_else_is_left_alone():
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        with isolated.in_time(0.01, "nothing"):
            time.sleep(0.1)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
