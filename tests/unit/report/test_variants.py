import math
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coupled_adam_bench.evaluation.embedding_geometry import VARIANTS
from coupled_adam_bench.report.page import write_report
from coupled_adam_bench.report.treatments import TREATMENTS
from coupled_adam_bench.results.collect import read_results, write_results
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import load_results
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.cells import Cell

Shown = dict[tuple[str, str, str, str], list[str]]
TOP = "embeddings_abtt"


def value_of(cell: Cell, task: str, metric: str) -> float:
    """Differ between all tasks, metrics, optimizers, sizes and numbers of tokens; seeds are 1, 2 and 3."""
    kind = 4 * (task == TOP) + len(cell.optimizer.key) + cell.n_params % 7 + cell.n_tokens % 11
    return (0.3 + 0.01 * kind + 0.02 * cell.seed) if metric == "isotropy" else 40 + kind + 3 * cell.seed**2


def treated(results: pd.DataFrame, cells: list[Cell], value: Callable[..., float] = value_of) -> pd.DataFrame:
    """Return results with rows of all treatments for some cells."""
    like = results.iloc[0].to_dict()
    rows = [
        like | {"n_params": cell.n_params, "n_tokens": cell.n_tokens, "optimizer": cell.optimizer.key,
                "seed": cell.seed, "cell": cell.id, "task": task, "metric": metric, "value": value(cell, task, metric)}
        for cell in cells for task in TREATMENTS for metric in ("isotropy", "r_bar")
    ]  # fmt: skip
    return pd.concat([results, pd.DataFrame(rows, columns=results.columns).astype(results.dtypes)], ignore_index=True)


def finished(fake: Any) -> list[Cell]:
    """Return the cells that did not diverge: others have no rows of a treatment."""
    diverged = {("sgd_f500", 2)} | {("sgd_f600", seed) for seed in (1, 2, 3)}
    return [cell for cell in fake.plan.cells.values() if (cell.optimizer.key, cell.seed) not in diverged]


def section_of(page: str) -> str:
    return page.split('<section id="variants">')[1].partition("</section>")[0]


def render(fake: Any, results: pd.DataFrame, folder: Path, templates: Path) -> str:
    """Return the section of the page of the drawn study with these results."""
    study_dir = folder / fake.plan.name
    shutil.copytree(fake.study_dir, study_dir)
    write_results(results, study_dir / "results.csv")
    study = load_results(fake.plan, study_dir / "results.csv", study_dir / "tests.csv")
    write_report(Material(study, fake.root / "runs", study_dir), templates)
    return section_of((study_dir / "report" / "index.html").read_text())


def shown(section: str) -> Shown:
    """Read the tables back: texts of the two columns by table, place, optimizer and treatment."""
    found: Shown = {}
    for chunk in section.split("<h3>")[1:]:
        for table in re.findall(r"<table>.*?</table>", chunk, flags=re.DOTALL):
            place = unescape(re.sub(r"<.*?>", "", re.findall(r"<caption>(.*?)</caption>", table)[0]))
            for body in re.findall(r"<tbody>.*?</tbody>", table, flags=re.DOTALL):
                optimizer = re.findall(r'<th scope="rowgroup" rowspan="5">(.*?)</th>', body)[0]
                for row in body.split("<tr>")[1:]:
                    (treatment,) = re.findall(r'<th scope="row">(.*?)</th>', row)
                    key = (chunk.partition("</h3>")[0].removeprefix("At the sizes of "), place, optimizer, treatment)
                    assert key not in found
                    found[key] = re.findall(r'<td class="number".*?>(.*?)</td>', row)
    return found


@pytest.fixture(scope="module")
def section(fake: Any, templates: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    results = treated(read_results(fake.study_dir / "results.csv"), finished(fake))
    return render(fake, results, tmp_path_factory.mktemp("variants"), templates)


def test_the_treatments_are_those_of_the_evaluation() -> None:
    assert list(TREATMENTS) == list(VARIANTS)


def test_values_by_hand(section: str, fake: Any) -> None:
    values = shown(section)
    cell = next(c for c in finished(fake) if (c.model.label, c.tokens_label) == ("125M", "20B"))
    size = cell.n_params % 7 + cell.n_tokens % 11
    place = ("Table 1", "D = 20B, N = 125M")
    # Adam's key has 5 letters, Coupled Adam's 12; over seeds 1, 2, 3: mean 2 (sd 1), mean of squares 14/3 (sd 4.04).
    for optimizer, letters in (("Adam", 5), ("Coupled Adam", 12)):
        for treatment, kind in (("minus the mean", 0), ("all-but-the-top", 4)):
            iso, r_bar = values[(*place, optimizer, treatment)]
            assert iso == f"{0.34 + 0.01 * (kind + letters + size):.2f} (2)"
            assert r_bar == f"{54 + kind + letters + size} (12)"


def test_every_row_of_every_group(section: str, fake: Any) -> None:
    results, values = read_results(fake.study_dir / "results.csv"), shown(section)
    names = {"table1": "Table 1", "table2": "Table 2", "table7": "Table 7"}
    trained = {"isotropy": "embeddings", "r_bar": "word_similarity"}
    own = results.set_index(["n_params", "n_tokens", "optimizer", "seed", "task", "metric"])["value"].to_dict()
    expected: Shown = {}
    for table, groups in layout_of(fake.plan).groups.items():
        for group in groups:
            for cells in group.cells.values():
                for task, treatment in ((None, "as trained"), *TREATMENTS.items()):
                    texts = []
                    for metric, digits in (("isotropy", 2), ("r_bar", 0)):
                        drawn = [
                            own[c.n_params, c.n_tokens, c.optimizer.key, c.seed, trained[metric], metric]
                            if task is None
                            else value_of(c, task, metric)
                            for c in cells
                        ]
                        if cells[0].optimizer.key in ("sgd_f500", "sgd_f600"):
                            texts.append("-")
                        else:
                            spread = f" ({np.std(drawn, ddof=1) * 10**digits:.0f})" if len(cells) > 1 else ""
                            texts.append(f"{np.mean(drawn):.{digits}f}{spread}")
                    place = f"D = {group.tokens_label}, N = {group.model_label}"
                    expected[names[table], place, cells[0].optimizer.label, treatment] = texts
    assert values == expected
    assert len(values) == 5 * (9 * 2 + 2 * 2 + 2 * 8)
    assert list(values) == list(expected)


def test_the_page_says_what_the_rows_are(section: str) -> None:
    text = re.sub(r"\s+", " ", section)
    assert "does Adam with one of them reach what Coupled Adam has as trained?" in text
    assert "not part of the paper's tables. Nothing here is tested, and nothing is bold." in text
    assert not re.search("<strong>|<b>", section)
    assert section.count('title="isotropy of the embeddings"') == 13
    assert "Where a value is missing (-)" in section
    # Aligned at the mean, as in the other tables: beside (12) a (1) is padded.
    assert re.search(r'style="--pad: 1">\d+ \(\d\)<', section)
    assert not re.search(r'style="--pad: \d+">(-|\d+ \(\d\d\))<', section)


def test_missing_values(fake: Any, templates: Path, tmp_path: Path) -> None:
    """NaN in one metric, a run without rows of a treatment: their cells are missing, the others are not."""
    first, *others = [c for c in finished(fake) if c.optimizer.key in ("adamw", "coupled_adam")]
    assert (first.optimizer.key, first.model.label, first.tokens_label) == ("adamw", "125M", "5B")
    absent = next(c for c in others if (c.model.label, c.tokens_label, c.optimizer.key) == ("355M", "5B", "adamw"))

    def value(cell: Cell, task: str, metric: str) -> float:
        undefined = cell is first and (task, metric) == (TOP, "r_bar")
        return math.nan if undefined else value_of(cell, task, metric)

    results = read_results(fake.study_dir / "results.csv")
    cells = [cell for cell in finished(fake) if cell is not absent]
    complete, values = (
        shown(render(fake, treated(results, *arguments), tmp_path / name, templates))
        for name, arguments in (("complete", (finished(fake),)), ("partial", (cells, value)))
    )
    changed = {key: texts for key, texts in values.items() if texts != complete[key]}
    small, middle = "D = 5B, N = 125M", "D = 5B, N = 355M"
    assert changed == {
        ("Table 1", small, "Adam", "all-but-the-top"): [complete["Table 1", small, "Adam", "all-but-the-top"][0], "-"],
        ("Table 7", small, "Adam", "all-but-the-top"): [complete["Table 7", small, "Adam", "all-but-the-top"][0], "-"],
    } | {("Table 1", middle, "Adam", treatment): ["-", "-"] for treatment in TREATMENTS.values()}


def test_a_study_without_these_rows_has_no_section(fake: Any, fake_theory: Any) -> None:
    for each in (fake, fake_theory):
        assert "variants" not in (each.study_dir / "report" / "index.html").read_text()
