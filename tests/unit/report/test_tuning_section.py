"""The section and the figure of a study that tunes: what was chosen, and what to be wary of."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from sections import html_of, tables_of

from coupled_adam_bench.report.figures import figures_of
from coupled_adam_bench.report.figures.sizes import tuning
from coupled_adam_bench.report.render import markdown, render_html, render_latex
from coupled_adam_bench.report.setup_tables import setup_tables
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.results.choices import edge
from coupled_adam_bench.statistics.candidates import STATISTIC
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.paths import TUNING
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.tuning import choice_file, chosen_values
from coupled_adam_bench.study.settings import parse_study

NAN = math.nan
Make = Callable[..., Plan]


def draw(plan: Plan, folder: Path) -> Figure:
    return tuning(material_of(plan, folder))


def material_of(plan: Plan, folder: Path) -> Material:
    return Material(SimpleNamespace(plan=plan), folder / "runs", folder)  # type: ignore[arg-type]


@pytest.fixture
def plan_of(tiny_study: Callable[..., dict[str, Any]]) -> Make:
    def plan_of(label: str = "Lion", **tune: Any) -> Plan:
        lion = {"name": "custom", "path": "torch.optim.Adagrad", "key": "lion", "label": label}
        study = tiny_study()
        study["grid"][0] |= {"table": "table7", "optimizers": ["adamw", lion]}
        study["grid"][0]["tokens"] = [{"steps": 30, "label": "30_%&"}, {"steps": 60, "label": "60"}]
        grids = {key: {"lr_factor": [0.5, 1, 2]} for key in ("adamw", "lion")}
        study["grid"][0]["tune"] = {"seeds": [11, 12], "grids": grids} | tune
        return make_plan(parse_study(study))

    return plan_of


def choose(
    plan: Plan, name: str, losses: Sequence[Sequence[float]], chosen: int, folder: Path
) -> None:
    """Write a choice as the command ``choose`` does."""
    tuning = plan.tunings[name]
    candidates = []
    for candidate, of_seeds in zip(tuning.candidates, losses, strict=True):
        cells = [
            {
                "cell": cell.id,
                "seed": cell.seed,
                "val_loss": loss,
                "reason": "diverged" if math.isnan(loss) else None,
            }
            for cell, loss in zip(candidate.cells, of_seeds, strict=True)
        ]
        mean = math.fsum(of_seeds) / len(of_seeds)
        candidates.append({"settings": candidate.settings, "mean_val_loss": mean, "cells": cells})
    record = {"tuning": name, "candidates": candidates, "chosen": chosen}
    write_sealed(choice_file(folder / TUNING, name), record)


@pytest.mark.parametrize(
    ("value", "values", "end"),
    [
        (1, [1, 2, 3], "least"),
        (3.0, [1.0, 3.0], "largest"),
        (2, [1, 2, 3], None),
        (2, [2], None),  # not varied
        (True, [True, False], None),
        ("a", ["a", "b"], None),
        ((0.9, 0.99), [(0.9, 0.99), (0.9, 0.95)], None),
        (0.1, [None, 0.1, 0.2], "least"),
    ],
)
def test_the_edge_of_a_grid(value, values, end):
    assert edge(value, values) == end


def test_a_table_warns_of_settings_at_the_edge(plan_of, results_of, tmp_path, templates):
    plan = plan_of()
    for number, name in enumerate(plan.tunings):
        choose(plan, name, [(5, 5), (3, 3), (4, 4)], min(number, 2), tmp_path)
    chosen = plan.with_choices(chosen_values(plan.tunings.values(), tmp_path / TUNING))
    study = results_of(chosen, lambda cell, _: cell.seed)
    (table,) = build_tables(decide(study))
    (note,) = (note for note in table.notes if "edge" in note)
    assert (
        note
        == "Warning: chosen at the edge of what was tried, beyond which better settings may lie:"
        " Adam (tuned) at D = 30_%&, N = 1.43K (lr_factor 0.5, the least), Adam (tuned) at D ="
        " 60, N = 1.43K (lr_factor 2, the largest), Lion (tuned) at D = 60, N = 1.43K (lr_factor"
        " 2, the largest)."
    )
    for text in (render_latex(table, templates), render_html(table, templates), markdown(table)):
        assert "Warning: chosen at the edge" in text
    study = results_of(plan, lambda cell, _: cell.seed)  # before the choice
    (table,) = build_tables(decide(study))
    assert not any("edge" in note for note in table.notes)


def test_what_the_section_says(plan_of, tmp_path):
    plan = plan_of()
    inner, edge, diverged, _ = plan.tunings
    choose(plan, inner, [(5, 5), (3.25, 3.35), (4, 4)], 1, tmp_path)
    choose(plan, edge, [(5, 5), (4, 4), (3, 3)], 2, tmp_path)
    choose(plan, diverged, [(5, 5), (3, 3), (1, NAN)], 1, tmp_path)
    (rows,) = tables_of(STATISTIC, material_of(plan, tmp_path))
    assert [row[:3] for row in rows] == [
        ["N = 1.43K, D = 30_%&", "Adam (tuned)", "3 × 2 × 1.92K = 11.5K"],
        ["N = 1.43K, D = 30_%&", "Lion (tuned)", "3 × 2 × 1.92K = 11.5K"],
        ["N = 1.43K, D = 60", "Adam (tuned)", "3 × 2 × 3.84K = 23K"],
        ["N = 1.43K, D = 60", "Lion (tuned)", "3 × 2 × 3.84K = 23K"],
    ]
    warning = '<span class="status middle">Warning:</span> '
    assert [(row[3], row[4], row[6]) for row in rows] == [
        ("lr_factor 1", "3.3000 (707)", ""),
        (
            "lr_factor 2",
            "3.0000 (0)",
            f"{warning}lr_factor 2 is the largest that was tried: larger ones may be better",
        ),
        ("lr_factor 1", "3.0000 (0)", f"{warning}1 of 3 candidates diverged in at least one seed"),
        ("-", "-", f"{warning}nothing is chosen yet: its log file says why"),
    ]
    assert "have the same budget" in html_of(STATISTIC, material_of(plan, tmp_path))
    # Of 64 tokens, guessing has log 64 = 4.1589, which stands for 5 and for what has diverged.
    assert [row[5] for row in rows] == ["0.5196", "0.7196", "0.6667", "-"]


def test_a_choice_within_the_noise_of_its_trial_says_so(plan_of, tmp_path):
    plan = plan_of()
    inner, clear, *_ = plan.tunings
    choose(
        plan, inner, [(5.0, 5.1), (3.0, 3.1), (3.02, 3.11)], 1, tmp_path
    )  # the seeds spread by 0.061
    choose(plan, clear, [(5.0, 5.1), (3.0, 3.1), (3.3, 3.4)], 1, tmp_path)
    rows, *_ = tables_of(STATISTIC, material_of(plan, tmp_path))
    assert rows[0][6].endswith(
        "chosen by 0.0150, within the noise of the trial (0.1369), before lr_factor 2"
    )
    assert rows[1][6] == ""


def test_the_noise_of_a_trial_with_one_seed_is_that_of_the_trained_cells(plan_of, tmp_path):
    plan = plan_of(seeds=[11])
    study = SimpleNamespace(plan=plan, value=lambda cell, _: 0.01 * cell.seed)
    material = Material(study, tmp_path / "runs", tmp_path)  # type: ignore[arg-type]
    inner, clear, *_ = plan.tunings
    choose(plan, inner, [(5.0,), (3.0,), (3.0015,)], 1, tmp_path)
    choose(plan, clear, [(5.0,), (3.0,), (3.1,)], 1, tmp_path)
    rows, *_ = tables_of(STATISTIC, material)
    spread = statistics.stdev(0.01 * seed for seed in plan.blocks[0].block.seeds)
    assert rows[0][6].endswith(
        f"within the noise of the trial ({2 * math.sqrt(2) * spread:.4f}), before lr_factor 2"
    )
    assert rows[1][6] == ""


def test_the_sensitivity_takes_the_best_of_what_else_is_tuned_at_each_rate(plan_of, tmp_path):
    plan = plan_of(
        grids={"adamw": {"lr_factor": [0.5, 1], "weight_decay": [0.1, 0.2]}}, equal_budgets=False
    )
    choose(plan, next(iter(plan.tunings)), [(4, 4), (3.5, 3.5), (3, 3), (3.2, 3.2)], 2, tmp_path)
    (rows,) = tables_of(STATISTIC, material_of(plan, tmp_path))
    assert rows[0][5] == "0.2500"  # 3.5 and 3: mean 3.25


def test_budgets_that_differ_are_said(plan_of, tmp_path):
    plan = plan_of(grids={"adamw": {"lr_factor": [1, 2]}}, equal_budgets=False)
    html = html_of(STATISTIC, material_of(plan, tmp_path))
    assert "<li>tiny, grid.0: Adam (tuned) 2 candidates, Lion 0 candidates</li>" in html
    assert "The budgets differ</span>, so" in html


def test_hostile_labels_are_printed_as_text(plan_of, tmp_path):
    plan = plan_of(label="A_&%<script>$x$ \N{GREEK SMALL LETTER MU}" + 20 * "long")
    for name in plan.tunings:
        choose(plan, name, [(5, 5), (3, 3.5), (4, 4)], 1, tmp_path)
    chosen = plan.with_choices(chosen_values(plan.tunings.values(), tmp_path / TUNING))
    assert len(list(chosen.cells.values())[-1].optimizer.label) > 100
    html = html_of(STATISTIC, material_of(plan, tmp_path))
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    FigureCanvasAgg(draw(plan, tmp_path)).draw()


def test_the_figure_shows_candidates_and_the_choice(plan_of, tmp_path):
    plan = plan_of()
    for name in plan.tunings:
        choose(plan, name, [(5, 5), (3.25, 3.35), (NAN, 4)], 1, tmp_path)
    figure = draw(plan, tmp_path)
    axes = figure.axes
    assert [ax.get_title() for ax in axes] == ["N = 1.43K, D = 30_%&", "N = 1.43K, D = 60"]
    for ax in axes:
        lines = [line for line in ax.lines if line.get_label() in ("Adam (tuned)", "Lion (tuned)")]
        assert [line.get_xydata().tolist() for line in lines] == 2 * [
            [[0.005, 5.0], [0.01, pytest.approx(3.3)]]
        ]
        rings = [line for line in ax.lines if line.get_markersize() == 11]
        assert [line.get_xydata().tolist() for line in rings] == 2 * [[[0.01, pytest.approx(3.3)]]]
        crosses = [line for line in ax.lines if line.get_marker() == "x"]
        assert [line.get_xdata().tolist() for line in crosses] == 2 * [[0.02]]
    FigureCanvasAgg(figure).draw()


def test_a_figure_of_nothing_and_a_candidate_that_blows_up(plan_of, tmp_path):
    plan = plan_of()
    FigureCanvasAgg(draw(plan, tmp_path)).draw()
    choose(plan, next(iter(plan.tunings)), [(3, 3), (900, 900), (NAN, NAN)], 0, tmp_path)
    figure = draw(plan, tmp_path)
    assert figure.axes[0].get_ylim()[1] == pytest.approx(1.5 * math.log(64))


@pytest.mark.parametrize(
    ("field", "peak"), [("lr_factor", "0.01"), ("learning_rate", "0.01, or tuned")]
)
def test_the_table_of_models_says_that_their_learning_rate_is_tuned(field, peak, plan_of):
    models, _ = setup_tables(plan_of(grids={key: {field: [0.5, 1]} for key in ("adamw", "lion")}))
    assert models.rows[0][models.header.index("peak learning rate")] == peak


def test_only_a_study_that_tunes_has_the_figure_and_the_section(plan_of, tiny_plan, tmp_path):
    assert "tuning" in figures_of(plan_of())
    assert "tuning" not in figures_of(tiny_plan)
    assert html_of(STATISTIC, material_of(tiny_plan, tmp_path)) == ""
    assert json.dumps(tiny_plan.to_json()).count("tune") == 0
