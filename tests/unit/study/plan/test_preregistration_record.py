"""What the record of a stated plan notices, so that the report says whether it was stated in
advance and kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.records.stated import stated_measures
from coupled_adam_bench.statistics.preregistered import checks
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.preregistration_record import note_stated, read_record
from coupled_adam_bench.study.plan.tuning import choice_file
from coupled_adam_bench.study.settings import parse_study

LOSS = {"name": "loss", "table": "table1", "metric": "loss", "better": "ours", "than": "adamw"}
TEXT = {"hypotheses": [LOSS], "seeds": [1, 2, 3, 4]}
OURS = {"name": "custom", "path": "torch.optim.AdamW", "key": "ours", "label": "Ours"}
TUNE = {
    "seeds": [11],
    "grids": {key: {"learning_rate": [0.001, 0.01]} for key in ("adamw", "ours")},
}
Settings = dict[str, Any]


class Study:
    """A study with a stated plan in a folder of results, which starts, trains, and says what was
    kept."""

    def __init__(self, tiny_study: Callable[..., Settings], results_of: Any, results: Path) -> None:
        self.results, self.results_of = results, results_of
        self.settings, self.text = tiny_study(stated=str(results / "plan.yaml")), dict(TEXT)
        self.block: Settings = self.settings["grid"][0]
        self.block |= {
            "optimizers": ["adamw", OURS],
            "tokens": [{"steps": 60}, {"steps": 80}],
            "seeds": [1, 2],
        }

    def start(self) -> Plan:
        (self.results / "plan.yaml").write_text(yaml.safe_dump(self.text))
        self.plan = make_plan(parse_study(self.settings))
        note_stated(self.plan, self.folder, stated_measures(self.plan))
        return self.plan

    @property
    def folder(self) -> Path:
        return self.results / self.settings["study"]

    def choose(self) -> None:
        for tuning in self.plan.tunings.values():
            tried = [
                {"cells": [{"cell": cell.id} for cell in one.cells]} for one in tuning.candidates
            ]
            record = {"tuning": tuning.id, "candidates": tried, "chosen": 1}
            write_sealed(choice_file(self.folder / paths.TUNING, tuning.id), record)
        self.plan = self.plan.with_choices(
            {name: one.candidates[1].settings for name, one in self.plan.tunings.items()}
        )

    def begin(self) -> None:
        for cell in self.plan.cells.values():
            paths.run_dir(cell.id, self.results).mkdir(parents=True, exist_ok=True)

    def kept(self) -> dict[str, str]:
        study = self.results_of(
            self.plan, lambda cell, _: 3.0 - (cell.optimizer.key == "ours") + 0.01 * cell.seed
        )
        found = checks(study, read_record(self.folder))
        self.said = "\n".join(check.finding for check in found)
        return {check.subject: check.kept for check in found}


@pytest.fixture
def study(tiny_study: Callable[..., Settings], results_of: Any, tmp_path: Path) -> Study:
    return Study(tiny_study, results_of, tmp_path)


ADVANCE, SEEDS = "stated in advance", "these seeds and no others"
SETTINGS: dict[str, Callable[[Study], Any]] = {
    "the warmup": lambda study: study.settings["training"].update(warmup_steps=6),
    "the factor of one optimizer": lambda study: study.block.update(
        optimizers=["adamw", OURS | {"lr_factor": 2}]
    ),
    "the seed of the text": lambda study: study.settings["data"]["source"].update(seed=7),
    "a place that is dropped": lambda study: study.block["tokens"].pop(),
    "a place that is added": lambda study: study.block["tokens"].append({"steps": 90}),
}


@pytest.mark.fault(
    "results",
    "After a look at results a stated plan is changed, or settings, places or seeds of its runs"
    " are; its record is deleted, or the study is renamed.",
    "The report does not say that it was stated in advance, or names the runs that were dropped.",
)
@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_change_after_a_look(study, change):
    study.start()
    study.begin()
    change(study)
    study.start()
    assert study.kept()[ADVANCE] == "no"
    assert "settings changed after the plan was seen" in study.said
    assert "when 8 of " in study.said
    study.text["title"] = "another text"
    study.start()
    assert study.kept()[ADVANCE] == "no"


OWN_METRIC = {"name": "spread", "path": "numpy.std", "symbol": "s", "higher_is_better": True}
MEASURES: dict[str, tuple[str, Settings]] = {
    "isotropy's variant": ("isotropy", {"isotropy": "eig_float32"}),
    "the words' spaces": ("r_bar", {"leading_space": False}),
    "the limit of items": ("acc", {"downstream": {"tasks": "synthetic", "limit": 3}}),
    "the windows of the loss": ("loss", {"test_loss": {"windows": "random"}}),
    "the direction of an own metric": (
        "spread",
        {"metrics": [OWN_METRIC | {"higher_is_better": False}]},
    ),
    "the function of an own metric": ("spread", {"metrics": [OWN_METRIC | {"path": "numpy.var"}]}),
}


@pytest.mark.fault(
    "results",
    "After a look at results the metric of a stated hypothesis is measured in another way.",
    "The report does not say that it was stated in advance.",
)
@pytest.mark.parametrize(("metric", "change"), MEASURES.values(), ids=MEASURES)
def test_a_metric_that_is_measured_otherwise_after_a_look(study, metric, change):
    study.text["hypotheses"] = [LOSS | {"metric": metric}]
    study.settings["evaluation"] |= {"metrics": [OWN_METRIC], "downstream": {"tasks": "synthetic"}}
    study.start()
    study.begin()
    study.start()
    assert study.kept()[ADVANCE] == "yes"
    study.settings["evaluation"] |= change
    study.start()
    assert study.kept()[ADVANCE] == "no"
    assert "when 8 of 8 runs had begun; settings changed after the plan was seen" in study.said


def test_what_no_hypothesis_is_about_may_be_measured_otherwise(study):
    study.start()
    study.begin()
    study.settings["evaluation"]["isotropy"] = "eig_float32"
    study.start()
    assert study.kept()[ADVANCE] == "yes"
    assert "changed" not in study.said


def test_a_record_that_does_not_say_what_was_measured(study):
    study.start()
    study.begin()
    old = [
        {name: value for name, value in entry.items() if name != "measured"}
        for entry in read_record(study.folder)
    ]
    write_sealed(study.folder / "stated.json", {"seen": old})
    for _ in range(2):  # as it was committed, and as it is after another start
        assert study.kept()[ADVANCE] == "open"
        assert (
            "when 0 of 8 runs had begun; how its metrics were to be measured is not recorded"
            in study.said
        )
        study.start()
    study.settings["evaluation"]["test_loss"] = {"windows": "random"}
    study.start()
    assert study.kept()[ADVANCE] == "no"


def test_settings_that_change_before_the_first_run(study):
    study.start()
    SETTINGS["the warmup"](study)
    study.start()
    study.begin()
    assert study.kept()[ADVANCE] == "yes"
    assert "settings changed after the plan was seen" in study.said


def test_seeds_that_are_added_as_stated(study):
    for seeds in ([1, 2], [1, 2, 3], [1, 2, 3, 4]):
        study.block["seeds"] = seeds
        study.start()
        study.begin()
        study.start()
        assert set(study.kept().values()) <= {"yes", "open"}
        assert "changed" not in study.said


@pytest.mark.parametrize("between", [[1, 2, 3], [1, 2, 9]])
def test_a_seed_that_is_dropped_after_a_look(study, between):
    for seeds in ([1, 2], between, [1, 2]):
        study.block["seeds"] = seeds
        study.start()
        study.begin()
    assert study.kept() == {ADVANCE: "yes", SEEDS: "no"}
    assert study.said.count(f"_s{between[-1]}_") == 4
    assert "had begun, and the grid no longer has them" in study.said


@pytest.mark.parametrize(
    "text",
    [
        {"hypotheses": [LOSS | {"test": "paired"}]},
        {"seeds": [2, 1, 3, 4]},
        {"alpha": 0.1},
    ],
)
def test_a_text_that_changes_after_a_look(study, text):
    study.start()
    study.begin()
    study.text |= text
    study.start()
    assert study.kept()[ADVANCE] == "no"
    assert "when 8 of 8 runs had begun; 1 other text(s) of the plan were seen too" in study.said
    study.text = dict(TEXT)
    study.start()
    assert study.kept()[ADVANCE] == "yes"  # it is what was stated, and the other text is mentioned
    assert "1 other text(s)" in study.said


@pytest.mark.parametrize("evade", ["the record is deleted", "the study is renamed"])
def test_a_plan_that_is_seen_for_the_first_time_again(study, evade):
    study.start()
    study.begin()
    if evade == "the record is deleted":
        (study.folder / "stated.json").unlink()
    else:
        study.settings["study"] = "other"
    study.start()
    assert study.kept()[ADVANCE] == "no"
    assert "when 8 of 8 runs had begun" in study.said


def test_a_choice_changes_no_stated_setting(study):
    study.block["tune"] = TUNE
    study.start()
    study.choose()
    study.start()
    study.begin()
    study.start()
    study.block["seeds"] = [1, 2, 3]
    study.start()
    assert study.kept()[ADVANCE] == "yes"
    assert "when 0 of 8 runs" in study.said and "changed" not in study.said


def test_a_tuning_that_changes_after_a_look(study):
    study.block["tune"] = TUNE
    study.start()
    study.choose()
    study.begin()
    study.block["tune"] = TUNE | {"seeds": [12]}
    study.start()
    assert study.kept()[ADVANCE] == "no"
    assert "when 8 of 16 runs had begun; settings changed after the plan was seen" in study.said


def test_a_start_without_a_change_records_nothing(study):
    study.start()
    seen = read_record(study.folder)
    study.begin()
    study.start()
    assert read_record(study.folder) == seen
    assert len(seen) == 1


def test_a_record_that_was_edited(study):
    assert read_record(study.folder) == []
    study.start()
    study.begin()
    study.text["alpha"] = 0.01
    study.start()
    record = study.folder / "stated.json"
    record.write_text(record.read_text().replace("_s1_", "_s2_"))
    with pytest.raises(
        ValueError,
        match=r"stated\.json: its contents do not match .*; put it back as it was, or delete it",
    ):
        read_record(study.folder)
