from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.report.published import (
    PUBLISHED_COLUMNS,
    SECTION,
    direction_of,
    published_lines,
    published_pairs,
    verdict_on,
)
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import read_csv
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study import catalog
from coupled_adam_bench.study.config import load_any_study
from coupled_adam_bench.study.plan import make_plan

PUBLISHED = Path(catalog.__file__).with_name("published.csv")
STUDIES = Path(__file__).parents[3] / "workflow" / "config"


@pytest.fixture
def study(fake: Any) -> StudyResults:
    return fake.study


def test_the_file_has_what_the_paper_prints() -> None:
    pairs = list(published_pairs())
    assert len(pairs) == 3 * 4 + 2 * 3
    found = {(pair.source, pair.model_label, pair.metric.name): pair for pair in pairs}
    first = found["Table 1", "125M", "loss"]
    assert (first.means, first.tokens_label) == ({"adamw": 3.03, "coupled_adam": 2.97}, "20B")
    assert found["Table 2", "2.6B", "acc"].means == {"adamw": 0.425, "coupled_adam": 0.428}
    assert {pair.bold for pair in pairs} == {"coupled_adam"}


def test_each_number_says_that_it_was_read_in_a_summary() -> None:
    rows = read_csv(PUBLISHED, PUBLISHED_COLUMNS, ("source", "n_params", "optimizer", "metric"))
    assert all(
        f"summary of ACL 2025 long 1321, {source} [S]" in origin
        for source, origin in zip(rows["source"], rows["origin"], strict=True)
    )


def test_the_file_has_the_sizes_of_the_shipped_studies() -> None:
    pairs = list(published_pairs())
    for source, name in (("Table 1", "paper_small"), ("Table 2", "paper_large")):
        plan = make_plan(load_any_study(STUDIES / f"{name}.yaml"), [STUDIES])
        places = {(c.model.label, c.n_params, c.tokens_label, c.n_tokens) for c in plan.cells.values()}
        ours = {(p.model_label, p.n_params, p.tokens_label, p.n_tokens) for p in pairs if p.source == source}
        assert ours <= places


def test_verdicts() -> None:
    a, b = "adamw", "coupled_adam"
    assert [verdict_on(*each) for each in ((a, a), (None, None), (a, None), (None, b), (a, b))] == [
        "same", "same", "lost", "gained", "flipped",
    ]  # fmt: skip
    assert [direction_of(*each) for each in ((a, a), (a, b), (a, None))] == [
        "same direction", "other direction", "no difference",
    ]  # fmt: skip


def verdicts(study: StudyResults) -> Counter[str]:
    return Counter(line[-1].text for line in published_lines(study))


def test_ours_stand_beside_the_paper_s(fake: Any, study: StudyResults) -> None:
    first = published_lines(study)[0]
    assert (first[4], first[7]) == ("3.03", "2.97")
    results = study.results
    cell = next(c for c in fake.plan.cells.values() if c.model.label == "125M" and c.tokens_label == "20B")
    own = results[(results["n_params"] == cell.n_params) & (results["n_tokens"] == cell.n_tokens)]
    for place, (optimizer, paper) in ((4, ("adamw", 3.03)), (7, ("coupled_adam", 2.97))):
        mean = own[(own["metric"] == "loss") & (own["optimizer"] == optimizer)]["value"].mean()
        assert first[place + 1].startswith(f"{mean:.2f} (")
        assert first[place + 2].replace("\u2212", "-") == f"{mean - paper:.2f}"
    assert verdicts(study) == {"same": 18}


def test_each_verdict(study: StudyResults) -> None:
    tests = study.tests
    assert tests is not None
    most = tests["n_tokens"].isin([max(tests[tests["table"] == "table1"]["n_tokens"])])
    at = (tests["table"] == "table1") & most & (tests["metric"] == "loss")
    assert verdicts(replace(study, tests=tests.assign(bold=tests["bold"] & ~at))) == {"lost": 3, "same": 15}
    flipped = tests.copy()
    flipped.loc[at, ["optimizer", "reference", "bold"]] = ["adamw", "coupled_adam", True]
    assert verdicts(replace(study, tests=flipped)) == {"flipped": 3, "same": 15}
    gone = study.results.assign(value=study.results["value"].mask(study.results["metric"] == "isotropy"))
    missing = replace(study, results=gone)
    assert verdicts(replace(missing, tests=compare(missing))) == {"same": 13, "not run": 5}


def test_a_study_of_another_scale_has_no_such_section(tiny_plan: Any, results_of: Any, tmp_path: Path) -> None:
    study = results_of(tiny_plan, lambda *_: 1.0)
    assert not list(SECTION.blocks(Material(study, tmp_path, tmp_path)))
