"""The page of a registry, and what describes data and program elsewhere."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import html5lib
import pytest
import yaml

from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.tools.verify.recorded import Recorded
from coupled_adam_registry import page
from coupled_adam_registry.check import Checked
from coupled_adam_registry.form import Bundle

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "docs" / "examples" / "demo"
METRICS = (("test", "loss"), ("embeddings", "isotropy"), ("test", "pooled_calibration_rarest"))
Losses = dict[str, dict[int, list[float]]]
"""Losses by optimizer and steps, one for each seed."""


class Registry:
    """Bundles as they are after their check, and the page that shows them."""

    def __init__(self, tiny_study: Callable[..., dict[str, Any]], folder: Path) -> None:
        self.tiny_study, self.folder = tiny_study, folder
        self.bundles: list[Checked | str] = []

    def add(
        self, losses: Losses, tuned: Losses | None = None, seq_len: int = 16, **changes: Any
    ) -> None:
        """Hand in a study with these losses, and with others of optimizers that trials chose."""
        grid = [
            _block(name, steps, values)
            for name, by_steps in losses.items()
            for steps, values in by_steps.items()
        ]
        for name, by_steps in (tuned or {}).items():
            tune = {"seeds": [9], "grids": {name: {"lr_factor": [0.5, 2.0]}}}
            grid += [
                _block(name, steps, values) | {"tune": tune} for steps, values in by_steps.items()
            ]
        settings = self.tiny_study(grid=grid)
        settings["training"]["seq_len"] = seq_len
        plan = make_plan(parse_study(settings))
        plan = plan.with_choices(
            {name: tuning.candidates[1].settings for name, tuning in plan.tunings.items()}
        )
        given = [
            value
            for of_all in (losses, tuned or {})
            for by in of_all.values()
            for v in by.values()
            for value in v
        ]
        values = {
            cell: dict.fromkeys(METRICS, loss) for cell, loss in zip(plan.cells, given, strict=True)
        }
        cells = {cell: {"environment": {"device": "CPU (x86_64)"}} for cell in plan.cells}
        versions = dict.fromkeys(("data", "train", "test_loss", "embeddings", "downstream"), 1)
        seen = {
            "sha256": "a",
            "cells": {},
            "measured": {},
            "at": "2026-01-02",
            "begun": ["x"],
            "n_cells": 3,
        }
        manifest = {
            "cells": list(cells.values()),
            "protocol": {"versions": versions},
            "stated": {"sha256": "a", "seen": [seen]},
        }
        said = {"submitter": "Ann", "notes": "<b>harmless</b> & short", "data": {}, "histories": {}}
        name = f"{len(self.bundles):064}"
        recorded = Recorded(plan, {}, manifest, cells, values, Path())
        self.bundles.append(
            Checked(self.folder / name, name, {}, Bundle(**said | changes), recorded)
        )

    def page(self) -> str:
        refused = page.write_registry(self.folder, self.folder / "index.html", ROOT / "templates")
        assert refused == [each for each in self.bundles if isinstance(each, str)]
        text = (self.folder / "index.html").read_text()
        parser = html5lib.HTMLParser(strict=True)
        parser.parse(text)
        assert parser.errors == []
        return text


def _block(name: str, steps: int, values: list[float]) -> dict[str, Any]:
    kind, _, factor = name.partition("_f")
    seeds = list(range(1, len(values) + 1))
    optimizer = {"name": kind, "lr_factor": float(factor or 1)}
    return {
        "models": ["nano"],
        "tokens": [{"steps": steps}],
        "optimizers": [optimizer],
        "seeds": seeds,
    }


@pytest.fixture
def registry(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Registry:
    made = Registry(tiny_study, tmp_path)
    monkeypatch.setattr(page, "checked_bundles", lambda _: made.bundles)
    return made


def cells_of(page: str, label: str, tokens: int = 0) -> list[str]:
    """Return the texts of an optimizer's line, the first or that with some number of places before
    it."""
    lines = [line for line in re.findall(r"<tr>.*?</tr>", page) if f">{label}</th>" in line]
    return re.findall(r"<td[^>]*>(.*?)</td>", lines[tokens])


def test_each_regime_has_its_table_with_ranks_that_the_intervals_allow(registry):
    losses = {
        "adamw": [3.00, 3.01, 3.02],
        "ember": [3.005, 3.015, 3.02],
        "coupled_adam": [4.0, 4.01, 4.02],
        "adam_mini": [3.5],
        "sgd": [3.0, float("nan")],
    }
    registry.add({name: {60: values} for name, values in losses.items()})
    registry.add({"adamw": {60: [1.0, 1.1]}}, seq_len=8)
    text = registry.page()
    labels = ("Adam", "Ember", "Adam-mini", "Coupled Adam", "SGD, f = 1")
    assert [cells_of(text, label)[0] for label in labels] == ["1–3", "1–3", "1–4", "3–4", "-"]
    assert cells_of(text, "Adam")[1] == "3.010 [2.985, 3.035]"
    assert cells_of(text, "Adam-mini")[1] == "3.500"
    assert (cells_of(text, "SGD, f = 1")[1], cells_of(text, "SGD, f = 1")[3]) == ("-", "-")
    assert cells_of(text, "Adam")[3:5] == ["-", "3.01 (1)"]
    assert f'href="{0:064}/bundle.json"' in cells_of(text, "Adam")[-1]
    assert cells_of(text, "Adam")[2] == '<span class="status good">recomputed</span>'
    assert len(re.findall(r'<section id="regime-', text)) == 2
    assert "&lt;b&gt;harmless&lt;/b&gt; &amp; short" in text
    assert "2 bundles with 14 cells" in text
    said = (
        "no: this text with these settings was first seen on 2026-01-02, when 1 of 3 runs had begun"
    )
    assert text.count(said) == 2


def test_people_read_names_and_words_and_no_hash(registry):
    registry.add({"adamw": {60: [3.00, 3.01]}})
    registry.add({"adamw": {60: [3.2, 3.3, 3.4]}})
    registry.add({"adamw": {60: [1.0, 1.1]}}, seq_len=8)
    text = registry.page()
    title = registry.bundles[0].recorded.plan.name  # type: ignore[union-attr]
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [f"{title}, training.seq len 16", f"{title}, training.seq len 8", "Bundles"]
    first = text[: text.index('id="regime-2"')]
    names = re.findall(r'<th scope="row"[^>]*>(.*?)</th>', first)
    assert names == ["Adam, seeds 1, 2", "Adam, seeds 1, 2, 3"]
    assert not re.search(r">[^<>]*[0-9a-f]{10}[^<>]*</", text[: text.index("<details")])
    assert re.search(r"As of \d+ [A-Z][a-z]+ 20\d\d: 3 bundles", text)


CURVE = {60: [4.0, 4.1], 120: [3.5, 3.6], 240: [3.2, 3.3]}


def test_the_speedup_is_beside_the_strongest_adam_of_the_same_tokens(registry):
    weaker = {steps: [loss + 0.4 for loss in values] for steps, values in CURVE.items()}
    registry.add(
        {"adamw": CURVE, "adamw_f3": weaker, "ember": {120: [3.2, 3.3]}, "sgd": {120: [9.0, 9.1]}}
    )
    registry.add({"adamw_f9": {480: [3.1, 3.2], 960: [3.0, 3.1]}})  # more tokens make no reference
    text = registry.page()
    # Both seeds differ alike, so there is no interval.
    assert cells_of(text, "Ember")[3] == "2.00 of Adam"
    assert [cells_of(text, "Adam", place)[3] for place in range(3)] == ["-"] * 3
    ratios = [cells_of(text, "Adam, f = 3", place)[3] for place in range(3)]
    assert ratios[0] == "-"  # the reference is below this loss with its fewest tokens
    assert all(ratio.endswith("of Adam") and float(ratio.split()[0]) < 1 for ratio in ratios[1:])
    assert cells_of(text, "SGD, f = 1")[3] == "-"
    assert "beside Adam; the reference is below this loss with its fewest tokens" in text


@pytest.mark.parametrize(
    ("tuned_gain", "own", "own_tuned"), [(0.5, "-", "1.00"), (-0.5, "1.00", "-")]
)
def test_what_is_tuned_stands_beside_what_is_tuned(registry, tuned_gain, own, own_tuned):
    tuned = {steps: [loss - tuned_gain for loss in values] for steps, values in CURVE.items()}
    registry.add({"adamw": CURVE, "ember": {120: CURVE[120]}})
    registry.add({}, {"adamw": tuned, "ember": {120: tuned[120]}})
    text = registry.page()
    assert cells_of(text, "Ember")[3].split()[0] == own
    assert cells_of(text, "Ember (tuned)")[3].split()[0] == own_tuned


def test_without_an_adam_of_the_same_tokens_there_is_no_number(registry):
    registry.add({"adamw": {60: [4.0, 4.1], 240: [3.2, 3.3]}, "ember": {120: [3.2, 3.3]}})
    assert cells_of(registry.page(), "Ember")[3] == "-"


def test_what_is_refused_is_not_shown(registry):
    registry.add({"adamw": {60: [3.0]}})
    registry.bundles.append("registry/x: cannot be recomputed")
    assert "1 bundle with 1 cells" in registry.page()


def test_the_croissant_of_the_demo_describes_the_files_of_its_manifest():
    described, (data,) = (
        read_json(DEMO / "croissant.json"),
        read_json(DEMO / "manifest.json")["data"],
    )
    assert described["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    required = {"name", "description", "license", "url", "creator", "datePublished", "distribution"}
    assert required <= described.keys()
    assert described["name"] == data["id"]
    files = {
        each["contentUrl"]: (each["contentSize"], each["sha256"])
        for each in described["distribution"]
    }
    assert files == {
        name: (f"{file['bytes']} B", file["sha256"]) for name, file in data["meta"]["files"].items()
    }
    assert all(
        f"{split['n_tokens']:,}" in described["description"]
        for split in data["meta"]["splits"].values()
    )
    assert str(data["meta"]["source"]) in described["description"]


def test_zenodo_and_citation_agree():
    zenodo = read_json(ROOT / ".zenodo.json")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (zenodo["title"], zenodo["version"], zenodo["license"]) == (
        citation["title"],
        citation["version"],
        citation["license"],
    )
    assert [each["name"] for each in zenodo["creators"]] == [
        each["name"] for each in citation["authors"]
    ]
