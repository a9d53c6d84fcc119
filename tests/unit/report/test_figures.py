import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from coupled_adam_bench.config import parse_study
from coupled_adam_bench.plan import make_plan
from coupled_adam_bench.report.figures import FIGURES, read_history, write_figures
from coupled_adam_bench.results.collect import collect, write_results


def test_all_figures_in_both_formats_the_same_bytes_again(fake: Any, tmp_path: Path) -> None:
    write_figures(fake.plan, fake.study_dir / "results.csv", fake.root / "runs", tmp_path)
    names = sorted(f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf"))
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (fake.study_dir / "figures" / name).read_bytes()
        if name.endswith(".svg"):
            text = (tmp_path / name).read_text()
            assert ElementTree.fromstring(text).tag.endswith("svg")
            assert not re.search(r"\d{4}-\d\d-\d\dT", text)
        else:
            assert b"CreationDate" not in (tmp_path / name).read_bytes()


def test_partial_results_and_studies_without_tables_are_drawn(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    block = {"models": ["nano"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}
    studies = ({}, {"grid": [block]})
    for number, plan in enumerate(make_plan(parse_study(tiny_study(**changes))) for changes in studies):
        write_results(collect(plan, tmp_path / "runs", partial=True), tmp_path / "results.csv")
        write_figures(plan, tmp_path / "results.csv", tmp_path / "runs", tmp_path / str(number))
        assert len(list((tmp_path / str(number)).iterdir())) == 2 * len(FIGURES)


def test_labels_are_text_and_not_formulas(tiny_study: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    settings = tiny_study()
    settings["models"][0]["label"] = r"5$ <b>&_{\frac"
    settings["grid"][0]["tokens"] = [{"steps": 60, "label": "$1^ & $"}]
    # The same place in two tables: drawn once, from Table 1.
    settings["grid"].append(settings["grid"][0] | {"table": "table2", "seeds": [1]})
    plan = make_plan(parse_study(settings))
    write_results(collect(plan, tmp_path / "runs", partial=True), tmp_path / "results.csv")
    write_figures(plan, tmp_path / "results.csv", tmp_path / "runs", tmp_path / "figures")
    for name in FIGURES:
        ElementTree.parse(tmp_path / "figures" / f"{name}.svg")


def test_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [{"step": 1, "loss": 2.5, "mean_norm_ratio": 0.1}, {"step": 2, "loss": float("nan")}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    assert [row["step"] for row in read_history(path)] == [1, 2]
    assert read_history(path)[0] == rows[0]
    path.write_text(json.dumps(rows[0]) + "\n" + '{"step": 2}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl:2: not a row"):
        read_history(path)
