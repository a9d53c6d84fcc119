import math
import re
from pathlib import Path
from typing import Any

import pytest
from sections import tables_of, texts_of

from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.statistics.crossings import crossing_sentences
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.trend import STATISTIC
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan

MINUS = "\u2212"


@pytest.fixture(scope="module")
def page(fake: Any) -> str:
    return str((fake.study_dir / "report" / "index.html").read_text())


def test_the_section_answers_the_papers_claim(fake: Any, page: str) -> None:
    material = Material(load_results(fake.plan, fake.study_dir / "results.csv"), study_dir=fake.study_dir)
    _, first, *others = (text for text in texts_of(STATISTIC, material) if "SGD" not in text)
    # The drawn gain grows by 0.04 per tenfold, 0.012 per doubling.
    answer = re.fullmatch(
        r"The gain of Coupled Adam over Adam in loss grows with D: each doubling changes the difference by -0\.01\d+ "
        r"\[-0\.01\d+, -0\.0\d+\] nat/token \(one-sided p = 0\.\d+\)\.",
        first.replace(MINUS, "-"),
    )
    assert answer is not None
    assert answer[0] in page.replace("&lt;", "<").replace(MINUS, "-")
    sizes = "125M, 355M, 760M"
    assert others[:2] == [
        f"The fitted {values} of Coupled Adam and Adam do not cross within the numbers of tokens of N = {sizes}."
        for values in ("losses", "word similarities")
    ]
    # Two sizes with one run each.
    assert "cannot be told" in others[2]
    # A run of SGD at f = 500 diverged, and all of f = 600.
    *_, third = tables_of(STATISTIC, material)
    remarks = {line[1]: line[-1] for line in reversed(third)}  # of the first metric, the loss
    assert remarks["SGD, f = 500"] == "2 of 6 pairs missing"
    assert remarks["SGD, f = 600"] == "no pair has both values; 6 of 6 pairs missing"


def test_the_figure_is_in_the_section_only(fake: Any, page: str) -> None:
    before, after = page.split('<section id="trend">')
    assert figures_of(fake.plan)["trend"] in after
    assert figures_of(fake.plan)["trend"] not in before


def test_a_study_of_one_place_has_no_section(tiny_plan: Any) -> None:
    assert "trend" not in figures_of(tiny_plan)


def test_files_are_in_the_manifest(fake: Any) -> None:
    manifest = Path(fake.study_dir / "manifest.json").read_text()
    assert '"trend.csv"' in manifest
    assert '"crossings.csv"' in manifest


def test_a_crossing_is_a_sentence(tiny_study: Any, results_of: Any) -> None:
    block = {"table": "table1", "models": ["nano"], "tokens": [{"steps": n, "label": f"{n} steps"} for n in (40, 160)],
             "optimizers": ["adamw", "coupled_adam"], "seeds": [1, 2, 3]}  # fmt: skip

    def value(cell: Any, _: Any) -> float:
        gain = 0.1 * math.log2(cell.steps / 80) + 0.01 * (cell.seed - 2) * math.log(cell.steps)
        return 3.0 if cell.optimizer.key == "adamw" else 3.0 - gain

    study = results_of(make_plan(parse_study(tiny_study(grid=[block]))), value)
    sentences = crossing_sentences(Material(study), "table1")
    assert re.fullmatch(
        r"The fitted losses of Coupled Adam and Adam cross at D = 5\.12K for N = 1\.43K "
        r"\(95 % interval [\d.]+K to [\d.]+K\)\.",
        sentences[0],
    )
