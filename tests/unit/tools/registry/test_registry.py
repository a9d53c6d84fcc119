"""Bundles of a tiny study that was trained for real: made, forged, checked, and shown on a page."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.cli import main
from coupled_adam_bench.report.contents import statistics_of
from coupled_adam_bench.report.make import Places, material_of
from coupled_adam_bench.report.manifest import manifest_of, write_manifest
from coupled_adam_bench.report.render import write_tables
from coupled_adam_bench.store.files import read_json, write_json
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_bench.tools.registry.bundle import write_bundle
from coupled_adam_bench.tools.registry.check import CHECKS, check
from coupled_adam_bench.tools.registry.form import BUNDLE, CODE, STATISTICS, files_of, name_of

ROOT = Path(__file__).parents[4]
TEMPLATES = ["--templates", str(ROOT / "templates")]
REGISTRY = Path("registry")
STUDY = Path("results/tiny")
PLAN = ["--plan", str(STUDY / "plan.json")]

STATED = """
hypotheses:
  - {name: loss, table: mine, metric: loss, better: coupled_adam, than: adamw}
seeds: [1, 2]
"""


def run_here(command: list[str], threads: int) -> int:
    return main(command)


def run_study(settings: dict[str, Any]) -> None:
    """Run a study from its plan to its manifest, in the working folder."""
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    assert main(["plan", "--study", "tiny.yaml", "--out", PLAN[1]]) == 0
    assert main(["prepare", *PLAN]) == 0
    cells = ["--cells", *load_plan(Path(PLAN[1])).cells]
    assert main(["train", *PLAN, *cells]) == 0
    for stage in ("test-loss", "embeddings"):
        assert main([stage, *PLAN, *cells, "--done", f"{stage}.done"]) == 0
    report()


def report(results: Path | None = None) -> None:
    """Write what the command of this name does, but figures and page, which a bundle does not have."""
    plan, places = load_plan(Path(PLAN[1])), Places(ROOT / "templates", STUDY, results=results)
    material = material_of(plan, places)
    for statistic in statistics_of(plan):
        if statistic.file in STATISTICS:
            material.write(statistic)
    write_tables(material.study, STUDY / "tables", places.templates)
    write_manifest(manifest_of(plan, STUDY), STUDY)


def settings_of(tiny_study: Any, **changes: Any) -> dict[str, Any]:
    grid = tiny_study()["grid"][0] | {"tokens": [{"steps": 12}], "seeds": [1, 2], "table": "mine"}
    evaluation = {"word_similarity": "synthetic", "downstream": None}  # to load lm-eval takes longer than all else
    tables = {"mine": {"title": "Mine", "columns": ["loss", "isotropy"], "comparison": "each_other"}}
    return tiny_study(grid=[grid | changes], tables=tables, evaluation=evaluation, stated="stated.yaml")


@pytest.fixture(scope="session")
def bundled_study(tmp_path_factory: pytest.TempPathFactory, tiny_study: Any) -> Path:
    """A folder with a study of four cells that has run through, and its bundle."""
    root, before = tmp_path_factory.mktemp("bundled"), Path.cwd()
    os.chdir(root)
    try:
        Path("stated.yaml").write_text(STATED)
        run_study(settings_of(tiny_study))
        write_bundle(STUDY, REGISTRY, "Somebody", "a test")
    finally:
        os.chdir(before)
    return root


@pytest.fixture
def bundle(bundled_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle of the study, in the working folder."""
    shutil.copytree(bundled_study, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (found,) = REGISTRY.glob("*")
    return found


def checked(*bundles: Path, again: int = 0, **options: Any) -> int:
    return check(REGISTRY, bundles, again, "auto", run=run_here, **options)


def reseal(bundle: Path) -> Path:
    """Write the sums of a bundle anew and give it the name that follows, as a careful forger does."""
    values = read_json(bundle / BUNDLE)
    write_json(bundle / BUNDLE, values | {"files": {n: s for n, s in files_of(bundle).items() if n != BUNDLE}})
    return bundle.rename(bundle.with_name(name_of(bundle)))


def change(bundle: Path, name: str, edit: Callable[[str], str]) -> None:
    """Change the text of a file of a bundle, which may be packed."""
    packed = bundle / f"{name}.gz"
    if packed.is_file():
        packed.write_bytes(gzip.compress(edit(gzip.decompress(packed.read_bytes()).decode()).encode()))
    else:
        (bundle / name).write_text(edit((bundle / name).read_text()))


def refused(capsys: pytest.CaptureFixture[str], *bundles: Path, **options: Any) -> str:
    """Return why bundles are refused."""
    capsys.readouterr()
    assert checked(*bundles, **options) == 1
    return capsys.readouterr().out


def test_a_bundle_is_small_and_says_what_it_is(bundle: Path) -> None:
    values = read_json(bundle / BUNDLE)
    assert values["study"] == "tiny"
    assert values["submitter"] == "Somebody"
    ids = set(load_plan(Path(PLAN[1])).cells)
    assert set(values["histories"]) == ids
    (regime,) = values["regimes"]
    assert {cell for row in regime["rows"] for cell in row["cells"].values()} == ids
    assert [row["optimizer"] for row in regime["rows"]] == ["adamw", "coupled_adam"]
    assert sum(path.stat().st_size for path in bundle.iterdir()) < 60_000
    assert set(files_of(bundle)) == {
        BUNDLE, "tiny.yaml", "manifest.json.gz", "results.csv.gz", "tests.csv", "stated.csv", "stated.yaml",
    }  # fmt: skip
    lines = subprocess.run(
        "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum",
        shell=True, cwd=bundle, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert lines.split()[0] == bundle.name


def test_a_whole_bundle_passes_and_its_cells_come_out_again(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("results")  # as on another machine
    assert checked(again=1, record=True) == 0
    said = capsys.readouterr().out
    assert f"{bundle.name}: run again here" in said
    assert said.count("reproduced bit for bit") == 1
    (line,) = (REGISTRY / CHECKS).read_text().splitlines()
    assert json.loads(line)["mark"] == "run again here"
    assert len(json.loads(line)["cells"]) == 1
    assert checked(again=1) == 0  # a recorded cell is not trained anew
    assert f"{bundle.name}: recomputed" in capsys.readouterr().out


def test_a_changed_file_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(bundle, "tests.csv", lambda text: text.replace("coupled_adam", "adamw"))
    said = refused(capsys)
    assert f"{bundle.name}/tests.csv: added, removed or changed after the bundle was made" in said
    assert "put the bundle back as it was, or make another from the study" in said
    (bundle / "tests.csv").unlink()
    assert f"{bundle.name}/tests.csv: added, removed or changed" in refused(capsys)


def test_an_added_file_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / ".extra").write_text("x")
    assert f"{bundle.name}/.extra: added, removed or changed" in refused(capsys)
    (bundle / ".extra").write_bytes(bytes(1_000_000))
    assert "bytes, allowed are 1,000,000; bundle the parts of the study alone" in refused(capsys)


def test_a_changed_description_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(bundle / BUNDLE, read_json(bundle / BUNDLE) | {"submitter": "Another"})
    assert f"{bundle.name}/bundle.json: added, removed or changed" in refused(capsys)
    write_json(bundle / BUNDLE, read_json(bundle / BUNDLE) | {"submitter": "", "more": 1})
    said = refused(capsys)
    assert "submitter: must not be empty" in said
    assert "more: unknown key" in said


def forge(text: str, by: float = 0.5) -> str:
    """Make the loss of one cell smaller."""
    lines = text.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if ",coupled_adam,1,test,loss," in line)
    value = lines[place].split(",")[7]
    lines[place] = lines[place].replace(value, repr(float(value) - by))
    return "".join(lines)


def test_a_forged_number_is_refused_however_far_it_was_carried(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(bundle, "results.csv", forge)
    assert f"{bundle.name}/results.csv.gz: added, removed or changed" in refused(capsys)
    bundle = reseal(bundle)
    assert "results.csv: changed since the manifest was written" in refused(capsys)
    manifest = json.loads(gzip.decompress((bundle / "manifest.json.gz").read_bytes()))
    results = Path("forged.csv")
    results.write_bytes(gzip.decompress((bundle / "results.csv.gz").read_bytes()))
    manifest["sha256"]["results.csv"] = files_of(Path())["forged.csv"]
    change(bundle, "manifest.json", lambda text: json.dumps(manifest))
    bundle = reseal(bundle)
    said = refused(capsys)
    assert "stated.csv: line 2, difference: " in said
    assert "from its study and its results; run `report` on the unchanged results" in said


@pytest.mark.parametrize(("factor", "same"), [(1 + 4e-16, True), (1 - 1e-14, True), (1 + 1e-9, False)])
def test_a_statistic_may_be_off_by_the_rounding_of_another_processor(
    bundle: Path, capsys: pytest.CaptureFixture[str], factor: float, same: bool
) -> None:
    header, *lines = (bundle / "stated.csv").read_text().splitlines()
    place = header.split(",").index("difference")
    fields = lines[0].split(",")
    fields[place] = repr(float(fields[place]) * factor)
    change(bundle, "stated.csv", lambda _: "\n".join([header, ",".join(fields), *lines[1:]]) + "\n")
    reseal(bundle)
    if same:
        assert checked() == 0
    else:
        assert "stated.csv: line 2, difference: " in refused(capsys)


def test_a_statistic_may_lack_no_line(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(bundle, "tests.csv", lambda text: "".join(text.splitlines(keepends=True)[:-1]))
    reseal(bundle)
    assert "tests.csv: line " in refused(capsys)


def test_a_number_that_was_forged_before_the_report_does_not_come_out_again(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(bundle)
    results = STUDY / "results.csv"
    results.write_text(forge(results.read_text()))
    report(results)
    forged = write_bundle(STUDY, REGISTRY, "Somebody", "all sums, tests and tables are those of the forged number")
    assert checked() == 0  # nothing contradicts it but the training
    said = refused(capsys, forged, again=4)
    assert "results.csv: value: not what training again gives; run the study anew" in said
    assert "too far: test loss: " in said


def test_a_dropped_seed_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the results, and from the manifest too."""
    shutil.rmtree(bundle)
    results = STUDY / "results.csv"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if ",coupled_adam,2," not in line))
    with pytest.raises(ValueError, match=r"results\.csv: changed since the manifest was written"):
        write_bundle(STUDY, REGISTRY, "Somebody", "a seed less")
    manifest = read_json(STUDY / "manifest.json")
    manifest["sha256"]["results.csv"] = files_of(STUDY)["results.csv"]
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(
        ValueError,
        match=r"results\.csv: nano_.*_coupled_adam_s2_.*: only one of the results and the study has it; no seed",
    ):
        write_bundle(STUDY, REGISTRY, "Somebody", "a seed less")
    manifest["cells"] = [cell for cell in manifest["cells"] if "_coupled_adam_s2_" not in cell["cell"]]
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(
        ValueError,
        match=r"cells of manifest\.json: nano_.*_coupled_adam_s2_.* is missing, allowed are .*may be left out",
    ):
        write_bundle(STUDY, REGISTRY, "Somebody", "a seed less")
    assert not list(REGISTRY.iterdir())  # nothing is left behind


def test_a_grid_that_was_widened_after_the_results_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wider = yaml.safe_load((bundle / "tiny.yaml").read_text())
    wider["grid"][0]["seeds"] = [1, 2, 3]
    change(bundle, "tiny.yaml", lambda text: yaml.safe_dump(wider))
    bundle = reseal(bundle)
    assert "tiny.yaml: grid: not that of manifest.json, with which the cells were trained" in refused(capsys)
    manifest = json.loads(gzip.decompress((bundle / "manifest.json.gz").read_bytes()))
    manifest["studies"][0]["grid"][0]["seeds"] = [1, 2, 3]
    change(bundle, "manifest.json", lambda text: json.dumps(manifest))
    reseal(bundle)
    assert "_s3_" in (said := refused(capsys))
    assert "to which tiny.yaml expands, is missing, allowed are completed and diverged; no seed, size or" in said


def test_a_run_that_did_not_end_is_no_result(bundle: Path) -> None:
    manifest = read_json(STUDY / "manifest.json")
    manifest["cells"][0] |= {"status": "not trained", "reason": "no run.json"}
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(ValueError, match=r"expands, is not trained, allowed are completed and diverged"):
        write_bundle(STUDY, REGISTRY, "Somebody", "unfinished")


def test_another_stated_plan_than_that_of_the_study_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(
        bundle,
        "stated.yaml",
        lambda text: text.replace("better: coupled_adam, than: adamw", "better: adamw, than: coupled_adam"),
    )
    reseal(bundle)
    assert "stated.yaml: not the stated plan of the study; put back " in refused(capsys)
    Path("stated.yaml").unlink()
    with pytest.raises(ValueError, match=r"stated\.yaml: not what the study ran with; put that back"):
        write_bundle(STUDY, REGISTRY, "Somebody", "without its plan")


def test_what_was_committed_stays(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments], check=True, capture_output=True
        )

    git("init")
    git("add", "registry")
    git("commit", "-m", "A bundle")
    assert checked() == 0
    values = read_json(bundle / BUNDLE)
    write_json(bundle / BUNDLE, values | {"submitter": "Another"})
    changed = bundle.rename(bundle.with_name(name_of(bundle)))
    git("add", "registry")
    git("commit", "-m", "Another name")
    said = refused(capsys)
    assert f"{bundle.name}: removed, or changed and so renamed, after it was committed; bundles only come in" in said
    git("checkout", "HEAD^", "--", str(REGISTRY / bundle.name))
    shutil.rmtree(changed)
    assert f"{changed.name}: removed" in refused(capsys)
    git("checkout", "HEAD", "--", ".")
    assert checked() == 0


def test_a_bundle_says_whether_it_reproduces_another(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = write_bundle(STUDY, REGISTRY, "Another", "the same again", bundle.name)
    assert read_json(same / BUNDLE)["reproduces"] == {"bundle": bundle.name, "verdict": "reproduced"}
    results = STUDY / "results.csv"
    results.write_text(forge(results.read_text(), by=100))  # two seeds of two groups allow a lot
    report(results)
    other = write_bundle(STUDY, REGISTRY, "A third", "it does not come out", bundle.name)
    assert read_json(other / BUNDLE)["reproduces"]["verdict"] == "not reproduced"
    assert checked(record=True) == 0
    assert main(["registry", "page", "--out", "page.html", *TEMPLATES]) == 0
    page = Path("page.html").read_text()
    assert '<span class="status good">run again by Another</span>' in page
    assert '<span class="status bad">not reproduced by A third</span>' in page
    values = read_json(other / BUNDLE)
    values["reproduces"]["verdict"] = "reproduced"
    write_json(other / BUNDLE, values)
    said = refused(capsys, other.rename(other.with_name(name_of(other))))
    assert "reproduces.verdict: 'reproduced', but by the numbers of both it is 'not reproduced'" in said
    with pytest.raises(ValueError, match=r"reproduces\.bundle: registry/nothing is no bundle"):
        write_bundle(STUDY, REGISTRY, "Another", "of nothing", "nothing")


OWN = """
from torch.optim import SGD

class Mine(SGD):
    pass
"""


def test_a_bundle_has_the_code_of_an_own_optimizer(
    tmp_path: Path, tiny_study: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_for_registry.py").write_text(OWN)
    own = {"name": "custom", "path": "own_for_registry.Mine", "key": "mine", "label": "Mine", "lr_factor": 5.0}
    settings = settings_of(tiny_study, optimizers=["adamw", own]) | {"stated": None}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        run_study(settings)
        bundle = write_bundle(STUDY, REGISTRY, "Somebody", "an own optimizer")
    assert (bundle / CODE / "own_for_registry.py").read_text() == OWN
    Path("own_for_registry.py").unlink()
    shutil.rmtree("results")
    monkeypatch.syspath_prepend(".")  # as our commands look for own code
    assert checked(bundle, again=2) == 0
    assert capsys.readouterr().out.count("reproduced bit for bit") == 2


def test_results_of_other_mathematics_are_self_reported(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = json.loads(gzip.decompress((bundle / "manifest.json.gz").read_bytes()))
    manifest["protocol"]["versions"]["statistics"] = 1
    change(bundle, "manifest.json", lambda text: json.dumps(manifest))
    reseal(bundle)
    assert checked() == 0
    said = capsys.readouterr().out
    assert ": self-reported\n  not recomputed: statistics have other versions here; check it with revision" in said


def test_who_hands_in_and_a_few_words_are_needed(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(bundle)
    with pytest.raises(SystemExit, match="2"):
        main(["bundle", str(STUDY), "--submitter", "Somebody"])
    assert "--notes" in capsys.readouterr().err
    assert main(["bundle", str(STUDY), "--submitter", " ", "--notes", ""]) == 2
    said = capsys.readouterr().err
    assert "submitter: must not be empty" in said
    assert "notes: " in said
    assert main(["bundle", str(STUDY), "--submitter", "Somebody", "--notes", "a test"]) == 0
    assert capsys.readouterr().out == f"{bundle}\n"  # the same study gives the same bundle
    assert main(["bundle", str(STUDY), "--submitter", "Somebody", "--notes", "a test"]) == 2
    assert "is there already" in capsys.readouterr().err
