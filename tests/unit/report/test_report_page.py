import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from coupled_adam_bench import versions
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report.figures import FIGURES
from coupled_adam_bench.report.manifest import write_manifest
from coupled_adam_bench.report.page import published_numbers, write_report
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.statistics.scores import scorecards, verdicts

VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """Checks that tags nest and collects them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="session")
def study(fake: Any) -> StudyResults:
    return load_results(fake.plan, fake.study_dir / "results.csv", fake.study_dir / "tests.csv")


@pytest.fixture(scope="session")
def page(fake: Any) -> str:
    return str((fake.study_dir / "report" / "index.html").read_text())


def test_page_is_self_contained_and_well_formed(page: str) -> None:
    tags = Page(page).tags
    assert not {"script", "link", "iframe"} & {tag for tag, _ in tags}
    sources = [attributes["src"] or "" for _, attributes in tags if "src" in attributes]
    assert len(sources) == len(FIGURES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    links = [attributes["href"] or "" for _, attributes in tags if "href" in attributes]
    assert all(link.startswith(("#", "../")) for link in links)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert "url(" not in page
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")
    assert all(attributes["alt"] for tag, attributes in tags if tag == "img")


def test_links_point_to_files(page: str, fake: Any) -> None:
    for tag, attributes in Page(page).tags:
        if tag == "a" and (attributes["href"] or "").startswith("../"):
            assert (fake.study_dir / "report" / str(attributes["href"])).is_file()


def test_title_is_escaped(page: str) -> None:
    assert "<h1>Drawn numbers, 100 % fake &amp; &lt;b&gt;harmless&lt;/b&gt;</h1>" in page


def test_diverged_runs_are_listed_with_their_reason(page: str, fake: Any) -> None:
    section = page[page.index('id="runs"') : page.index('id="protocol"')]
    diverged = [cell for cell in fake.plan.cells.values() if cell.optimizer.key == "sgd_f600"]
    assert len(diverged) == 6
    for cell in diverged:
        line = f"diverged</span> <code>{cell.id}</code>: loss or gradient not finite in step 60 of 100"
        assert line in section
    assert "94 runs:" in page
    assert "86 completed, 8 diverged" in page


def test_scores_and_verdict_by_recount(study: StudyResults) -> None:
    results, tests = study.results, study.tests
    assert tests is not None
    cards = {card.table.name: card for card in scorecards(study)}
    rows = tests[(tests["table"] == "table1") & tests["significant"]]
    for score in cards["table1"].scores:
        for key in ("adamw", "coupled_adam"):
            assert score.wins[key] == ((rows["metric"] == score.metric.name) & (rows["optimizer"] == key)).sum()
        assert sum(score.wins.values()) + score.undecided + score.untestable == 9
        assert score.untestable == 0
    for score in cards["table7"].scores:  # one seed of one optimizer is missing in both blocks
        assert (score.untestable, score.undecided, sum(score.wins.values())) == (2, 0, 0)
    found = {verdict.table.name: verdict for verdict in verdicts(tuple(cards.values()))}
    assert list(found) == ["table1", "table2"]
    # The drawn embeddings are many standard deviations apart.
    assert (found["table1"].word, found["table1"].holds, found["table1"].total) == ("Reproduced", 27, 27)
    losses = results[(results["metric"] == "loss") & results["optimizer"].isin(["adamw", "coupled_adam"])]
    means = losses.pivot_table("value", ["n_tokens", "n_params"], "optimizer", aggfunc="mean")
    assert found["table1"].loss is not None
    assert found["table1"].loss.wins["coupled_adam"] <= (means["coupled_adam"] < means["adamw"]).sum()


def test_verdict_words(study: StudyResults) -> None:
    tests = study.tests
    assert tests is not None
    claimed = tests["metric"].isin(["isotropy", "mean_norm_ratio", "r_bar"])

    def word(of: pd.DataFrame) -> str:
        cards = scorecards(replace(study, tests=of))
        return {verdict.table.name: verdict.word for verdict in verdicts(cards)}["table1"]

    one = tests.assign(bold=tests["bold"] & ~(claimed & (tests.index == tests.index[claimed][0])))
    assert (word(tests), word(one)) == ("Reproduced", "Partly reproduced")
    assert word(tests.assign(bold=tests["bold"] & ~claimed)) == "Not reproduced"


def test_published_numbers_stand_beside_ours(fake: Any, study: StudyResults, page: str) -> None:
    rows, results = published_numbers(study), study.results
    # 3 sizes x 2 optimizers x 4 metrics at 20B, and 2 x 2 x 3 of the large scale.
    assert len(rows) == 24 + 12
    first = rows[0]
    assert (first.source, first.tokens_label, first.model_label, first.metric.name) == (
        "Table 1",
        "20B",
        "125M",
        "loss",
    )
    assert first.published == "3.03"
    cell = next(c for c in fake.plan.cells.values() if c.model.label == "125M" and c.tokens_label == "20B")
    own = results[(results["n_params"] == cell.n_params) & (results["n_tokens"] == cell.n_tokens)]
    mean = own[(own["metric"] == "loss") & (own["optimizer"] == "adamw")]["value"].mean()
    assert first.ours.startswith(f"{mean:.2f} (")
    assert first.difference.replace("\u2212", "-") == f"{mean - 3.03:.2f}"
    assert 'id="published"' in page


def test_manifest(fake: Any) -> None:
    manifest = json.loads((fake.study_dir / "manifest.json").read_text())
    assert manifest["study"] == "fake"
    assert [study["study"] for study in manifest["studies"]] == ["fake"]
    assert manifest["protocol"]["versions"]["statistics"] == versions.STATISTICS
    assert manifest["packages"]["numpy"] == version("numpy")
    assert "ruff" not in manifest["packages"]
    assert len(manifest["sha256"]) == 4 + 6 + 2 * len(FIGURES)
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((fake.study_dir / name).read_bytes()).hexdigest() == digest
    assert [cell["cell"] for cell in manifest["cells"]] == list(fake.plan.cells)
    assert manifest["cells"][0]["train"]["seconds"] == 12.5
    assert manifest["data"] == [{"id": data_id, "meta": None} for data_id in fake.plan.data_ids]
    assert manifest["git_revision"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", manifest["git_revision"])


def test_runs_that_are_not_there_are_said_to_be_missing(
    fake: Any, tiny_plan: Plan, tmp_path: Path, templates: Path
) -> None:
    from coupled_adam_bench.report.figures import write_figures
    from coupled_adam_bench.results.collect import collect, write_results
    from coupled_adam_bench.statistics.compare import write_tests
    from coupled_adam_bench.statistics.paired_text import write_paired
    from coupled_adam_bench.statistics.summary import write_summary

    study_dir = tmp_path / "tiny"
    with pytest.raises(ValueError, match=r"results\.csv: no such file"):
        write_report(tiny_plan, study_dir, templates)
    write_results(collect(tiny_plan, tmp_path / "runs", partial=True), study_dir / "results.csv")
    write_tests(tiny_plan, study_dir / "results.csv", study_dir / "tests.csv")
    write_paired(tiny_plan, study_dir / "paired.csv", tmp_path / "runs")
    write_summary(tiny_plan, study_dir / "results.csv", study_dir / "summary.csv")
    write_manifest(tiny_plan, study_dir, tmp_path)
    with pytest.raises(ValueError, match=r"loss_accuracy\.svg: missing; draw the figures first"):
        write_report(tiny_plan, study_dir, templates)
    write_figures(tiny_plan, study_dir / "results.csv", tmp_path / "runs", study_dir / "figures")
    write_report(tiny_plan, study_dir, templates)
    text = (study_dir / "report" / "index.html").read_text()
    Page(text)
    assert text.count("not trained</span>") == 6
    assert "Not reproduced" in text
    assert "generated language" in text
    broken = tmp_path / "runs" / next(iter(tiny_plan.cells)) / "run.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{}")
    with pytest.raises(ValueError, match=r"run\.json: its contents do not match"):
        write_manifest(tiny_plan, study_dir, tmp_path)


@pytest.fixture
def chromium() -> Callable[[list[str]], subprocess.CompletedProcess[str]]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        if os.environ.get("CAB_REQUIRE_TOOLS") == "1":
            pytest.fail("chromium is not installed, and CAB_REQUIRE_TOOLS=1")
        pytest.skip("chromium is not installed")
    return lambda arguments: subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)


def test_a_browser_shows_the_page(fake: Any, chromium: Callable[..., Any], tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}"]
    url = (fake.study_dir / "report" / "index.html").as_uri()
    dom = chromium([*options, "--disable-background-networking", "--dump-dom", url]).stdout
    assert dom.count("<tbody") == dom.count("</tbody>") > 5
    assert "Did it reproduce?" in dom


def test_the_groups_are_made_once_for_the_whole_report(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, templates: Path
) -> None:
    from coupled_adam_bench.results import groups, study_results

    made: list[Plan] = []

    def layout_of(plan: Plan) -> groups.Layout:
        made.append(plan)
        return groups.layout_of(plan)

    monkeypatch.setattr(study_results, "layout_of", layout_of)
    shutil.copytree(fake.study_dir, tmp_path / "fake")
    write_report(fake.plan, tmp_path / "fake", templates, fake.root / "runs")
    assert made == [fake.plan]


def test_what_the_study_takes_is_in_the_page(page: str) -> None:
    section = page[page.index('id="cost"') : page.index('id="runs"')]
    assert "an estimate for" in section or "speeds of ended runs" in section
    for text in ("gpt2-125m", "took each", "disk", "FLOPs"):
        assert text in section
