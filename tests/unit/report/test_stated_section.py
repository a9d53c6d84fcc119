"""The report of a stated plan: outcomes, whether it was followed, and what is marked as
exploratory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from sections import html_of, tables_of

from coupled_adam_bench.records.stated import stated_measures
from coupled_adam_bench.report.make import Places, report
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import write_csv
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.hypotheses import STATISTIC
from coupled_adam_bench.statistics.preregistered import stated_table
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.preregistration_record import note_stated
from coupled_adam_bench.study.settings import parse_study

LOSS = {
    "name": "<b>loss</b>",
    "table": "table1",
    "metric": "loss",
    "better": "coupled_adam",
    "than": "adamw",
}
NAN = float("nan")


class Shown(NamedTuple):
    """The line of the hypothesis, those of the plan's parts, and the section."""

    hypothesis: list[str]
    checks: list[list[str]]
    html: str


@pytest.fixture
def section(tiny_study: Callable[..., dict[str, Any]], results_of: Any, tmp_path: Path) -> Any:
    """The section of a study with ``seeds`` that have values and a stated plan, seen before a
    number of runs."""

    def build(
        seeds: list[int], n_begun: int = 0, without: tuple[int, ...] = (), **text: Any
    ) -> Shown:
        path, folder = tmp_path / "plan.yaml", tmp_path / "tiny"
        path.write_text(yaml.safe_dump({"hypotheses": [LOSS], "seeds": [1, 2, 3]} | text))
        settings = tiny_study(stated=str(path))
        settings["grid"][0]["seeds"] = seeds
        plan = make_plan(parse_study(settings))
        assert plan.stated is not None
        for cell_id in list(plan.cells)[:n_begun]:
            (tmp_path / "runs" / cell_id).mkdir(parents=True)
        note_stated(plan, folder, stated_measures(plan))
        study: StudyResults = results_of(
            plan, lambda cell, _: NAN if cell.seed in without else value(cell)
        )
        material = Material(study, tmp_path / "runs", folder)
        hypotheses, checks = tables_of(STATISTIC, material)
        return Shown(hypotheses[0], checks, html_of(STATISTIC, material))

    return build


def value(cell: Any) -> float:
    return 3.0 + 0.01 * cell.seed - 1.0 * (cell.optimizer.key == "coupled_adam")


def kept(section: Shown) -> list[str]:
    return [kept for _, kept, _ in section.checks]


def test_a_plan_that_was_followed(section):
    found = section([1, 2, 3])
    assert kept(found) == ["yes"] * 2
    row = found.hypothesis
    assert (row[1], row[9], row[2], row[7]) == ("confirmed", "3", "< 0.0001", "Table 1")
    assert "and so are the hypotheses below" not in found.html


def test_a_plan_seen_after_a_run_is_exploratory(section):
    found = section([1, 2, 3], n_begun=4)
    assert kept(found) == ["no", "yes"]
    assert "when 4 of 6 runs had begun" in found.checks[0][2]
    assert "and so are the hypotheses below" in found.html


def test_a_changed_text_is_said(section):
    section([1, 2, 3])
    assert (
        "1 other text(s) of the plan were seen too" in section([1, 2, 3], alpha=0.01).checks[0][2]
    )


@pytest.mark.parametrize(
    ("seeds", "without", "checks", "finding"),
    [
        ([1, 2, 3, 9], (), ["yes", "no"], "seed 9 was run and is not stated"),
        ([1, 2], (), ["yes", "open"], "2 of 3 seeds have all values"),
        ([1, 2, 3], (2,), ["yes", "open"], "2 of 3 seeds have all values"),
    ],
)
def test_what_was_not_followed_is_said(
    section,
    seeds,
    without,
    checks,
    finding,
):
    found = section(seeds, without=without)
    assert kept(found) == checks
    assert ("no value of seed" in found.hypothesis[-1]) == (
        found.hypothesis[1] == "not yet decided"
    )
    assert finding in [text for _, _, text in found.checks]


def test_the_page_and_the_manifest_of_a_stated_plan(
    tiny_study,
    results_of,
    templates,
    tmp_path,
    draw_only,
):
    draw_only()
    path, folder = tmp_path / "plan.yaml", tmp_path / "tiny"
    better = LOSS | {"difference": 0.03, "spread": 0.01}
    path.write_text(yaml.safe_dump({"title": "R&D", "hypotheses": [better], "seeds": [1, 2, 3]}))
    plan = make_plan(parse_study(tiny_study(stated=str(path))))
    assert plan.stated is not None
    note_stated(plan, folder, stated_measures(plan))
    results = tmp_path / "collected.csv"
    write_csv(results_of(plan, lambda cell, _: value(cell)).results, results)
    report(plan, Places(templates, folder, tmp_path / "runs", results), endings=["svg"])
    page = (folder / "report" / "index.html").read_text()
    part = page.split('<section id="stated">')[1].split("</section>")[0]
    assert "&lt;b&gt;loss&lt;/b&gt;" in part
    assert plan.stated.sha256 in part
    assert "R&amp;D" in part
    last = page.split('<section id="reproduce">')[1]
    assert f"A plan was stated before the first run: <code>{plan.stated.path}</code>" in last
    manifest = read_json(folder / "manifest.json")
    assert manifest["stated"]["sha256"] == plan.stated.sha256
    assert [entry["begun"] for entry in manifest["stated"]["seen"]] == [[]]
    assert "stated.csv" in manifest["sha256"]
    header, line = stated_table(layout_of(plan))
    assert header == ["hypothesis", "metric", "expected", "seeds", "power", "for 80 %"]
    assert line == ["<b>loss</b>", "loss", "0.03 ± 0.01", "3", "91 %", "3"]
