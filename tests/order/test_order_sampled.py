"""Orders of torch's samplers, and of any iterable of indices."""

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from at_once import at_once, in_child
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from iofast.errors import OptionError
from iofast.order import Order, Population, Repeated, Sampled

N = 30


def bound(sampler: Any, seed: int = 1, count: int = N) -> Order:
    return Sampled(sampler).bind(Population(count), seed)


def epoch_of(order: Order, epoch: int) -> list[int]:
    found: list[int] = order.indices(epoch, np.arange(order.length)).tolist()
    return found


class Random:
    """A sampler with a length and another order in each epoch; it counts its runs."""

    num_replicas = 1

    def __init__(self, n: int, repeats: bool = True) -> None:
        self.n, self.repeats, self.runs = n, repeats, 0
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        self.runs += 1
        return iter(np.random.default_rng(self.epochs[-1] if self.repeats else None).permutation(self.n))


class TestRuns:
    def test_once_per_epoch(self) -> None:
        sampler = Random(50)
        order = bound(sampler, count=60)
        assert order.length == 50
        at_once(*[lambda: order.indices(3, np.arange(50))] * 8)
        assert epoch_of(order, 3) == np.random.default_rng(3).permutation(50).tolist()
        assert (sampler.runs, sampler.epochs) == (1, [3])
        for epoch in range(10):
            order.indices(epoch, np.arange(2))
        assert sampler.runs == 10  # epoch 3 was still there

    def test_a_sampler_that_does_not_repeat_itself_has_another_checksum(self) -> None:
        steady, unsteady = (bound(Random(50, repeats), count=50) for repeats in (True, False))
        assert steady.checksum(2) == pickle.loads(pickle.dumps(steady)).checksum(2) != steady.checksum(3)
        assert unsteady.checksum(2) == unsteady.checksum(2)
        assert unsteady.checksum(2) != pickle.loads(pickle.dumps(unsteady)).checksum(2)

    def test_a_fork_while_another_thread_runs_the_sampler(self) -> None:
        running, forked = threading.Event(), threading.Event()

        class Slow(list[int]):
            def __iter__(self) -> Iterator[int]:
                running.set()
                forked.wait(60)
                return iter([2, 0, 1])

        order = bound(Slow(range(3)))
        thread = threading.Thread(target=order.indices, args=(0, np.arange(3)))
        thread.start()
        assert running.wait(60)
        status = in_child(lambda: forked.set() or epoch_of(order, 0) == [2, 0, 1])
        forked.set()
        thread.join()
        assert status == 0, "it waits for the thread that it does not have"

    def test_an_epoch_of_another_length_is_refused(self) -> None:
        sampler = Random(5)
        order = bound(sampler, count=9)
        sampler.n = 4
        with pytest.raises(OptionError, match="must give 5 indices in every epoch, found 4 in epoch 0"):
            order.indices(0, np.array([0]))
        sampler.n = 7
        with pytest.raises(OptionError, match="must end after 5 indices, found more in epoch 1"):
            order.indices(1, np.array([0]))
        sampler.num_replicas = 3
        with pytest.raises(OptionError, match="sampler Random must have the attribute rank, one of 3, found None"):
            bound(sampler)


DRAWING: dict[str, Callable[[Any], Any]] = {
    "random": lambda generator: RandomSampler(range(N), generator=generator),
    "drawn again": lambda generator: RandomSampler(range(N), True, 70, generator),
    "weighted": lambda generator: WeightedRandomSampler([1.0, 2.0] * (N // 2), 50, generator=generator),
    "subset": lambda generator: SubsetRandomSampler(range(5, 25), generator),
}


class TestGenerators:
    @pytest.mark.parametrize("kind", DRAWING)
    def test_epochs_repeat_with_any_generator_whose_state_is_kept(self, kind: str) -> None:
        before = torch.get_rng_state()
        used = torch.Generator().manual_seed(4)
        torch.rand(3, generator=used)
        state = used.get_state()
        samplers = [DRAWING[kind](each) for each in (None, torch.Generator(), used)]
        orders = [bound(sampler) for sampler in samplers]
        epochs = [epoch_of(orders[0], epoch) for epoch in range(8)]
        assert len({tuple(each) for each in epochs}) == 8
        assert [epoch_of(orders[0], epoch) for epoch in range(8)] == epochs  # only four are kept
        for order in orders[1:]:
            assert [epoch_of(order, epoch) for epoch in (5, 0)] == [epochs[5], epochs[0]]
            assert order.checksum(5) == orders[0].checksum(5)
        assert epoch_of(bound(DRAWING[kind](None), seed=2), 0) != epochs[0]
        assert [samplers[0].generator, samplers[2].generator] == [None, used]
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(used.get_state(), state)

    def test_they_are_as_random_as_in_torch(self) -> None:
        assert sorted(epoch_of(bound(DRAWING["random"](None)), 0)) == list(range(N))
        weighted = bound(WeightedRandomSampler([0.0, 1.0, 3.0], 40_000), count=3)
        shares = np.bincount(epoch_of(weighted, 0), minlength=3) / 40_000
        assert np.abs(shares - [0, 0.25, 0.75]).max() < 0.01  # five standard deviations

    def test_another_librarys_generator_is_left_alone(self) -> None:
        class Numpys:
            def __init__(self, generator: Any) -> None:
                self.generator = generator

            def __iter__(self) -> Iterator[int]:
                return iter((self.generator or np.random.default_rng(1)).permutation(N))

            def __len__(self) -> int:
                return N

        given = bound(Numpys(np.random.default_rng(3)))
        assert epoch_of(given, 0) == np.random.default_rng(3).permutation(N).tolist()
        assert epoch_of(bound(Numpys(None)), 0) == np.random.default_rng(1).permutation(N).tolist()
        assert epoch_of(bound({3: "c", 1: "a"}.keys()), 7) == [3, 1]  # neither a length of its own nor epochs


class TestSampledShares:
    def test_of_ranks(self) -> None:
        orders = [bound(DistributedSampler(range(N), 2, rank)) for rank in (0, 1)]  # type: ignore[arg-type]
        assert [order.sharded for order in orders] == [(0, 2), (1, 2)]
        assert [Repeated(2, Sampled(range(9))).bind(Population(9)).sharded, bound(range(9)).sharded] == [None, None]
        assert sorted(epoch_of(orders[0], 1) + epoch_of(orders[1], 1)) == list(range(N))
        assert bound(DistributedSampler(range(N), 1, 0)).sharded is None  # type: ignore[arg-type]

    def test_descriptions_hold_the_options_of_shares(self) -> None:
        def described(rank: int = 0, replicas: int = 2, **options: Any) -> dict[str, object]:
            return bound(DistributedSampler(range(N), replicas, rank, **options)).describe()  # type: ignore[arg-type]

        first, options = described(), {"num_replicas": 2, "seed": 0, "shuffle": True, "drop_last": False}
        assert first == described(1) == first | options
        others: list[dict[str, Any]] = [{"seed": 1}, {"shuffle": False}, {"drop_last": True}, {"replicas": 3}]
        assert first not in [described(**each) for each in others]
