"""Rehearsals: the miniature of a study has its tables, and a fault that is planted stops it."""

import sys
from pathlib import Path

import pytest

from coupled_adam_bench.cli import main
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import load_plan, make_plan
from coupled_adam_bench.study.settings import load_any_study, parse_study
from coupled_adam_bench.tools.rehearsal.miniature import miniature, run_miniature

ROOT = Path(__file__).parents[4]
STUDIES = ROOT / "workflow" / "config"


def shipped(name: str):
    files = (STUDIES / f"{name}.yaml", ROOT / "research" / name / f"{name}.yaml")
    (file,) = (file for file in files if file.exists())
    return make_plan(load_any_study(file), [STUDIES])


def test_the_shortest_run_of_a_miniature_has_the_decay_of_two_steps_that_wsd_needs(tiny_study):
    settings = tiny_study()
    settings["training"] |= {"schedule": "wsd", "decay_fraction": 0.2}
    (cut,) = miniature(make_plan(parse_study(settings)))["studies"]
    training = parse_study(cut["study"]).training
    assert [training.decay(steps) for steps in (2, 3, 4)] == [2, 2, 3]


@pytest.mark.parametrize("name", ["demo", "optimizers", "tuned", "paper", "paper_large"])
def test_a_miniature_has_the_same_tables_with_the_fewest_seeds(name, tmp_path):
    plan = shipped(name)
    write_sealed(tmp_path / "plan.json", miniature(plan))
    small = load_plan(tmp_path / "plan.json")

    def shape(plan, seeds_of_tables):
        return [
            [
                (cell.model.name, cell.optimizer.key, cell.seed, planned.block.table)
                for cell in planned.cells
                if cell.seed in planned.block.seeds[: seeds_of_tables.get(planned.block.table)]
            ]
            for planned in plan.blocks
        ]

    # A t-test needs two.
    assert shape(small, {}) == shape(
        plan, {"table1": 2, "table2": 1, "table7": 2, "control": 2, "scale": 2, None: 1}
    )
    assert max(cell.n_params for cell in small.cells.values()) < 3e7
    assert {cell.steps for cell in small.cells.values()} == set(
        range(2, 2 + len({c.steps for c in plan.cells.values()}))
    )


def test_the_command_rehearses_a_study_and_leaves_no_results(
    tiny_study, tmp_path, monkeypatch, capsys
):
    settings = tiny_study()
    grids = {key: {"learning_rate": [0.1, 0.01]} for key in ("adamw", "coupled_adam")}
    settings["grid"][0] |= {
        "seeds": [1, 2],
        "tune": {"seeds": [11], "tokens": {"steps": 30}, "grids": grids},
    }
    monkeypatch.chdir(tmp_path)
    write_sealed(tmp_path / "plan.json", make_plan(parse_study(settings)).to_json())
    assert main(["rehearse", "--plan", "plan.json", "--templates", str(ROOT / "templates")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    out = capsys.readouterr().out
    assert "stages ran on the CPU, from the text to the report, and nothing was found" in out


def test_the_command_fails_where_something_was_found(tiny_study, tmp_path, monkeypatch, capsys):
    def run(command):
        if command[0] == "report":
            print("error: evaluations: none is there", file=sys.stderr)
            return 2
        return 0

    monkeypatch.chdir(tmp_path)
    plan = make_plan(parse_study(tiny_study()))
    finding = run_miniature(plan, ROOT / "templates", run, lambda _name: None)
    assert str(finding) == "stage report: evaluations: none is there"
    optimizer = {
        "name": "custom",
        "path": "torch.optim.Adagrad",
        "key": "a",
        "label": "A",
        "arguments": {"no": 1},
    }
    values = tiny_study()
    values["grid"][0] |= {"table": None, "optimizers": [optimizer]}
    write_sealed(tmp_path / "plan.json", make_plan(parse_study(values)).to_json())
    assert main(["rehearse", "--plan", "plan.json", "--templates", str(ROOT / "templates")]) == 1
    assert "rehearsed tiny: stopped in stage try-code: " in capsys.readouterr().out
