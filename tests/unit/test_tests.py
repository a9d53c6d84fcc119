"""The tests themselves: what they draw, and what they leave."""

import os
import subprocess
from pathlib import Path

import pytest
from finished import ROOT
from forks import STARTED, kill_started, real
from hypothesis import settings


def test_examples_are_the_same_each_time_unless_others_are_asked_for(
    pytestconfig: pytest.Config,
) -> None:
    assert settings().derandomize == (pytestconfig.getoption("hypothesis_profile") is None)
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8").split("\n\n")
    (asking,) = [recipe for recipe in recipes if "--hypothesis-profile" in recipe]
    assert asking.startswith("nightly:")


@pytest.mark.timeout(60)
def test_a_test_that_fails_leaves_no_process(tmp_path: Path) -> None:
    n_before = len(STARTED)
    process = real(
        ["sh", "-c", "sleep 600 & echo begun; wait"],
        tmp_path,
        dict(os.environ),
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"begun\n"
    kill_started(n_before)
    with process.stdout as pipe:
        assert pipe.read() == b""  # its job, which has the pipe too, has ended
    assert len(STARTED) == n_before
