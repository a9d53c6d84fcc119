"""The tests themselves: what they draw, and what they leave."""

import os
import subprocess
from io import BytesIO

import pytest
from finished import ROOT
from font_cuts import keep_cuts
from forks import FOLDER, STARTED, kill_started, real
from hypothesis import settings
from matplotlib import rc_context
from matplotlib.backends import _backend_pdf_ps as backend
from matplotlib.figure import Figure


def test_examples_are_the_same_each_time_unless_others_are_asked_for(pytestconfig):
    assert settings().derandomize == (pytestconfig.getoption("hypothesis_profile") is None)
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8").split("\n\n")
    (asking,) = [recipe for recipe in recipes if "--hypothesis-profile" in recipe]
    assert asking.startswith("nightly:")


@pytest.mark.timeout(60)
def test_a_test_that_fails_leaves_no_process(tmp_path):
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


def pdf() -> bytes:
    figure = Figure()
    figure.subplots().set_title("Adam, ρ = 0.5 and $\\kappa$")
    file = BytesIO()
    with rc_context({"pdf.fonttype": 42}):
        figure.savefig(file, format="pdf", metadata={"CreationDate": None})
    return file.getvalue()


def test_fonts_that_are_cut_once_give_the_same_files(tmp_path, monkeypatch):
    cut = backend.get_glyphs_subset
    monkeypatch.setattr(backend, "get_glyphs_subset", getattr(cut, "__wrapped__", cut))
    made = pdf()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    keep_cuts()
    assert pdf() == made
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("fonts/*")}
    assert kept and pdf() == made
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("fonts/*")} == kept
