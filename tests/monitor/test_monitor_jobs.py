"""Several jobs at once: watched by threads, judged in turn, remembered when they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from monitor_jobs import Watcher, made
from monitor_moments import starved

from iofast.monitor.findings import Bound, Verdict
from iofast.monitor.live import Jobs, Sources
from iofast.monitor.snapshot import Job, Snapshot


class TestJobs:
    def test_a_job_that_ended_is_remembered_and_not_watched_again(self) -> None:
        jobs = Jobs(made(last=3))
        job = made().find()[0]
        jobs.add(job)
        jobs.add(job)
        assert len(jobs) == 1
        while len(jobs):
            jobs.next(1.0)
        jobs.add(job)
        assert len(jobs) == 0
        assert [moment.ended for moment in jobs.moments()] == [True]
        jobs.close()

    def test_snapshots_that_nobody_takes_are_dropped(self) -> None:
        before = threading.active_count()
        jobs = Jobs(made(), window=5)
        jobs.add(made().find()[0])
        time.sleep(2.5)  # a hundred snapshots a second, and the queue holds 64
        taken = 0
        while jobs.next(0.0) is not None:
            taken += 1
        assert taken <= 100  # some come while they are taken
        jobs.close()
        assert threading.active_count() <= before

    def test_a_verdict_stands_for_some_seconds_and_the_last_is_on_everything(self) -> None:
        judged: list[int] = []

        def judge(snapshots: Sequence[Snapshot], _before: Verdict | None) -> Verdict:
            judged.append(len(snapshots))
            return starved()

        jobs = Jobs(Sources(made().find, lambda job: Watcher(job, 30), judge))
        jobs.add(made().find()[0])
        while len(jobs):
            jobs.next(1.0)
        jobs.close()
        assert judged[0] == 1
        assert 6 <= len(judged) <= 8  # every five of 30 snapshots, which are a second each
        assert judged[-1] == 30

    def test_at_the_end_verdicts_are_on_everything(self) -> None:
        judged: list[int] = []
        plain = made()

        def judge(snapshots: Sequence[Snapshot], before: Verdict | None) -> Verdict:
            judged.append(len(snapshots))
            return plain.judge(snapshots, before)

        jobs = Jobs(Sources(plain.find, plain.watch, judge))
        jobs.add(plain.find()[0])
        for _ in range(4):
            assert jobs.next(1.0) is not None
        assert judged == [1, 2, 3]  # while nothing could be said each of them, and then it stands
        assert jobs.moments()[0].verdict.bound is Bound.INPUT
        jobs.settle()
        jobs.settle()
        assert judged == [1, 2, 3, 4]
        jobs.close()

    def test_an_error_is_raised_where_it_is_seen(self) -> None:
        def watch(_job: Job) -> Watcher:
            raise PermissionError("not yours")

        jobs = Jobs(Sources(made().find, watch, made().judge))
        jobs.add(made().find()[0])
        with pytest.raises(PermissionError, match="not yours"):
            jobs.next(2.0)
        jobs.close()

    def test_what_fails_later_is_a_note(self) -> None:
        class Failing(Watcher):
            def interval(self) -> Snapshot:
                if self._number == 2:
                    raise PermissionError("it became another user's")
                return super().interval()

        jobs = Jobs(Sources(made().find, Failing, made().judge))
        jobs.add(made().find()[0])
        while len(jobs):
            jobs.next(1.0)
        assert jobs.moments()[0].ended
        assert jobs.moments()[0].snapshot.notes[-1] == "watching it failed: it became another user's"
        jobs.close()
