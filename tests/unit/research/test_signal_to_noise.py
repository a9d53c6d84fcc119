"""The plug-ins of the signal to noise of the second moment: by hand, along a run, and drawn."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import rc_context
from planned import only
from research.plugins.signal_to_noise import signal_to_noise

from coupled_adam_bench.report.figures.style import RC
from coupled_adam_bench.report.plug_ins import own_figures
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train

STEPS = 12


def test_the_ratio_by_hand():
    moment_VD = torch.tensor([[1.0, 3.0], [5.0, 3.0], [9.0, 6.0]], dtype=torch.float64)
    # Columns: 5^2 / (32 / 3) and 4^2 / 2; rows: 2^2 / 1, 4^2 / 1 and 7.5^2 / 2.25.
    assert signal_to_noise(moment_VD, 0) == pytest.approx((25 / (32 / 3) + 16 / 2) / 2)
    assert signal_to_noise(moment_VD, 1) == pytest.approx((4 + 16 + 25) / 3)
    moment_VD[0] = 0.0  # a token without a gradient so far has no variance along the width
    assert signal_to_noise(moment_VD, 1) == pytest.approx((16 + 25) / 2)
    assert math.isnan(signal_to_noise(torch.zeros(3, 2), 0))


def plan_of(tiny_study: Any, optimizers: list[Any], **arguments: Any) -> Plan:
    settings = tiny_study()
    settings["grid"][0] |= {
        "table": None,
        "tokens": [{"steps": STEPS}],
        "optimizers": optimizers,
        "seeds": [1],
    }
    path = "research.plugins.signal_to_noise"
    settings["execution"] |= {
        "eval_every": None,
        "geometry_per_decade": 2,
        "measurements": [{"name": "snr", "path": f"{path}.SignalToNoise"}],
    }
    entry = {"name": "noise", "path": f"{path}.Figure", "arguments": arguments}
    settings["statistics"] = {"figures": [entry]}
    return make_plan(parse_study(settings))


def test_along_a_run_and_drawn(tiny_study, tiny_data, tmp_path):
    plan = plan_of(tiny_study, ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 100}])
    found = {}
    for cell in plan.cells.values():
        execution, run_dir = only(plan).study.execution, tmp_path / cell.id
        group = WorkerGroup(torch.device("cpu"))
        assert train(cell, execution, tiny_data, run_dir, group) == 0
        lines = [json.loads(line) for line in (run_dir / "history.jsonl").read_text().splitlines()]
        found[cell.optimizer.key] = {
            row["step"]: row for row in lines if "snr.embedding_tokens" in row
        }
    # Coupled Adam keeps a second moment for each column, and SGD none.
    assert found["coupled_adam"] == {}
    assert found["sgd_f100"] == {}
    assert list(found["adamw"]) == [1, 3, 10, STEPS]
    last = found["adamw"][STEPS]
    assert last["snr.embedding_tokens"] > 0 and last["snr.embedding_width"] > 0
    assert "snr.head_tokens" not in last  # the head is the embedding

    study = SimpleNamespace(layout=layout_of(plan))
    material: Any = SimpleNamespace(plan=plan, runs=tmp_path, study=study)
    with rc_context(RC):
        tokens, width = own_figures(plan)["noise"].draw(material).axes
    for ax, axis in ((tokens, "tokens"), (width, "width")):
        (line,) = ax.lines
        values = [row[f"snr.embedding_{axis}"] for row in found["adamw"].values()]
        np.testing.assert_array_equal(line.get_xdata(), [1, 3, 10, STEPS])
        np.testing.assert_array_equal(line.get_ydata(), values)
        assert ax.get_ylabel() == f"signal to noise along {axis}"


def test_another_matrix_is_refused(tiny_study):
    with pytest.raises(ValueError, match=r"matrix: must be embedding or head, not 'core'"):
        own_figures(plan_of(tiny_study, ["adamw"], matrix="core"))
