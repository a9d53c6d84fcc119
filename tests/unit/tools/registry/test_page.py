"""The page of a registry, and what describes data and program elsewhere."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import html5lib
import yaml

from coupled_adam_bench.store.files import read_json, write_json
from coupled_adam_bench.tools.registry.check import CHECKS
from coupled_adam_bench.tools.registry.form import name_of
from coupled_adam_bench.tools.registry.page import write_registry

ROOT = Path(__file__).parents[4]
DEMO = ROOT / "docs" / "examples" / "demo"
NUMBERS = {"test,loss": "nat/token", "embeddings,isotropy": "1", "test,pooled_calibration_rarest": "nat"}


def row(optimizer: str, label: str, seeds: range, n_tokens: int = 1000) -> dict[str, Any]:
    cells = {str(seed): f"nano_{n_tokens}_{optimizer}_s{seed}_{len(label)}" for seed in seeds}
    place = {"n_params": 100, "n_tokens": n_tokens, "model": "m"}
    return place | {"optimizer": optimizer, "label": label, "cells": cells}


def write_bundle(
    registry: Path,
    losses: dict[str, list[float]],
    regime: str = "r",
    n_tokens: int = 1000,
    tuned: bool = False,
    **changes: Any,
) -> str:
    """Write what the page reads of a bundle with the losses of each optimizer, and return its name."""
    suffix = " (tuned)" if tuned else ""
    rows = [row(name, name.title() + suffix, range(len(values)), n_tokens) for name, values in losses.items()]
    lines = ["study,n_params,n_tokens,optimizer,seed,task,metric,value,unit,protocol,cell,model,data"]
    for each in rows:
        for (seed, cell), value in zip(each["cells"].items(), losses[each["optimizer"]], strict=True):
            for number, unit in NUMBERS.items():
                lines.append(
                    f"s,100,{n_tokens},{each['optimizer']},{seed},{number},{value!r},{unit},corrected,{cell},nano,d-0"
                )
    described = {
        "submitter": "Ann", "notes": "<b>harmless</b> & short", "study": "s", "title": "Some study", "program": "abc",
        "packages": {}, "environments": {"device": ["CPU (x86_64)"], "torch": ["2.13.0"]}, "stated": None,
        "first_seen": None, "histories": {cell: "ab" * 32 for each in rows for cell in each["cells"].values()},
        "regimes": [{"id": regime, "rows": rows, "settings": {
            "data_id": f"data-{regime}", "training": {"seq_len": 16, "batch_sequences": 4}, "protocol": "corrected",
        }}],
        "files": {},
    }  # fmt: skip
    folder = registry / "new"
    folder.mkdir(parents=True)
    write_json(folder / "bundle.json", described | changes)
    (folder / "results.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder.rename(registry / name_of(folder)).name


def page_of(registry: Path) -> str:
    write_registry(registry, registry / "index.html", ROOT / "templates")
    page = (registry / "index.html").read_text()
    parser = html5lib.HTMLParser(strict=True)
    parser.parse(page)
    assert parser.errors == []
    return page


def cells_of(page: str, label: str) -> list[str]:
    """Return the texts of an optimizer's line."""
    (line,) = (line for line in re.findall(r"<tr>.*?</tr>", page) if f">{label}</th>" in line)
    return re.findall(r"<td[^>]*>(.*?)</td>", line)


def test_each_regime_has_its_table_with_ranks_that_the_intervals_allow(tmp_path: Path) -> None:
    losses = {"adam": [3.00, 3.01, 3.02], "near": [3.005, 3.015, 3.02], "far": [4.0, 4.01, 4.02], "single": [3.5]}
    name = write_bundle(tmp_path, losses | {"diverged": [3.0, float("nan")]})
    write_bundle(tmp_path, {"other": [1.0, 1.1]}, regime="q")
    page = page_of(tmp_path)
    assert [cells_of(page, label)[0] for label in ("Adam", "Near", "Single", "Far", "Diverged")] == [
        "1–3", "1–3", "1–4", "3–4", "-",
    ]  # fmt: skip
    assert cells_of(page, "Adam")[1] == "3.010 [2.985, 3.035]"
    assert cells_of(page, "Single")[1] == "3.500"
    assert cells_of(page, "Diverged")[1:3] == ["-", "-"]
    assert cells_of(page, "Adam")[2:4] == ["-", "3.01 (1)"]
    assert f'href="./{name}/bundle.json"' in cells_of(page, "Adam")[-1]
    assert page.index("data-") < page.index('id="bundles"')
    assert len(re.findall(r'<section id="regime-', page)) == 2
    assert "&lt;b&gt;harmless&lt;/b&gt; &amp; short" in page
    assert "2 bundles with 14 cells" in page


def test_the_speedup_is_beside_the_adam_with_the_most_numbers_of_tokens(tmp_path: Path) -> None:
    curve = {1000: [4.0, 4.1], 2000: [3.5, 3.6], 4000: [3.2, 3.3]}
    others = {"as_adam_later": [3.2, 3.3], "best": [2.0, 2.1], "other_seeds": [3.2, 3.3, 3.4], "worst": [9.0, 9.1]}
    for n_tokens, values in curve.items():
        beside = others | {"adamw_f10": [1.0, 1.1]} if n_tokens == 2000 else {}
        write_bundle(tmp_path, {"adamw_f0.1": values} | beside, n_tokens=n_tokens)
    page = page_of(tmp_path)
    shown = {label: cells_of(page, label)[2] for label in ("Best", "Worst", "Adamw_F10")}
    assert shown == {"Best": "&gt; 2.00", "Worst": "&lt; 0.50", "Adamw_F10": "&gt; 2.00"}
    assert cells_of(page, "As_Adam_Later")[2] == cells_of(page, "Other_Seeds")[2] == "2.00 [2.00, -]"
    assert "beside Adamw_F0.1" in page


def test_a_tuned_adam_is_another_than_the_one_of_the_same_key(tmp_path: Path) -> None:
    for n_tokens, loss in {1000: 4.0, 2000: 3.5}.items():
        write_bundle(tmp_path, {"adamw": [loss, loss + 0.1]}, n_tokens=n_tokens)
    write_bundle(tmp_path, {"adamw": [2.0, 2.1], "other": [3.5, 3.6]}, tuned=True)
    page = page_of(tmp_path)
    assert cells_of(page, "Other (tuned)")[2] == "2.00"
    assert cells_of(page, "Adamw (tuned)")[2] == "&gt; 2.00"
    assert "beside Adamw (tuned)" not in page


def test_marks_are_those_of_the_recorded_checks_and_of_other_people(tmp_path: Path) -> None:
    losses = {"adam": [3.0, 3.1]}
    first = write_bundle(tmp_path, losses)
    said = {"bundle": first, "verdict": "reproduced"}
    write_bundle(tmp_path, losses, notes="myself", reproduces=said)
    other = write_bundle(tmp_path, losses, submitter="Bea", reproduces=said)
    assert cells_of(page_of(tmp_path), "Adam")[-2] == '<span class="status middle">self-reported</span>'
    for bundle, mark in ((first, "recomputed"), (first, "run again here"), (other, "recomputed")):
        with (tmp_path / CHECKS).open("a") as file:
            file.write(json.dumps({"bundle": bundle, "mark": mark}) + "\n")
    marks, links = cells_of(page_of(tmp_path), "Adam")[-2:]
    assert re.findall(">([^<]+)</span>", marks) == ["run again here", "run again by Bea"]
    assert links.count("<a ") == 3  # one line for the same cells
    assert links.index(first) < links.index(other)


def test_the_croissant_of_the_demo_describes_the_files_of_its_manifest() -> None:
    described, (data,) = read_json(DEMO / "croissant.json"), read_json(DEMO / "manifest.json")["data"]
    assert described["name"] == data["id"]
    files = {each["contentUrl"]: (each["contentSize"], each["sha256"]) for each in described["distribution"]}
    assert files == {name: (f"{file['bytes']} B", file["sha256"]) for name, file in data["meta"]["files"].items()}
    assert all(f"{split['n_tokens']:,}" in described["description"] for split in data["meta"]["splits"].values())
    assert str(data["meta"]["source"]) in described["description"]


def test_zenodo_and_citation_agree() -> None:
    zenodo = read_json(ROOT / ".zenodo.json")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (zenodo["title"], zenodo["version"], zenodo["license"]) == (
        citation["title"], citation["version"], citation["license"],
    )  # fmt: skip
    assert [each["name"] for each in zenodo["creators"]] == [each["name"] for each in citation["authors"]]
