"""The search for the least threads and depth that keep a consumer from waiting, in virtual time."""

import random

import pytest
from simulated_loader import Cost, Simulation, around

from iofast.prefetch.auto import Auto, Limits, Setting, State, adapt, first, most_depth, window
from iofast.prefetch.jobs import Prefetch, PrefetchJob
from iofast.prefetch.times import PrefetchTimes

STEP = 0.1


def simulated(load: float, limits: Limits, windows: int = 600, *, spread: float = 0.1, seed: int = 0) -> Simulation:
    """Simulate a consumer that keeps `load` threads busy."""
    return Simulation(around(load * STEP, spread), around(STEP, spread / 3), limits, seed).run(windows)


@pytest.mark.parametrize("slices", [1, 8])
@pytest.mark.parametrize(("load", "threads"), [(0.05, 1), (0.9, 1), (1.3, 2), (2.5, 3), (5.2, 6)])
def test_it_finds_the_threads_that_the_load_needs(load: float, threads: int, slices: int) -> None:
    done = simulated(load, Limits(16, 8, slices), 400)
    assert done.history[0].num_workers == 16  # the first epoch is the coldest
    assert done.state.setting.num_workers == threads
    assert done.state.setting.depth <= 1 + -(-threads // slices) + 1
    assert done.wait_share(200) < 0.01
    assert done.wait / done.now < 0.01  # nor during the search
    assert done.changes <= 10


@pytest.mark.parametrize("load", [22, 400])
def test_a_consumer_faster_than_all_threads_keeps_them_all(load: float) -> None:
    done = simulated(load, Limits(16, 8, 8))
    assert set(done.history) == {first(done.limits).setting}  # more depth would be memory for nothing


def test_a_faster_consumer_has_its_threads_within_three_windows() -> None:
    """And a slower one frees them."""
    done = Simulation(around(0.25), lambda _, number: STEP if number < 16 * 300 else STEP / 4, Limits(16, 8, 8))
    assert done.run(300).state.setting == Setting(3, 2)
    assert done.run(3).state.setting.num_workers >= 10
    assert done.run(300).state.setting.num_workers in (11, 12)
    assert done.wait_share(290) < 0.01
    done = Simulation(around(0.5), lambda _, number: STEP if number < 16 * 300 else 5 * STEP, Limits(16, 8, 8))
    assert done.run(300).state.setting.num_workers == 6
    assert done.run(300).state.setting.num_workers == 2


CASES: dict[str, tuple[Cost, Cost, Limits, int]] = {  # the last number: allowed changes
    "quiet": (around(0.25), around(STEP), Limits(16, 8, 2), 10),
    "at the edge": (around(0.295, 0.3), around(STEP, 0.1), Limits(16, 8, 2), 40),
    "noisy, whole batches": (around(0.25, 0.6), around(STEP, 0.3), Limits(16, 64, 1), 80),
    "one core at the edge": (around(0.099, 0.3), around(STEP, 0.1), Limits(1, 8, 2), 60),
    "validation": (around(0.25), lambda _, number: STEP if number % 500 else 30.0, Limits(16, 8, 2), 10),
}


@pytest.mark.parametrize("windows", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_it_does_not_flap(case: str, windows: int) -> None:
    cost, step, limits, few = CASES[case]
    done = Simulation(cost, step, limits).run(windows)
    assert done.changes <= few
    assert done.wait_share(windows // 2) < 0.01
    assert max(setting.num_workers for setting in done.history[1000:]) <= max(1, limits.max_workers // 2)


def test_a_disk_that_stalls_now_and_then() -> None:
    """After each stall the threads are reduced again."""
    done = Simulation(lambda _, number: 0.25 if number % 3001 else 3.0, around(STEP), Limits(16, 8, 8)).run(2500)
    assert sum(setting.num_workers == 3 for setting in done.history) > 1750
    assert done.wait_share(2500) < 0.01


def test_bursts_take_depth_and_not_threads() -> None:
    """Eight of sixty batches are slow: 2.1 threads on average."""
    done = Simulation(lambda _, number: 0.4 if number % 60 < 8 else 0.17, around(STEP), Limits(3, 32, 8)).run(1000)
    assert done.state.setting.depth > 2
    assert done.wait_share(500) < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_limits_always_hold(seed: int) -> None:
    chance = random.Random(seed)
    limits = Limits(chance.choice([1, 7, 256]), chance.choice([1, 5, 64]), chance.choice([1, 100]))
    state = first(limits)
    for _ in range(2000):
        wait = chance.choice([0.01, 0.05, 0.5, 1.0]) if chance.random() < 0.2 else 0.0
        load = chance.choice([0.0, 0.5, 3.0, 1e9, float("inf")])
        state = adapt(state, wait, load, limits)
        assert 1 <= state.setting.num_workers <= limits.max_workers
        assert min(2, limits.max_depth) <= state.setting.depth <= limits.max_depth


def test_a_window_is_the_difference_of_two_snapshots() -> None:
    before = PrefetchTimes(1.0, 10, 12, 0.5, 4.0, 3.0)
    after = PrefetchTimes(3.0, 30, 36, 0.7, 10.0, 8.0)
    assert window(after.since(before)) == pytest.approx((0.1, (6 / 24) / (1.8 / 20)))
    assert window(PrefetchTimes()) == (0.0, float("inf"))


def test_a_wait_is_answered_by_what_is_missing() -> None:
    limits = Limits(8, 8, 8)
    state = State(Setting(2, 2))
    assert adapt(state, 0.01, 1.5, limits).setting == Setting(2, 2)  # noise
    late = adapt(state, 0.05, 1.5, limits)  # once: an accident
    assert late.setting == Setting(2, 2)
    assert adapt(late, 0.05, 1.5, limits).setting == Setting(2, 4)  # threads have room: depth
    assert adapt(late, 0.05, 4.5, limits).setting == adapt(state, 0.15, 4.5, limits).setting == Setting(5, 2)
    assert adapt(adapt(late, 0.0, 1.5, limits), 0.05, 1.5, limits).setting == Setting(2, 2)
    assert adapt(state, 1.0, float("inf"), limits).setting == Setting(8, 2)


def test_depth_is_bounded_by_memory() -> None:
    assert most_depth(100 << 20, 8, 64 << 30) == 8
    assert most_depth(1 << 30, 8, 16 << 30) == 2
    assert most_depth(1 << 40, 8, 1 << 30) == 1
    assert most_depth(0, 8, 1 << 30) == 8


class Nothing(PrefetchJob[int, int]):
    """Two slices without work."""

    def prepare(self) -> list[int]:
        return [0, 1]

    def run(self, part: int) -> None: ...

    def finish(self) -> int:
        return 1


def test_it_drives_a_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real threads are parked when not needed, and return. The state outlives an epoch. The windows are made up."""
    monkeypatch.setattr("iofast.prefetch.auto.WINDOW_S", 0.0)
    monkeypatch.setattr("iofast.prefetch.auto.PATIENCE", 2)
    limits, state = Limits(8, 6, 2), State(Setting(8, 6), patience=2)
    for made_up, threads in (((0.0, 0.5), 1), ((1.0, 8.0), 8)):
        monkeypatch.setattr("iofast.prefetch.auto.window", lambda _, made_up=made_up: made_up)
        made = Prefetch(lambda _: Nothing(), 400, num_workers=state.setting.num_workers, depth=state.setting.depth)
        auto = Auto(made, limits, state)
        for _ in made:
            auto.watch()
            assert (made.num_workers, made.depth) == (auto.state.setting.num_workers, auto.state.setting.depth)
        state = auto.state
        assert state.setting.num_workers == threads
