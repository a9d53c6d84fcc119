"""How the speed of two ways is compared. Run by hand, on a quiet machine: python -m pytest tests/speed -s"""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch

Way = Callable[[], object]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ratio(capsys: pytest.CaptureFixture[str]) -> Callable[[Way, Way, int], float]:
    """A function of two ways and a number of blocks: the first one's time over the second one's.

    The ways take turns as A B B A, so that what else the machine does meets both, and the fastest
    run of each counts, in CPU seconds of this process: the one that was disturbed least.
    """

    def compare(ours: Way, theirs: Way, blocks: int) -> float:
        seconds: dict[Way, list[float]] = {ours: [], theirs: []}
        for way in (ours, theirs):  # what is made or read at the first time
            way()
        for _ in range(blocks):
            for way in (ours, theirs, theirs, ours):
                started = time.process_time()
                way()
                seconds[way].append(time.process_time() - started)
        best = min(seconds[ours]) / min(seconds[theirs])
        middle = statistics.median(seconds[ours]) / statistics.median(seconds[theirs])
        with capsys.disabled():
            print(f"\n  {min(seconds[ours]):.3f} s, ratio {best:.3f}, of medians {middle:.3f}")
        return best

    return compare
