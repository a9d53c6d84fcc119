"""A small version of ``research/rare_tokens``: the direction of what arXiv 2609.37535 says of rare
tokens."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def toys() -> ModuleType:
    path = Path(__file__).parents[3] / "research" / "rare_tokens" / "rare_tokens.py"
    spec = importlib.util.spec_from_file_location("rare_tokens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rare_tokens"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_adam_gives_rare_tokens_less_than_their_frequency_and_others_do_not(toys):
    toy = toys.Toy(vocab_size=512, d_model=16, batch_tokens=4, steps=1000)
    found = {}
    for name, lr in (("Adam", 0.03), ("AMSGrad", 0.01), ("SGD", 0.1), ("Coupled Adam", 0.01)):
        log_ratio_U, frequency_U, _ = toys.calibration(toys.RIVALS[name][0], lr, 1, toy)
        rare_U = toys.bands(frequency_U, toy.batch_tokens)["rare"]
        assert 100 < rare_U.sum() < 256
        found[name] = log_ratio_U[rare_U].mean().item()
    assert found["Adam"] < -0.3
    assert all(abs(found[name]) < 0.2 for name in ("AMSGrad", "SGD", "Coupled Adam")), found


def test_the_chain_is_one_of_probabilities_and_has_rare_words(toys):
    chain_UU = toys.transitions(64, 0)
    torch.testing.assert_close(chain_UU.sum(1), torch.ones(64, dtype=torch.float64))
    stationary_UU = torch.linalg.matrix_power(chain_UU, 64)
    torch.testing.assert_close(
        stationary_UU[0], stationary_UU[-1]
    )  # one law, wherever the text begins
    assert stationary_UU[0].max() > 20 * stationary_UU[0].min()
