"""The device of these tests: a GPU, or the CPU in miniature, so that the tests are known to run."""

import pytest
import torch
from nano import nano, prepared

__all__ = ["nano", "prepared"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("asks for a GPU")
    return torch.device("cuda:0")
