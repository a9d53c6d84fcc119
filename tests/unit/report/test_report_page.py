import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from markupsafe import escape
from planned import Planned
from sections import html_of

from coupled_adam_bench.page.blocks import MOST_ROWS, Column, Grid
from coupled_adam_bench.report import make
from coupled_adam_bench.report.contents import statistics_of
from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.report.make import Places, report
from coupled_adam_bench.report.manifest import manifest_of
from coupled_adam_bench.report.record import PROTOCOL, study_files
from coupled_adam_bench.results.facts import Comparison, Outcome
from coupled_adam_bench.results.groups import GROUP_COLUMNS, layout_of
from coupled_adam_bench.results.study_results import Decided, StudyResults, records
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.statistics.scores import (
    TONES,
    UNTESTED,
    WORDS,
    Verdict,
    reach_of,
    scorecards,
    verdicts,
)
from coupled_adam_bench.study.catalogue import versions
from coupled_adam_bench.study.catalogue.tables import SETUP_TABLES, TABLE_ENDINGS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import load_study, parse_any_study, parse_study

ROOT = Path(__file__).parents[3]
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
    return fake.study


@pytest.fixture(scope="session")
def page(fake: Any) -> str:
    return fake.page


def test_page_is_self_contained_and_well_formed(page, fake):
    tags = Page(page).tags
    names = [tag for tag, _ in tags]
    assert not {"link", "iframe"} & set(names)
    # The one script is named by its hash, so that the browser runs no other.
    assert names.count("script") == 1
    script = page[page.index("<script>") + len("<script>") : page.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        "default-src 'none'; img-src 'self' file: data:; style-src 'unsafe-inline'; script-src"
        f" 'sha256-{digest}'" in page
    )
    sources = [attributes["src"] or "" for _, attributes in tags if "src" in attributes]
    assert len(sources) == len(figures_of(fake.plan))
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    links = [attributes["href"] or "" for _, attributes in tags if "href" in attributes]
    assert all(link.startswith(("#", "../")) for link in links)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert "url(" not in page
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")
    assert all(attributes["alt"] for tag, attributes in tags if tag == "img")


def test_each_figure_is_in_one_section(page, fake):
    """One that stands in a section of its own is not among the others too."""
    for caption in figures_of(fake.plan).values():
        assert page.count(f"<figcaption>{escape(caption)}") == 1
    overview = page.partition('<section id="overview">')[2].partition("</section>")[0]
    assert escape(figures_of(fake.plan)["training"]) in overview


def test_what_to_paste_names_the_label_that_the_table_has(page, fake):
    pasted = page.partition("refers to the first of them")[0].rpartition("<code>")[2]
    label = pasted.partition("{")[2].partition("}")[0]
    assert f"\\label{{{label}}}" in (fake.study_dir / "tables" / "table1.tex").read_text()


def test_figures_of_many_bytes_stand_beside_the_page(fake, monkeypatch):
    folder = fake.study_dir / "figures"
    names = list(figures_of(fake.plan))
    sizes = [(folder / f"{name}.svg").stat().st_size for name in names]
    monkeypatch.setattr(make, "_EMBEDDED_BYTES", 1.34 * sizes[0])
    sources = make._figure_sources(folder, names)
    assert sources[names[0]].startswith("data:image/svg+xml;base64,")
    beside = [name for name in names if sources[name] == f"../figures/{name}.svg"]
    assert beside == names[1:]


def test_a_long_table_is_cut_and_says_so(templates):
    columns = [Column[int]("number", str, "number")]
    section = Section("long", "Long", lambda _: [Grid("Long", columns, range(1234))])
    text = html_of(section, Material(SimpleNamespace(plan=None), study_dir=templates))  # type: ignore[arg-type]
    assert text.count("<tr>") == 1 + MOST_ROWS
    assert f"The first {MOST_ROWS} of 1,234 lines; the study&#39;s files have all." in text


def test_the_protocol_says_how_the_text_was_read():
    source = {
        "n_empty_documents": 3,
        "other_files": {".md": 1},
        "read_back": "'a <b>' comes back as 'a<b>'",
        "n_documents_with_end": 1200,
    }
    manifest = {
        "protocol": {"name": "corrected", "versions": {}},
        "data": [
            {"id": "mine-1", "meta": {"source": source}},
            {"id": "mine-2", "meta": {"source": {}}},
            {"id": "mine-3", "meta": None},
        ],
        "git_revision": None,
        "cells": [],
        "packages": {},
    }
    text = html_of(PROTOCOL, SimpleNamespace(manifest=manifest))
    terms = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", text, re.DOTALL)
    said = {html.unescape(term): html.unescape(value) for term, value in terms}
    assert {term: value for term, value in said.items() if "mine" in term} == {
        "left out of mine-1": "documents without text: 3, files .md: 1",
        "text of mine-1 that its tokenizer changes": "'a <b>' comes back as 'a<b>'",
        "documents of mine-1 with <|endoftext|> as text": "1,200",
    }


def test_links_point_to_files(page, fake):
    for tag, attributes in Page(page).tags:
        if tag == "a" and (attributes["href"] or "").startswith("../"):
            assert (fake.study_dir / "report" / str(attributes["href"])).is_file()


def test_title_is_escaped(page):
    assert "<h1>Drawn numbers, 100 % fake &amp; &lt;b&gt;harmless&lt;/b&gt;</h1>" in page


def test_diverged_runs_are_listed_with_their_reason(page, fake):
    section = page[page.index('id="runs"') : page.index('id="protocol"')]
    diverged = [cell for cell in fake.plan.cells.values() if cell.optimizer.key == "sgd_f600"]
    assert len(diverged) == 6
    for cell in diverged:
        line = (
            f"diverged</span> <code>{cell.id}</code>: loss or gradient not finite in step 60 of 100"
        )
        assert line in section
    assert "94 runs:" in page
    assert "86 completed, 8 diverged" in page


def test_scores_and_verdict_by_recount(study):
    results, tests = study.results, compare(study)
    assert tests is not None
    cards = {card.table.name: card for card in scorecards(study)}
    rows = tests[(tests["table"] == "table1") & tests["significant"]]
    for score in cards["table1"].scores:
        for key in ("adamw", "coupled_adam"):
            assert (
                score.wins[key]
                == ((rows["metric"] == score.metric.name) & (rows["optimizer"] == key)).sum()
            )
        assert sum(score.wins.values()) + score.undecided + score.untestable == 9
        assert score.untestable == 0
    for score in cards["table7"].scores:  # one seed of one optimizer is missing in both blocks
        assert (score.untestable, score.undecided, sum(score.wins.values())) == (2, 0, 0)
    found = {verdict.table.name: verdict for verdict in verdicts(study)}
    assert list(found) == ["table1", "table2"]
    # The drawn embeddings are many standard deviations apart.
    assert (found["table1"].word, found["table1"].holds, found["table1"].total) == (
        "Reproduced",
        27,
        27,
    )
    losses = results[
        (results["metric"] == "loss") & results["optimizer"].isin(["adamw", "coupled_adam"])
    ]
    means = losses.pivot_table("value", ["n_tokens", "n_params"], "optimizer", aggfunc="mean")
    assert len(found["table1"].groups) == 9
    assert (found["table1"].seeds, found["table2"].seeds) == ((3, 3), (1, 1))
    assert found["table2"].word == "Consistent with the paper (not tested)"
    assert found["table1"].loss is not None
    assert (
        found["table1"].loss.wins["coupled_adam"] <= (means["coupled_adam"] < means["adamw"]).sum()
    )


def judge(study: StudyResults, tests: pd.DataFrame) -> dict[str, Verdict]:
    """Return the verdicts of a study of which these are the rows of tests.csv."""
    comparisons: dict[Any, list[Comparison]] = {}
    bold: dict[Any, str | None] = {}
    for row in records(tests):
        place = tuple(row[name] for name in GROUP_COLUMNS), row["metric"]
        bold[place] = row["optimizer"] if row["bold"] else None
        found = Comparison(row["optimizer"], row["reference"], Outcome.UNTESTED, row=row)
        comparisons.setdefault(place, []).append(found)
    changed = replace(study, decided=Decided(comparisons, bold))
    return {verdict.table.name: verdict for verdict in verdicts(changed)}


def adam_wins_loss(tests: pd.DataFrame, n_tokens: int) -> pd.DataFrame:
    """Make Adam's loss bold in the smallest model at some tokens."""
    at = (
        (tests["metric"] == "loss") & (tests["n_tokens"] == n_tokens) & (tests["table"] == "table1")
    )
    at &= tests["n_params"] == tests["n_params"].min()
    assert at.sum() == 1
    changed = tests.copy()
    changed.loc[at, ["optimizer", "reference", "bold"]] = ["adamw", "coupled_adam", True]
    return changed


def test_verdict_words(study):
    tests = compare(study)
    assert tests is not None
    claimed = tests["metric"].isin(["isotropy", "mean_norm_ratio", "r_bar"])

    def word(of: pd.DataFrame, table: str = "table1") -> str:
        return judge(study, of)[table].word

    one = tests.assign(bold=tests["bold"] & ~(claimed & (tests.index == tests.index[claimed][0])))
    assert (word(tests), word(one)) == ("Reproduced", "Partly reproduced")
    none = tests.assign(bold=tests["bold"] & ~claimed)
    assert word(none) == "Not reproduced"
    # Single runs are never more than consistent.
    assert word(none, "table2") == "Not consistent with the paper (not tested)"
    single = claimed & (tests["table"] == "table2")
    some = tests.assign(bold=tests["bold"] & ~(single & (tests.index == tests.index[single][0])))
    assert word(some, "table2") == "Partly consistent with the paper (not tested)"


@pytest.mark.parametrize(
    ("name", "table", "reach"),
    [
        ("workflow/config/paper_small", "table1", "paper"),
        ("workflow/config/paper_large", "table2", "paper"),
        ("research/english/english", "table1", "small"),
        ("research/regime/regime_batch_98k", "batch_98k", "head alone"),
        ("workflow/config/demo", "table1", "generated"),
    ],
)
def test_a_verdict_s_word_knows_how_far_its_study_is_from_the_paper(name, table, reach):
    study = load_study(ROOT / f"{name}.yaml")
    plan = Planned(study, "data-0123456789").plan()  # their texts are not needed
    assert reach_of(layout_of(plan).groups[table]) == reach
    assert len(WORDS[reach]) == len(UNTESTED[reach]) == len(TONES)


def test_the_verdict_looks_at_the_loss_that_the_claim_names(study):
    tests = compare(study)
    assert tests is not None
    few, _, most = sorted(tests[tests["table"] == "table1"]["n_tokens"].unique())
    verdict = judge(study, tests)["table1"]
    assert (verdict.loss_kept, verdict.n_longest) == (3, 3)
    # Worse at few tokens is what the paper finds too; worse at the most tokens is not.
    assert judge(study, adam_wins_loss(tests, few))["table1"].word == "Reproduced"
    worse = judge(study, adam_wins_loss(tests, most))["table1"]
    assert (worse.word, worse.loss_kept) == ("Partly reproduced", 2)
    # A loss that could not be compared is not kept.
    at = (tests["metric"] == "loss") & (tests["n_tokens"] == most) & (tests["table"] == "table1")
    missing = tests.assign(p_value=tests["p_value"].mask(at), bold=tests["bold"] & ~at)
    assert (judge(study, missing)["table1"].word, judge(study, missing)["table1"].loss_kept) == (
        "Partly reproduced",
        0,
    )


@pytest.mark.parametrize("wrong", [None, {"weight_decay": 0.1}, {"mu_centering": True}])
def test_optimizers_with_learning_rates_of_their_own_are_judged(
    wrong,
    tiny_study,
    results_of,
):
    settings = tiny_study()
    adam = {"name": "adamw", "lr_factor": 9} | (
        wrong or {}
    )  # with more than another rate it is not the paper's Adam
    settings["grid"][0]["optimizers"] = [adam, {"name": "coupled_adam", "lr_factor": 3}]
    drawn = results_of(
        make_plan(parse_study(settings)),
        lambda cell, metric: (
            (
                (cell.optimizer.name == "coupled_adam") == metric.higher_is_better
                or metric.name == "loss"
            )
            + cell.seed / 100
        ),
    )
    found = judge(drawn, compare(drawn))
    if wrong:
        assert not found
        return
    verdict = found["table1"]
    assert (verdict.adam, verdict.coupled_adam) == ("adamw_f9", "coupled_adam_f3")
    assert (verdict.word, verdict.holds, verdict.total) == (
        "Mechanism seen",
        3,
        3,
    )  # in a generated language
    assert verdict.loss is not None
    assert verdict.loss.wins == {"adamw_f9": 0, "coupled_adam_f3": 0}


def test_the_page_says_how_strong_its_evidence_is(page):
    section = " ".join(page[page.index('id="verdict"') : page.index('id="tables"')].split())
    assert (
        "Evidence: 9 blocks of 3 sizes and 3 numbers of tokens, 3 seeds each, significant by the"
        " one-sided Student&#39;s t-test of the unrounded values, pooled variance: what is bold."
        in section
    )
    assert (
        "2 blocks of 2 sizes and 2 numbers of tokens, 1 seed each, no test: the better value counts"
        in section
    )
    assert (
        '<article class="verdict good">' in section and '<article class="verdict open">' in section
    )


def test_sections_stand_in_order(page):
    order = (
        "verdict",
        "tables",
        "overview",
        "figures",
        "statistics",
        "cost",
        "runs",
        "protocol",
        "cite",
        "reproduce",
    )
    places = [page.index(f'<section id="{name}"') for name in order]
    assert places == sorted(places)
    assert page.index('id="table-table7"') < page.index('id="overview"')
    # Behind what every reader wants, a reader opens the rest; the list of sections has all.
    front = page[: page.index('<details class="folded">')]
    assert [name for name in order if f'<section id="{name}"' in front] == list(order[:3])
    assert front.count("<img ") == 1
    assert all(f'href="#{name}"' in front for name in order)


def test_the_study_of_the_page_is_in_it(fake, fake_in_parts, page, tmp_path):
    for plan in (fake.plan, fake_in_parts.plan):
        for name, text in study_files(plan).items():
            assert "paths:" not in text
            (tmp_path / name).write_text(text)
        again = make_plan(
            parse_any_study(yaml.safe_load((tmp_path / f"{plan.name}.yaml").read_text())),
            [tmp_path],
        )
        assert list(again.cells) == list(plan.cells) and again.title == plan.title
    assert html.escape(study_files(fake.plan)["fake.yaml"], quote=False) in page.replace(
        "&#39;", "'"
    ).replace("&#34;", '"')
    assert "snakemake --cores all --configfile fake.yaml" in page


def test_the_last_section_tells_who_has_only_the_folder_how_to_check_it(page, fake):
    section = " ".join(page[page.index('id="reproduce"') :].split())
    assert "Runs: 94 in all, 86 completed, 8 diverged. 8 runs failed: see" in section
    assert (
        "No plan was stated before the runs: every test of this report is exploratory." in section
    )
    completed = next(
        cell["cell"] for cell in fake.material.manifest["cells"] if cell["status"] == "completed"
    )
    command = f"python -m coupled_adam_bench verify FOLDER/manifest.json --cells {completed}"
    assert command in section


def test_manifest(fake):
    manifest = json.loads((fake.study_dir / "manifest.json").read_text())
    assert manifest["study"] == "fake"
    assert [study["study"] for study in manifest["studies"]] == ["fake"]
    assert manifest["protocol"]["versions"]["statistics"] == versions.STATISTICS
    assert manifest["packages"]["numpy"] == version("numpy")
    assert "ruff" not in manifest["packages"]
    n_figures = len(figures_of(fake.plan))
    n_statistics = len(statistics_of(fake.plan))
    n_tables = 3 * len(TABLE_ENDINGS) + len(SETUP_TABLES)
    # The other two are the results and the page.
    assert len(manifest["sha256"]) == 2 + n_statistics + n_tables + 3 * n_figures
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((fake.study_dir / name).read_bytes()).hexdigest() == digest
    assert [cell["cell"] for cell in manifest["cells"]] == list(fake.plan.cells)
    assert manifest["cells"][0]["train"]["seconds"] == 12.5
    assert manifest["data"] == [{"id": data_id, "meta": None} for data_id in fake.plan.data_ids]
    assert manifest["git_revision"] is None or re.fullmatch(
        r"[0-9a-f]{40}(-dirty)?", manifest["git_revision"]
    )


def test_runs_that_are_not_there_are_said_to_be_missing(tiny_plan, tmp_path, templates, draw_only):
    study_dir = tmp_path / "tiny"
    draw_only()
    report(
        tiny_plan, Places(templates, study_dir, tmp_path / "runs"), partial=True, endings=["svg"]
    )
    text = (study_dir / "report" / "index.html").read_text()
    Page(text)
    assert text.count("not trained</span>") == 6
    assert "Not judged: nothing could be compared" in text
    assert "generated language" in text
    broken = tmp_path / "runs" / next(iter(tiny_plan.cells)) / "run.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{}")
    with pytest.raises(ValueError, match=r"run\.json: its contents do not match"):
        manifest_of(tiny_plan, study_dir, tmp_path)


def test_what_the_study_takes_is_in_the_page(page):
    section = page[page.index('id="cost"') : page.index('id="runs"')]
    assert "an estimate for" in section or "speeds of ended runs" in section
    for text in ("gpt2-125m", "took each", "disk", "FLOPs"):
        assert text in section
