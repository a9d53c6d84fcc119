"""The plug-in that draws the geometry against the sum of learning rates."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context

from coupled_adam_bench.report.figures.style import RC
from coupled_adam_bench.report.plug_ins import own_figures
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study


def plan_of(tiny_study: Any, per_decade: int) -> Plan:
    settings = tiny_study()
    settings["execution"]["geometry_per_decade"] = per_decade
    path = "research.plugins.geometry_by_rates.GeometryByRates"
    settings["statistics"] = {"figures": [{"name": "geometry_by_rates", "path": path}]}
    return make_plan(parse_study(settings))


def test_lines_are_means_over_seeds_against_the_sum_of_rates(tiny_study, tmp_path):
    plan = plan_of(tiny_study, 4)
    for cell in plan.cells.values():
        rows: list[dict[str, float]] = [{"step": 5, "loss": 4.0}]  # not measured
        for step in (1, 10):
            isotropy = 1 - cell.seed / 10 / step
            geometry = {"isotropy": isotropy, "mean_norm_ratio": 0.5, "rate_sum": 0.1 * step}
            rows.append({"step": step, "loss": 4.0} | geometry)
        folder = tmp_path / cell.id
        folder.mkdir()
        (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = SimpleNamespace(layout=layout_of(plan))
    material: Any = SimpleNamespace(plan=plan, runs=tmp_path, study=study)
    with rc_context(RC):
        isotropy, ratio = own_figures(plan)["geometry_by_rates"].draw(material).axes
    seeds = {cell.seed for cell in plan.cells.values()}
    mean = sum(seeds) / len(seeds)
    assert len(isotropy.lines) == len({cell.optimizer.key for cell in plan.cells.values()})
    for ax, values in ((isotropy, [1 - mean / 10, 1 - mean / 100]), (ratio, [0.5, 0.5])):
        for line in ax.lines:
            np.testing.assert_allclose(line.get_xdata(), [0.1, 1.0])
            np.testing.assert_allclose(line.get_ydata(), values)
        assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "sum of learning rates")


def test_a_study_without_geometry_is_refused(tiny_study):
    with pytest.raises(ValueError, match=r"figures\.0: .*give execution\.geometry_per_decade"):
        own_figures(plan_of(tiny_study, 0))
