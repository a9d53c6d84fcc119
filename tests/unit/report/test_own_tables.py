"""Tables that a study declares itself, and studies whose rows only model, data or recipe tell
apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from coupled_adam_bench.study.catalogue.tables import Table
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_any_study, parse_study

SHAPE = {"n_head": 2, "n_layer": 1, "learning_rate": 0.01}
MINE = {
    "title": "Mine & yours",
    "comparison": "each_other",
    "columns": ["kappa", "loss", "isotropy"],
}


@pytest.fixture
def build(
    tmp_path: Path, run_all_stages: Callable[..., Path], draw_only: Callable[..., None]
) -> Callable[..., Path]:
    """Draw numbers for a plan, run all stages from the evaluations to the report with the figures
    that are named, and return the study's folder."""

    def build(plan: Plan, *drawn: str) -> Path:
        draw_only(*drawn)
        return run_all_stages(plan, tmp_path)

    return build


def text_of(study_dir: Path, name: str) -> str:
    return (study_dir / name).read_text(encoding="utf-8")


def test_a_table_of_three_columns_needs_no_code(build, tiny_study):
    settings = tiny_study(tables={"mine": MINE})
    optimizers = ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 100}]
    settings["grid"].append(settings["grid"][0] | {"table": "mine", "optimizers": optimizers})
    study_dir = build(make_plan(parse_study(settings)))
    tests = pd.read_csv(study_dir / "tests.csv")
    own = tests[tests["table"] == "mine"]
    assert list(own["metric"]) == [
        name for name in MINE["columns"] for _ in range(2)
    ]  # the best against two others
    assert set(own["rule"]) == {"t-test"}
    latex, page = text_of(study_dir, "tables/mine.tex"), text_of(study_dir, "report/index.html")
    places = [latex.index(symbol) for symbol in (r"$\kappa$", r"$\mathcal{L}$", r"$\mathrm{Iso}$")]
    assert places == sorted(places)
    assert r"\rho" not in latex
    assert r"\cmidrule" not in latex
    # Tables of one study can be told apart by their captions; that of the paper's has its number.
    assert r"\caption{Mine \& yours. Embedding optimizers at " in latex
    assert r"\caption{Adam and Coupled Adam at " in text_of(study_dir, "tables/table1.tex")
    assert "Bold: significantly better than every other value of its column and block" in latex
    assert page.count("<h3>Mine &amp; yours</h3>") == 3  # the table, the rare tokens and the seeds
    assert "At the sizes of" not in page
    assert text_of(study_dir, "tables/mine.html").count('<th scope="col" class="number"') == 3
    # A table without the columns of the paper's claim is not judged.
    assert page.count('<article class="verdict') == 1
    assert (study_dir / "tables" / "table1.tex").is_file()


def test_another_choice_of_columns_for_a_table_of_the_paper(build, tiny_study):
    study_dir = build(
        make_plan(
            parse_study(tiny_study(tables={"table1": {"columns": ["isotropy"], "title": "One"}}))
        )
    )
    page = text_of(study_dir, "report/index.html")
    assert list(pd.read_csv(study_dir / "tests.csv")["metric"]) == ["isotropy"]
    assert "<h3>One</h3>" in page
    assert text_of(study_dir, "tables/table1.md").startswith("Adam and Coupled Adam at ")
    assert "is not\njudged here" in page


def test_what_a_table_fits_into_is_a_setting(tiny_study):
    def declared(**settings: Any) -> Table:
        return parse_study(tiny_study(tables={"table1": settings})).tables_of_blocks["table1"]

    assert declared().width == "text"
    for width in ("column", "text", "5.5in", "0.25in", ".5in", "160mm", "20cm", "345pt"):
        assert declared(width=width).width == width
    for width in (
        "",
        "0in",
        "0.0cm",
        "-3in",
        "5.5",
        "5.5em",
        r"\linewidth",
        "5.5in}",
        "3 in",
        "wide",
    ):
        with pytest.raises(ValueError, match=r"tables\.table1\.width"):
            declared(width=width)


def rows_of(results: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(results[list(columns)].itertuples(index=False, name=None)))


def test_two_models_of_one_size(build, tiny_study):
    # Heads change no number of parameters.
    models = [
        SHAPE | {"name": "few", "d_model": 8},
        SHAPE | {"name": "many", "d_model": 8, "n_head": 4},
    ]
    settings = tiny_study(models=models)
    settings["grid"][0]["models"] = ["few", "many"]
    plan = make_plan(parse_study(settings))
    study_dir = build(plan, "loss_accuracy", "embeddings", "training")
    results, tests = (pd.read_csv(study_dir / name) for name in ("results.csv", "tests.csv"))
    assert len(
        results.groupby(["n_params", "n_tokens", "optimizer", "seed", "task", "metric"])
    ) * 2 == len(results)
    assert rows_of(results, "cell", "model") == [
        (cell.id, cell.model.name) for cell in plan.cells.values()
    ]
    assert rows_of(tests, "table", "model") == [("table1", "few"), ("table1", "many")]
    loss = results[(results["metric"] == "loss") & (results["optimizer"] == "adamw")]
    means = tests[tests["metric"] == "loss"].set_index("model")
    for model, cells in loss.groupby("model"):
        row = means.loc[model]
        mean = row["mean"] if row["optimizer"] == "adamw" else row["mean_reference"]
        assert mean == pytest.approx(cells["value"].mean())
    for name in ("tables/table1.tex", "tables/table1.html", "report/index.html"):
        assert "1.43K (few)" in text_of(study_dir, name)
        assert "1.43K (many)" in text_of(study_dir, name)
    for figure in ("loss_accuracy", "embeddings"):
        drawn = text_of(study_dir, f"figures/{figure}.svg")
        assert "N = 1.43K (few)" in drawn
        assert "N = 1.43K (many)" in drawn
    # One line for each run of the model that is drawn first.
    assert "N = 1.43K (few), D = 60 steps" in text_of(study_dir, "figures/training.svg")


def test_two_corpora_and_two_recipes(build, tiny_study, tmp_path):
    def write(name: str, **changes: Any) -> None:
        (tmp_path / f"{name}.yaml").write_text(
            yaml.safe_dump(tiny_study(**({"study": name} | changes)))
        )

    data = tiny_study()["data"]
    other = data | {"name": "other", "source": data["source"] | {"seed": 5}}
    training = tiny_study()["training"] | {"warmup_steps": 6}
    write("a")
    write("b", data=other)
    write("c", training=training)
    plan = make_plan(parse_any_study({"study": "whole", "studies": ["a", "b", "c"]}), [tmp_path])
    study_dir = build(plan)
    results, tests = (pd.read_csv(study_dir / name) for name in ("results.csv", "tests.csv"))
    assert len(plan.cells) == 3 * 6
    assert rows_of(results, "cell", "data") == [
        (cell.id, cell.data_id) for cell in plan.cells.values()
    ]
    assert rows_of(tests, "model", "data", "recipe") == [
        ("nano", plan.data_ids[0], "a"),
        ("nano", plan.data_ids[1], "a"),
        ("nano", plan.data_ids[0], "c"),
    ]
    page = text_of(study_dir, "tables/table1.html")
    for label in ("(tiny, a)", "(other, a)", "(tiny, c)"):
        assert page.count(f"1.43K {label}</th>") == 1
    assert page.count("<tbody>") == 1  # all are of as many tokens
