"""The report of the finished study: its files, its page, and what its figures draw."""

import base64
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tiny import REPOSITORY, changed

from coupled_adam_bench.evaluation.stage import measurements
from coupled_adam_bench.report import figures, manifest, page
from coupled_adam_bench.report.render import load_templates
from coupled_adam_bench.report.study import report
from coupled_adam_bench.report.tables import lay_out
from coupled_adam_bench.results.collect import collect, endings
from coupled_adam_bench.results.values import values_of
from coupled_adam_bench.statistics import tests as statistics
from coupled_adam_bench.statistics.verdict import CLAIMS, verdict
from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.catalogue.bands import BANDS
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.tables import TABLES
from coupled_adam_bench.study.plan import Plan, make_plan, read_plan
from coupled_adam_bench.study.study import parse_study

FOLDER = Path("results/tiny")
TEMPLATES = REPOSITORY / "templates"


class Page(HTMLParser):
    """Reads a page and refuses tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data.split()


def test_the_page_is_whole_and_needs_nothing_from_outside(finished: Path) -> None:
    read = Page((FOLDER / "report/index.html").read_text())
    pictures = [attrs["src"] for tag, attrs in read.found if tag == "img"]
    drawn = sorted(path.stem for path in (FOLDER / "figures").glob("*.svg"))
    assert drawn == sorted(path.stem for path in (FOLDER / "figures").glob("*.pdf"))
    files = {(FOLDER / "figures" / f"{name}.svg").read_bytes() for name in drawn}
    assert {base64.b64decode(source.split(",")[1]) for source in pictures} == files
    links = [attrs["href"] for tag, attrs in read.found if tag == "a"]
    assert all((FOLDER / "report" / link).is_file() for link in links)
    tags = [tag for tag, _ in read.found]
    assert not {"script", "link", "iframe"} & {*tags}
    tables = [attrs["id"] for tag, attrs in read.found if tag == "table" and "id" in attrs]
    assert tables == ["table1", "table2", "table7"]
    order = [name for name in tags if name in ("table", "img", "details")]
    assert order[:2] == ["table", "table"]
    assert order.index("img") < order.index("details")
    assert order[: order.index("details")].count("img") == 3
    assert len(read.words) < 4000
    assert (
        len([path for path in FOLDER.rglob("*") if path.is_file() and path.parent.name != "logs"])
        <= 40
    )


def test_a_second_report_has_the_same_bytes(copy: Path) -> None:
    plan = read_plan(FOLDER / "plan.json")
    made = [path for path in FOLDER.rglob("*") if path.suffix not in (".log", ".done")]
    before = {path: sha256_file(path) for path in made if path.is_file()}
    shutil.rmtree(FOLDER / "figures")
    report(plan, TEMPLATES)
    assert {path: sha256_file(path) for path in before} == before
    # What is measured so far is a report, too; nothing is written where a whole one is asked for.
    first, second = list(plan.cells)[:2]
    measurements(plan.study)["downstream"].path(first).unlink()
    run_of(second).record.unlink()
    with pytest.raises((ValueError, OSError)):
        report(plan, TEMPLATES)
    assert {path: sha256_file(path) for path in before} == before
    report(plan, TEMPLATES, partial=True)
    notes = (FOLDER / "tables/table1.md").read_text()
    assert "seed 1: Acc not measured" in notes
    assert "seed 2: not trained" in notes
    made_of = json.loads((FOLDER / "manifest.json").read_text())
    assert [cell["status"] for cell in made_of["cells"]][:2] == ["completed", "not trained"]
    assert parse_study(made_of["study"]) == plan.study
    # The figure of the longest cells is drawn of them alone.
    for cell in plan.cells.values():
        if cell.steps == 40:
            shutil.rmtree(run_of(cell.id).folder)
    report(plan, TEMPLATES, partial=True)


def test_print_takes_few_pages(finished: Path, tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        assert os.environ.get("CAB_REQUIRE_TOOLS") != "1"
        pytest.skip("chromium is not installed")
    out = tmp_path / "page.pdf"
    address = (finished / FOLDER / "report/index.html").as_uri()
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={out}", address]
    subprocess.run(["chromium", *options], capture_output=True, check=True, timeout=120)
    assert len(re.findall(rb"/Type\s*/Page\b", out.read_bytes())) <= 5


def numbers_of(plan: Plan, results: pd.DataFrame) -> figures.Numbers:
    values = values_of(plan, results)
    return figures.Numbers(plan, results, values.drop_duplicates(["cell", "metric"]))


def lines_of(ax: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the points of each labelled line or row of bars."""
    bars = {bar.get_label(): bar.lines[0].get_data() for bar in ax.containers}
    lines = {line.get_label(): line.get_data() for line in ax.lines}
    return {name: points for name, points in (bars | lines).items() if not name.startswith("_")}


def test_figures_draw_the_means_over_seeds(finished: Path) -> None:
    plan = read_plan(FOLDER / "plan.json")
    numbers = numbers_of(plan, collect(plan))
    # The place that has most seeds is not the largest one, which has a single seed.
    assert set(numbers.most_seeds()["n_tokens"]) == {30 * 256}
    loss, ratio = figures._training(numbers).axes
    at_end = {}
    for cell in numbers.most_seeds().itertuples():
        at_end.setdefault(cell.label, []).append(
            [row.get("loss") for row in run_of(cell.cell).rows()]
        )
    drawn = lines_of(loss)
    # What diverges before it is logged has no line.
    assert set(drawn) == {"Adam", "Coupled Adam", "SGD, f = 100"}
    for label in ("Adam", "Coupled Adam", "SGD, f = 100"):
        assert drawn[label][0][-1] == 30
        assert drawn[label][1][-1] == pytest.approx(
            np.mean([losses[-1] for losses in at_end[label]])
        )
    assert lines_of(ratio)["Coupled Adam"][1][-1] < lines_of(ratio)["Adam"][1][-1]

    isotropy, _ = figures._against_tokens(numbers, "isotropy", "mean_norm_ratio").axes
    values = numbers.of("isotropy")
    for label, (x, y) in lines_of(isotropy).items():
        own = values[values["label"] == label].groupby("n_tokens")["value"]
        means = own.agg(lambda found: found.mean(skipna=False)).dropna()
        assert [*x] == [*means.index]
        assert [*y] == pytest.approx([*means], nan_ok=True)

    bands, apart = figures._by_frequency(numbers).axes
    results = numbers.results.set_index(["cell", "metric"])["value"]
    cells = numbers.most_seeds().set_index(["label", "seed"])["cell"]
    for place, band in enumerate(BANDS):
        losses = {
            label: np.array([results[cells[label, seed], band.metric] for seed in (1, 2, 3)])
            for label in ("Adam", "Coupled Adam")
        }
        assert lines_of(bands)["Adam"][1][place] == pytest.approx(losses["Adam"].mean())
        difference = (losses["Coupled Adam"] - losses["Adam"]).mean()
        assert lines_of(apart)["Coupled Adam"][1][place] == pytest.approx(difference)

    slope, r2 = figures._second_moment(numbers, figures._histories(numbers.longest())).axes
    (longest,) = [
        cell
        for cell in plan.cells.values()
        if cell.n_tokens == 40 * 256 and cell.optimizer.name == "adamw"
    ]
    rows = [row for row in run_of(longest.id).rows() if "second_moment_slope" in row]
    for ax, name in ((slope, "second_moment_slope"), (r2, "second_moment_r2")):
        (points,) = lines_of(ax).values()
        assert [*points[0]] == [256 * row["step"] for row in rows]
        assert [*points[1]] == pytest.approx([row[name] for row in rows])


def test_a_single_step_is_a_point() -> None:
    ax = Figure().subplots()
    rows = pd.DataFrame({"step": [3], "loss": [1.0], "label": ["Adam"]})
    figures._lines(ax, rows, "loss", "step", ["label"])
    assert ax.lines[0].get_marker() == figures.MARKERS[0]


def test_models_and_lengths_that_print_alike_have_lines_of_their_own(finished: Path) -> None:
    study = json.loads((FOLDER / "plan.json").read_text())["study"]
    small = study["models"][0]
    study = changed(study, "models", [small, small | {"name": "other"}])
    tokens = [{"steps": steps, "label": "8K"} for steps in (30, 31)]
    block = study["grid"][0] | {"models": ["small", "other"], "tokens": tokens}
    plan = make_plan(parse_study(study | {"grid": [block]}))
    rows = [
        (cell.id, "test", "loss", cell.steps + (cell.model.name == "other"))
        for cell in plan.cells.values()
    ]
    results = pd.DataFrame(rows, columns=["cell", "task", "metric", "value"])
    numbers = numbers_of(plan, results)
    drawn = [lines_of(ax)["Adam"] for ax in figures._against_tokens(numbers, "loss").axes]
    assert [[*y] for _, y in drawn] == [[30, 31], [31, 32]]
    cells = numbers.most_seeds()
    assert len(cells) == 6
    names = ["tokens_label", "size_label"]
    assert len(numbers.shown[names].drop_duplicates()) == 4


def test_the_revision_is_that_of_our_own_code_and_says_what_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        user = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org"]
        command = ["git", "-C", str(tmp_path), *user, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    code = tmp_path / "code.py"
    code.write_text("1\n")
    monkeypatch.setattr(manifest, "__file__", str(code))
    git("init")
    assert manifest._revision() is None  # in the repository of others, and none of its files
    git("add", "code.py")
    git("commit", "-m", "code")
    commit = git("rev-parse", "HEAD")
    assert manifest._revision() == commit
    code.write_text("2\n")
    assert manifest._revision() == f"{commit}-dirty"


def test_a_study_has_the_figures_that_it_is_about(finished: Path, tmp_path: Path) -> None:
    """Two sizes, scales and rates: numbers are made up, so no run has a history."""
    study = json.loads((FOLDER / "plan.json").read_text())["study"]
    small = study["models"][0]
    study = changed(
        study, "models", [small | {"label": "$5K"}, small | {"name": "large", "d_model": 32}]
    )
    optimizers = ["adamw", *({"name": "coupled_adam", "scale_exponent": n} for n in (-1, 0, 2))]
    optimizers += [{"name": "sgd", "lr_factor": factor} for factor in (1, 10, 100)]
    block = {
        "table": "table7",
        "models": ["small", "large"],
        "tokens": [2560, 5120],
        "optimizers": optimizers,
    }
    plan = make_plan(parse_study(changed(study, "grid", [block])))
    rows = [
        (cell.id, task, metric, float(len(cell.optimizer.names()[0]) + cell.seed))
        for cell in plan.cells.values()
        for task, metric in (("test", "loss"), ("embeddings", "isotropy"))
    ]
    results = pd.DataFrame(rows, columns=["cell", "task", "metric", "value"])
    drawn = {
        each.name: each for each in figures.draw_figures(plan, results, values_of(plan, results))
    }
    names = ["training", "loss_accuracy", "embeddings", "plane", "scale_exponent", "lr_factor"]
    assert [*drawn] == names
    # Another setting makes another line.
    others = [{"name": "adamw", "beta2": 0.9, "lr_factor": factor} for factor in (1, 2, 4)]
    others += [{"name": "adamw", "lr_factor": factor} for factor in (1, 2, 4)]
    plan = make_plan(parse_study(changed(study, "grid", [block | {"optimizers": others}])))
    values = values_of(plan, results)
    cells = figures._settings(figures.Numbers(plan, results, values), "lr_factor")
    places = len(block["models"]) * len(block["tokens"])
    assert cells["line"].nunique() == 2 * places
    for each in drawn.values():
        ElementTree.fromstring(each.files["svg"])
        assert each.files["pdf"].startswith(b"%PDF")


def test_the_grid_of_comparisons_is_seen_from_the_later_optimizer(finished: Path) -> None:
    plan = read_plan(FOLDER / "plan.json")
    results = collect(plan)
    values = values_of(plan, results)
    tests = statistics.tests_of(values, plan.tables)
    labels = dict(zip(values["optimizer"], values["label"], strict=True))
    order = list(labels)
    expected = set()
    for row in tests[tests["p_paired"].notna()].itertuples():
        turns = order.index(row.optimizer) < order.index(row.reference)
        sign = -1 if turns else 1
        pair = (row.optimizer, row.reference)[::sign]
        ends = sorted([sign * row.low, sign * row.high])
        p = min(row.p_value, 1 - row.p_value)
        numbers = [
            f"{number:.3g}" for number in (sign * row.paired_difference, *ends, p, row.p_decided)
        ]
        word = row.outcome.split(",")[0]
        if turns:
            word = {"better": "worse", "worse": "better"}.get(word, word)
        expected.add((*(labels[each] for each in pair), METRICS[row.metric].plain, *numbers, word))
    found, pair = set(), []
    for _, grid in page._comparisons(plan, values, tests):
        for line in ElementTree.fromstring(grid).findall("tbody/tr"):
            cells = ["".join(cell.itertext()).replace("−", "-") for cell in line]
            if len(cells) == 9:
                pair = cells.pop(0).split(" minus ")
            metric, difference, ends, p, _, p_decided, _, word = cells
            if p_decided != "-":
                numbers = (difference, *ends.split("…"), p, p_decided)
                found.add((*pair, metric, *numbers, word.split(",")[0]))
    assert found == expected


ONE = {"mine": {"title": "Mine", "comparison": "each_other", "columns": ["loss", "acc"]}}


@pytest.mark.parametrize(
    ("block", "tables", "n_tests", "has_verdict"),
    [
        ({"table": None}, {}, 0, False),
        ({"table": "mine", "optimizers": ["adamw"]}, ONE, 0, False),
        ({"tokens": [{"steps": 77}]}, {}, 8, False),  # not trained yet
        ({}, {}, 8, True),
    ],
)
def test_studies_of_which_little_is_there(
    finished: Path, block: Any, tables: Any, n_tests: int, has_verdict: bool
) -> None:
    study = json.loads((FOLDER / "plan.json").read_text())["study"]
    grid = [study["grid"][0] | block]
    study |= {"grid": grid, "tables": tables, "paths": {"hub_mirror": "/home/anna"}}
    plan = make_plan(parse_study(study))
    results, runs = collect(plan, partial=True), endings(plan)
    values = values_of(plan, results)
    tests = statistics.tests_of(values, plan.tables)
    assert len(tests) == n_tests
    assert (verdict(values, tests, plan.tables) is not None) == has_verdict
    printed = [lay_out(plan, each, values, tests, results, runs) for each in plan.tables.values()]
    made = manifest.manifest(plan, runs)
    text = page.page_of(
        plan, load_templates(TEMPLATES), values, tests, printed, [], runs, made, None
    )
    assert len(Page(text).words) > 100
    assert "anna" not in f"{text}{made}"


def test_single_runs_hide_no_outcome_of_another_table(finished: Path) -> None:
    plan = read_plan(FOLDER / "plan.json")
    values = values_of(plan, collect(plan))
    values = values[values["table"] == "table1"]
    tables = {name: TABLES[name] for name in ("table2", "table1")}
    counts = []
    for some in (values, pd.concat([values.assign(table="table2"), values])):
        found = verdict(some, statistics.tests_of(some, tables), tables)
        assert found is not None
        counts.append((found.better, found.worse, found.open, found.seeds))
    assert counts[0] == pytest.approx(counts[1], nan_ok=True)
    assert sum(counts[0][:3]) == len(CLAIMS)


def test_no_mean_is_drawn_where_a_seed_is_missing() -> None:
    ax = Figure().subplots()
    values = pd.DataFrame({"x": [1, 1, 2, 2], "value": [5.0, np.nan, 6.0, 7.0]})
    figures._bars(ax, values, "x", 0, "Adam")
    assert ax.lines[0].get_xydata().tolist() == [[2, 6.5]]
