"""Bundles of a tiny study that was trained for real: made, forged, checked, and shown on a page."""

import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.cli import main
from coupled_adam_bench.report import manifest
from coupled_adam_bench.report.contents import statistics_of
from coupled_adam_bench.report.make import Places, material_of
from coupled_adam_bench.report.manifest import manifest_of, write_manifest
from coupled_adam_bench.report.render import write_tables
from coupled_adam_bench.store.files import read_folder, read_json, write_json, write_sealed
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_registry import check as check_module
from coupled_adam_registry import form
from coupled_adam_registry.bundle import write_bundle
from coupled_adam_registry.check import _place_code, check
from coupled_adam_registry.form import BUNDLE, STATISTICS, name_of

ROOT = Path(__file__).parents[3]
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
    plan = load_plan(Path(PLAN[1]))
    cells = ["--cells", *plan.cells]
    assert main(["train", *PLAN, *cells]) == 0
    for stage in plan.studies["tiny"].stages:
        assert main([stage.command, *PLAN, *cells, "--done", f"{stage.name}.done"]) == 0
    report()


def report(results: Path | None = None) -> None:
    """Write what the command of this name does, but figures and page, which a bundle does not
    have."""
    plan, places = load_plan(Path(PLAN[1])), Places(ROOT / "templates", STUDY, results=results)
    material = material_of(plan, places)
    for statistic in statistics_of(plan):
        if statistic.file in STATISTICS:
            material.write(statistic)
    write_tables(material.study, STUDY / "tables", places.templates)
    write_manifest(manifest_of(plan, STUDY), STUDY)


def settings_of(tiny_study: Any, **changes: Any) -> dict[str, Any]:
    grid = tiny_study()["grid"][0] | {"tokens": [{"steps": 12}], "seeds": [1, 2], "table": "mine"}
    evaluation = {
        "word_similarity": "synthetic",
        "downstream": None,
    }  # to load lm-eval takes longer than all else
    tables = {
        "mine": {"title": "Mine", "columns": ["loss", "isotropy"], "comparison": "each_other"}
    }
    return tiny_study(
        grid=[grid | changes], tables=tables, evaluation=evaluation, stated="stated.yaml"
    )


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
    return check(REGISTRY, bundles, again, "auto", **{"run": run_here, **options})


def read_files(bundle: Path) -> dict[str, bytes]:
    return read_folder(bundle, form.MAX_BYTES, form.MAX_FILES)


def reseal(bundle: Path) -> Path:
    """Give a bundle the name that follows from its files, as a careful forger does."""
    return bundle.rename(bundle.with_name(name_of(read_files(bundle))))


def sum_of(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def edit_manifest(bundle: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the manifest of a bundle, and the studies beside it so that they follow, and seal
    it."""

    def edited(text: str) -> str:
        manifest = json.loads(text)
        edit(manifest)
        return json.dumps(manifest)

    change(bundle, "manifest.json", edited)
    manifest = json.loads(gzip.decompress((bundle / "manifest.json.gz").read_bytes()))
    for study in manifest["studies"]:
        (bundle / f"{study['study']}.yaml").write_text(
            yaml.safe_dump(study, sort_keys=False, width=100)
        )
    return reseal(bundle)


def change(bundle: Path, name: str, edit: Callable[[str], str]) -> None:
    """Change the text of a file of a bundle, which may be packed."""
    packed = bundle / f"{name}.gz"
    if packed.is_file():
        packed.write_bytes(
            gzip.compress(edit(gzip.decompress(packed.read_bytes()).decode()).encode())
        )
    else:
        (bundle / name).write_text(edit((bundle / name).read_text()))


def refused(capsys: pytest.CaptureFixture[str], *bundles: Path, **options: Any) -> str:
    """Return why bundles are refused."""
    capsys.readouterr()
    assert checked(*bundles, **options) == 1
    return capsys.readouterr().out


def test_a_bundle_is_small_and_says_what_it_is(bundle):
    values = read_json(bundle / BUNDLE)
    assert (values["submitter"], values["notes"], values["reproduces"]) == (
        "Somebody",
        "a test",
        None,
    )
    plan = load_plan(Path(PLAN[1]))
    assert set(values["histories"]) == set(plan.cells)
    assert values["data"] == {plan.data_ids[0]: {}}  # the generated language comes from no file
    assert sum(path.stat().st_size for path in bundle.iterdir()) < 60_000
    assert set(read_files(bundle)) == {
        BUNDLE,
        "tiny.yaml",
        "manifest.json.gz",
        "results.csv.gz",
        "tests.csv",
        "stated.csv",
        "stated.yaml",
    }
    lines = subprocess.run(
        "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum",
        shell=True,
        cwd=bundle,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert lines.split()[0] == bundle.name


def test_a_whole_bundle_passes_and_its_cells_come_out_again(bundle, capsys):
    shutil.rmtree("results")  # as on another machine
    assert checked() == 0
    assert capsys.readouterr().out == f"{bundle.name}: recomputed\n"
    assert checked(again=1) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{bundle.name}: recomputed\nnano_")
    assert said.count(": reproduced bit for bit\n") == 1


def test_a_changed_file_is_refused(bundle, capsys):
    change(bundle, "tests.csv", lambda text: text.replace("coupled_adam", "adamw"))
    said = refused(capsys)
    assert f"{bundle.name}: a file was added, removed or changed after the bundle was made" in said
    assert "put the bundle back as it was, or make another from the study" in said
    (bundle / "tests.csv").unlink()
    assert f"{bundle.name}: a file was added, removed or changed" in refused(capsys)


def test_an_added_file_is_refused(bundle, capsys):
    (bundle / ".extra").write_text("x")
    assert f"{bundle.name}: a file was added, removed or changed" in refused(capsys)
    (bundle / ".extra").write_bytes(bytes(1_000_000))
    assert "too large; allowed are 1,000,000 bytes in 1,000 files" in refused(capsys)


def test_a_changed_description_is_refused(bundle, capsys):
    write_json(bundle / BUNDLE, read_json(bundle / BUNDLE) | {"submitter": "Another"})
    assert f"{bundle.name}: a file was added, removed or changed" in refused(capsys)
    write_json(bundle / BUNDLE, read_json(bundle / BUNDLE) | {"submitter": "", "more": 1})
    said = refused(capsys)
    assert "submitter: must not be empty" in said
    assert "more: unknown key" in said


def forge(text: str, by: float = 0.5) -> str:
    """Make the loss of one cell smaller."""
    lines = text.splitlines(keepends=True)
    place = next(
        number for number, line in enumerate(lines) if ",coupled_adam,1,test,loss," in line
    )
    value = lines[place].split(",")[7]
    lines[place] = lines[place].replace(value, repr(float(value) - by))
    return "".join(lines)


def test_a_forged_number_is_refused_however_far_it_was_carried(bundle, capsys):
    change(bundle, "results.csv", forge)
    assert f"{bundle.name}: a file was added, removed or changed" in refused(capsys)
    bundle = reseal(bundle)
    assert "results.csv: changed since the manifest was written" in refused(capsys)
    manifest = json.loads(gzip.decompress((bundle / "manifest.json.gz").read_bytes()))
    results = Path("forged.csv")
    results.write_bytes(gzip.decompress((bundle / "results.csv.gz").read_bytes()))
    manifest["sha256"]["results.csv"] = sum_of(results.read_bytes())
    change(bundle, "manifest.json", lambda text: json.dumps(manifest))
    bundle = reseal(bundle)
    said = refused(capsys)
    assert (
        'stated.csv: DataFrame.iloc[:, 12] (column name="difference") are different: At positional'
        " index 0" in said
    )
    assert (
        "which follows from the study and its results; run `report` on the unchanged results"
        in said
    )


@pytest.mark.parametrize(
    ("factor", "same"), [(1 + 4e-16, True), (1 - 1e-14, True), (1 + 1e-9, False)]
)
def test_a_statistic_may_be_off_by_the_rounding_of_another_processor(bundle, capsys, factor, same):
    header, *lines = (bundle / "stated.csv").read_text().splitlines()
    place = header.split(",").index("difference")
    fields = lines[0].split(",")
    fields[place] = repr(float(fields[place]) * factor)
    change(bundle, "stated.csv", lambda _: "\n".join([header, ",".join(fields), *lines[1:]]) + "\n")
    reseal(bundle)
    if same:
        assert checked() == 0
    else:
        assert (
            'stated.csv: DataFrame.iloc[:, 12] (column name="difference") are different: '
            in refused(capsys)
        )


def test_a_statistic_may_lack_no_line(bundle, capsys):
    change(bundle, "tests.csv", lambda text: "".join(text.splitlines(keepends=True)[:-1]))
    reseal(bundle)
    assert "tests.csv: DataFrame are different: " in refused(capsys)


def test_a_number_that_was_forged_before_the_report_does_not_come_out_again(bundle, capsys):
    shutil.rmtree(bundle)
    results = STUDY / "results.csv"
    results.write_text(forge(results.read_text()))
    report(results)
    forged = write_bundle(
        STUDY, REGISTRY, "Somebody", "all sums, tests and tables are those of the forged number"
    )
    assert checked() == 0  # nothing contradicts it but the training
    said = refused(capsys, forged, again=4)
    assert "results.csv: value: not what training again gives; run the study anew" in said
    assert "too far: test loss: " in said


def test_a_dropped_seed_is_refused(bundle, capsys):
    """From the results, and from the manifest too."""
    shutil.rmtree(bundle)
    results = STUDY / "results.csv"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if ",coupled_adam,2," not in line))
    with pytest.raises(ValueError, match=r"results\.csv: changed since the manifest was written"):
        write_bundle(STUDY, REGISTRY, "Somebody", "a seed less")
    manifest = read_json(STUDY / "manifest.json")
    manifest["sha256"]["results.csv"] = sum_of((STUDY / "results.csv").read_bytes())
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(
        ValueError,
        match=(
            r"results\.csv: no embeddings effective_rank of nano_.*_coupled_adam_s2_.*; no seed or"
            r" number may be"
        ),
    ):
        write_bundle(STUDY, REGISTRY, "Somebody", "a seed less")
    manifest["cells"] = [
        cell for cell in manifest["cells"] if "_coupled_adam_s2_" not in cell["cell"]
    ]
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(
        ValueError,
        match=(
            r"cells of manifest\.json: nano_.*_coupled_adam_s2_.* is missing, allowed are .*may be"
            r" left out"
        ),
    ):
        write_bundle(STUDY, REGISTRY, "Somebody", "a seed less")
    assert not list(REGISTRY.iterdir())  # nothing is left behind


def test_a_grid_that_was_widened_after_the_results_is_refused(bundle, capsys):
    wider = yaml.safe_load((bundle / "tiny.yaml").read_text())
    wider["grid"][0]["seeds"] = [1, 2, 3]
    change(bundle, "tiny.yaml", lambda text: yaml.safe_dump(wider))
    bundle = reseal(bundle)
    assert "tiny.yaml: its settings are not those of manifest.json, with which" in refused(capsys)
    edit_manifest(
        bundle, lambda manifest: manifest["studies"][0]["grid"][0].update(seeds=[1, 2, 3])
    )
    assert "_s3_" in (said := refused(capsys))
    assert (
        "to which tiny.yaml expands, is missing, allowed are completed and diverged; no seed,"
        " size or" in said
    )


def settings_that_went(manifest: dict[str, Any]) -> None:
    """Give a manifest settings that this version does not have, and a stage that it leaves out."""
    (study,) = manifest["studies"]
    for section in ("data", "training", "evaluation", "execution"):
        study[section]["gone"] = None
    manifest["protocol"]["versions"]["gone"] = 1


def test_a_comment_an_order_and_a_setting_that_went_make_no_other_study(bundle):
    bundle = edit_manifest(bundle, settings_that_went)
    settings = yaml.safe_load((bundle / "tiny.yaml").read_text())
    assert "gone" in settings["evaluation"]
    turned = yaml.safe_dump(dict(reversed(settings.items())), sort_keys=False)
    change(bundle, "tiny.yaml", lambda _: f"# A comment.\n{turned}")
    reseal(bundle)
    assert checked() == 0


def test_a_stage_that_went_and_was_used_is_refused(bundle, capsys):
    def used(manifest: dict[str, Any]) -> None:
        settings_that_went(manifest)
        manifest["studies"][0]["evaluation"]["gone"] = {}

    edit_manifest(bundle, used)
    assert "versions of manifest.json: gone have other versions here" in refused(capsys)


def test_a_stage_that_has_come_since_could_not_be_used(bundle, monkeypatch):
    later = replace(STAGES["downstream"], name="later")
    versions = manifest.protocol_versions() | {"later": 1}
    monkeypatch.setattr(check_module, "STAGES", STAGES | {"later": later})
    monkeypatch.setattr(manifest, "protocol_versions", lambda: versions)
    assert checked() == 0


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("training", "warmup_steps", 1), ("evaluation", "isotropy", "eig_float32")],
)
def test_a_value_that_was_changed_in_the_study_alone_is_refused(
    bundle, capsys, section, name, value
):
    settings = yaml.safe_load((bundle / "tiny.yaml").read_text())
    assert settings[section][name] != value
    settings[section][name] = value
    change(bundle, "tiny.yaml", lambda _: yaml.safe_dump(settings, sort_keys=False))
    reseal(bundle)
    assert "tiny.yaml: its settings are not those of manifest.json" in refused(capsys)


def test_a_study_that_grows_when_it_is_read_is_refused(bundle, capsys):
    change(bundle, "tiny.yaml", lambda text: f"{text}a: &a [x, x]\nb: [*a, *a]\n")
    reseal(bundle)
    assert "tiny.yaml: has an alias of YAML; write its value out" in refused(capsys)


def test_a_run_that_did_not_end_is_no_result(bundle):
    manifest = read_json(STUDY / "manifest.json")
    manifest["cells"][0] |= {"status": "not trained", "reason": "no run.json"}
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(
        ValueError, match=r"expands, is not trained, allowed are completed and diverged"
    ):
        write_bundle(STUDY, REGISTRY, "Somebody", "unfinished")


def test_another_stated_plan_than_that_of_the_study_is_refused(bundle, capsys):
    change(
        bundle,
        "stated.yaml",
        lambda text: text.replace(
            "better: coupled_adam, than: adamw", "better: adamw, than: coupled_adam"
        ),
    )
    reseal(bundle)
    assert "stated.yaml: not the stated plan of the study; put back " in refused(capsys)
    Path("stated.yaml").unlink()
    with pytest.raises(
        ValueError, match=r"stated\.yaml: not what the study ran with; put that back"
    ):
        write_bundle(STUDY, REGISTRY, "Somebody", "without its plan")


FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "the number of tokens of the text": (
        lambda study: study["data"]["source"].update(n_tokens=10**15),
        "this id does not follow from these files and from the settings `data` of tiny",
    ),
    "the seed of the text": (
        lambda study: study["data"]["source"].update(seed=7),
        "this id does not follow from these files",
    ),
    "the split": (
        lambda study: study["data"]["split"].update(test_fraction=0.2),
        "this id does not follow from these files",
    ),
    "a grid that is too large": (
        lambda study: study["grid"][0].update(seeds=list(range(30_000))),
        "60,000 cells and candidates, allowed 20,000",
    ),
    "the key of a built-in optimizer": (
        lambda study: study["grid"][0]["optimizers"].append(
            {"name": "custom", "path": "a.B", "key": "adamw", "label": "x"}
        ),
        "key: 'adamw' is a name of the built-in optimizer adamw",
    ),
}


@pytest.mark.fault(
    "results",
    "A bundle of another's results has settings that its cells were not trained with, and all its"
    " sums are right.",
    "`registry check` refuses it and names the field.",
)
@pytest.mark.parametrize(("edit", "message"), FORGED.values(), ids=FORGED)
def test_settings_follow_from_the_ids(
    bundle,
    capsys,
    edit,
    message,
):
    edit_manifest(bundle, lambda manifest: edit(manifest["studies"][0]))
    assert message in refused(capsys)


@pytest.mark.fault(
    "results",
    "A bundle has links, pipes, files that its form does not name, or a file that unpacks to more"
    " than 50 MB.",
    "`registry check` refuses it before it opens them, and goes on with the other bundles.",
)
@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda bundle: (bundle / "code").symlink_to("/"), "/code: a link, a pipe or a device"),
        (lambda bundle: (bundle / "x").symlink_to("tests.csv"), "/x: a link, a pipe or a device"),
        (lambda bundle: os.mkfifo(bundle / "x"), "/x: a link, a pipe or a device"),
        (
            lambda bundle: (bundle / "gmpy2.py").write_text(""),
            "/gmpy2.py: is no file of this bundle; remove it",
        ),
        (
            lambda bundle: (bundle / "tiny.yaml").unlink(),
            "/tiny.yaml: is missing; make the bundle again",
        ),
        (
            lambda bundle: (bundle / "results.csv.gz").write_bytes(
                gzip.compress(bytes(60_000_000))
            ),
            "/results.csv.gz: unpacks to more than 50,000,000 bytes",
        ),
        (
            lambda bundle: (bundle / "results.csv.gz").write_bytes(b"x"),
            "/results.csv.gz: no whole gzip file",
        ),
        (
            lambda bundle: (bundle / "manifest.json.gz").write_bytes(gzip.compress(b"[1]")),
            "cannot be read (TypeError(",
        ),
        (
            lambda bundle: (bundle / BUNDLE).write_bytes(b"[" * 100_000),
            "cannot be read (RecursionError(",
        ),
    ],
)
def test_what_no_bundle_has_is_refused_one_bundle_at_a_time(bundle, capsys, put, message):
    other = REGISTRY / "000"
    shutil.copytree(bundle, other)
    put(other)
    with contextlib.suppress(ValueError, RecursionError):
        other = reseal(other)
    said = refused(capsys)
    assert said.startswith(f"{bundle.name}: recomputed\nREFUSED: {REGISTRY}/")
    assert message in said
    assert said.count("\n") == 2


def test_a_bundle_that_is_a_link_is_refused(bundle, capsys):
    shutil.move(bundle, "elsewhere")
    bundle.symlink_to(Path("elsewhere").absolute())
    assert f"{bundle}: no folder, or a link to one" in refused(capsys)


def test_a_stated_plan_that_grows_when_it_is_read_is_refused(bundle, capsys):
    text = "a: &a [x, x]\nb: [*a, *a]\n"
    (bundle / "stated.yaml").write_text(text)
    edit_manifest(bundle, lambda manifest: manifest["stated"].update(sha256=sum_of(text.encode())))
    assert "stated.yaml: has an alias of YAML; write its value out" in refused(capsys)


VALUES = {
    "a loss below 0": ("loss", lambda _: "-0.5", {}, "test loss of nano_.* cannot be -0.5"),
    "an isotropy above 1": (
        "isotropy",
        lambda _: "1.5",
        {},
        "embeddings isotropy of nano_.* cannot be 1.5",
    ),
    "a bad seed without its loss": (
        "loss",
        lambda _: "NaN",
        {},
        "which is completed, cannot be nan",
    ),
    "a bad seed that diverged": (
        "loss",
        lambda _: "NaN",
        {"status": "diverged"},
        "status diverged, but it has a model of step 12 of 12",
    ),
    "one that diverged with numbers": (
        "loss",
        str,
        {"status": "diverged", "model_sha256": None},
        "which is diverged, cannot be ",
    ),
    "one that was not trained to its end": (
        "loss",
        str,
        {"step": 6},
        "but it has a model of step 6 of 12",
    ),
}


@pytest.mark.fault(
    "results",
    "A bundle has values that its metric cannot have, or a bad seed of it lost its loss or is"
    " called diverged.",
    "`registry check` refuses it and names the cell.",
)
@pytest.mark.parametrize(("metric", "value", "record", "message"), VALUES.values(), ids=VALUES)
def test_values_are_those_that_a_run_can_have(bundle, metric, value, record, message):
    shutil.rmtree(bundle)
    results, manifest = STUDY / "results.csv", read_json(STUDY / "manifest.json")
    lines = results.read_text().splitlines(keepends=True)
    place = next(
        n for n, line in enumerate(lines) if ",coupled_adam,1," in line and f",{metric}," in line
    )
    fields = lines[place].split(",")
    lines[place] = ",".join([*fields[:7], value(fields[7]), *fields[8:]])
    results.write_text("".join(lines))
    cell = next(one for one in manifest["cells"] if "_coupled_adam_s1_" in one["cell"])
    cell |= record
    manifest["sha256"]["results.csv"] = sum_of(results.read_bytes())
    write_json(STUDY / "manifest.json", manifest)
    with pytest.raises(ValueError, match=message):
        write_bundle(STUDY, REGISTRY, "Somebody", "forged")


def repeat(
    submitter: str, original: str | None, loss: float = 0.0, histories: str = "ab" * 32
) -> Path:
    """Hand the study in as somebody who trained it again, with another loss of one cell and other
    histories."""
    results = STUDY / "results.csv"
    before = results.read_text()
    if loss:
        results.write_text(forge(before, by=loss))
        report(results)
    values = [read_json(path) for path in Path("results/runs").glob("*/run.json")]
    for run in values:
        history = run | {"history_sha256": histories}
        write_sealed(
            Path("results/runs") / run["cell"] / "run.json",
            {k: v for k, v in history.items() if k != "sha256"},
        )
    try:
        return write_bundle(STUDY, REGISTRY, submitter, "again", original)
    finally:
        if loss:
            results.write_text(before)
            report(results)


def page() -> str:
    main(["registry", "page", "--out", "page.html", *TEMPLATES])
    return Path("page.html").read_text()


def marks_of(label: str) -> str:
    (line,) = (line for line in re.findall(r"<tr>.*?</tr>", page()) if f">{label}</th>" in line)
    return line


def test_a_copy_is_nobodys_witness(bundle):
    with pytest.raises(
        ValueError,
        match=r"reproduces: nano_.* has the history of .*: this is a copy, train it again",
    ):
        write_bundle(STUDY, REGISTRY, "Another", "a copy", bundle.name)
    with pytest.raises(
        ValueError,
        match=r"reproduces: registry/0{64} is no bundle; name one that is in the registry",
    ):
        write_bundle(STUDY, REGISTRY, "Another", "of nothing", "0" * 64)


def test_others_runs_of_the_same_cells_are_a_mark(bundle):
    same = repeat("Another", bundle.name)
    repeat(
        "Somebody", bundle.name, histories="cd" * 32
    )  # who repeats their own results is no other witness
    line = marks_of("Coupled Adam")
    assert f'run again by Another (<a href="registry/{same.name}/bundle.json"' in line
    assert "again by Somebody" not in line
    assert checked() == 0


@pytest.mark.fault(
    "results",
    "A second bundle with the same cells and better numbers has a name that sorts first.",
    "The page has no numbers in that row, or those that somebody ran again, and shows the others"
    " beside them.",
)
def test_a_disagreement_is_shown_and_not_decided_by_a_name(bundle):
    better = repeat("Forger", None, loss=1.0)
    line = marks_of("Coupled Adam")
    assert re.findall(r"<td[^>]*>(-)</td>", line)[:2] == ["-", "-"]  # neither rank nor loss
    assert (
        line.count("loss ") == 2 == line.count("isotropy 0.")
        and f'{better.name}/bundle.json"' in line
    )
    repeat("Another", bundle.name, histories="cd" * 32)
    line = marks_of("Coupled Adam")
    assert "run again by Another" in line
    assert line.count("loss ") == 1 and f'{better.name}/bundle.json"' in line
    assert not re.findall(r"<td[^>]*>(-)</td>", line)[1:]  # only a speedup is not there


def test_results_of_other_mathematics_are_refused_and_not_shown(bundle, capsys):
    now = edit_manifest(
        bundle, lambda manifest: manifest["protocol"]["versions"].update(statistics=1)
    )
    # As long as all numbers are the same, another version is no matter.
    assert checked() == 0
    tests = (now / "tests.csv").read_text()
    number = re.search(r"-?0\.\d{6,}", tests)
    assert number is not None
    change(now, "tests.csv", lambda text: text.replace(number[0], "0.5", 1))
    reseal(now)
    said = refused(capsys)
    assert (
        "versions of manifest.json: statistics have other versions here, so it cannot be"
        " recomputed; revision" in said
    )
    assert main(["registry", "page", "--out", "page.html", *TEMPLATES]) == 1
    assert capsys.readouterr().out.startswith("LEFT OUT: registry/")
    assert "0 bundles with 0 cells" in Path("page.html").read_text()


@pytest.fixture(scope="session")
def tuned_bundle() -> Path:
    """The bundle of the study `english`, which has trials."""
    (found,) = ROOT.glob("*/english/bundle")
    return found


def test_a_choice_follows_from_the_losses_of_its_trial(
    tuned_bundle,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.chdir(tmp_path)
    bundle = REGISTRY / name_of(read_files(tuned_bundle))
    shutil.copytree(tuned_bundle, bundle)
    lines = (bundle / "tuning.csv").read_text().splitlines(keepends=True)
    taken = next(number for number, line in enumerate(lines) if line.rstrip().endswith("True"))
    loss = lines[taken].split(",")[-4]
    change(bundle, "tuning.csv", lambda text: text.replace(loss, repr(float(loss) + 1)))
    bundle = reseal(bundle)
    assert re.search(
        r"by these losses candidate \d is chosen, but the cells have the settings of candidate",
        refused(capsys),
    )
    change(bundle, "tuning.csv", lambda text: text.replace(repr(float(loss) + 1), "NaN"))
    bundle = reseal(bundle)
    assert "val_loss: nan of gpt2-2x128_" in refused(capsys)
    (bundle / "tuning.csv").unlink()
    reseal(bundle)
    assert "tuning.csv: is missing; make the bundle again" in refused(capsys)


OWN = """
from pathlib import Path

from torch.optim import SGD

Path(__file__).with_suffix(".was_imported").touch()


class Mine(SGD):
    pass
"""


@pytest.fixture
def own_bundle(tmp_path: Path, tiny_study: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle of a study with an own optimizer, whose module leaves a file where it is
    imported."""
    monkeypatch.chdir(tmp_path)
    Path("own_for_registry.py").write_text(OWN)
    own = {
        "name": "custom",
        "path": "own_for_registry.Mine",
        "key": "mine",
        "label": "Mine",
        "lr_factor": 5.0,
    }
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        run_study(settings_of(tiny_study, optimizers=["adamw", own]) | {"stated": None})
        bundle = write_bundle(STUDY, REGISTRY, "Somebody", "an own optimizer")
    Path("own_for_registry.py").unlink()
    Path("own_for_registry.was_imported").unlink()
    shutil.rmtree("results")
    sys.modules.pop("own_for_registry", None)
    return bundle


@pytest.mark.fault(
    "results",
    "A bundle brings code.",
    "`registry check` imports none of it; with `--again` the modules of drawn cells alone, from a"
    " new folder.",
)
def test_code_of_a_bundle_is_imported_only_to_train_again(own_bundle, capsys, monkeypatch):
    assert (own_bundle / "code" / "own_for_registry.py").read_text() == OWN
    assert checked() == 0
    assert page()
    assert "own_for_registry" not in sys.modules
    places: list[list[str]] = []

    def run(command: list[str], threads: int) -> int:
        code = Path(os.environ["PYTHONPATH"])
        places.append(sorted(path.name for path in code.iterdir()))
        monkeypatch.syspath_prepend(str(code))
        return main(command)

    capsys.readouterr()
    assert checked(own_bundle, again=4, run=run) == 0
    assert capsys.readouterr().out.count("reproduced bit for bit") == 4
    assert places[0] == ["own_for_registry.py"]
    assert Path(sys.modules.pop("own_for_registry").__file__ or "").parent.name == "code"
    assert not list(Path().rglob("*.was_imported"))
    change(own_bundle, "code/own_for_registry.py", lambda text: text + "# other\n")
    reseal(own_bundle)
    assert "code/own_for_registry.py: not the code of manifest.json" in refused(capsys)


def test_no_module_of_a_bundle_takes_the_place_of_another(own_bundle, capsys, monkeypatch):
    monkeypatch.setattr(
        check_module,
        "packages_distributions",
        lambda: {"own_for_registry": ["a package of that name"]},
    )
    assert (
        "code of manifest.json: own_for_registry is the name of a module here; rename it"
        in refused(capsys)
    )


def test_a_bundle_without_code_looks_for_no_module(bundle, monkeypatch):
    monkeypatch.delattr(check_module, "packages_distributions")
    assert checked(bundle) == 0


def test_a_package_is_put_where_it_is_imported_from(tmp_path):
    modules = ["mine", "mine.sub", "alone"]
    opened = form.Opened(
        tmp_path, tmp_path.name, {form.code_file(name): name.encode() for name in modules}, None
    )  # type: ignore[arg-type]
    _place_code(opened, modules, tmp_path / "code")
    found = {
        path.relative_to(tmp_path / "code").as_posix(): path.read_text()
        for path in tmp_path.rglob("*.py")
    }
    assert found == {"mine/__init__.py": "mine", "mine/sub.py": "mine.sub", "alone.py": "alone"}


def test_who_hands_in_and_a_few_words_are_needed(bundle, capsys):
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


@pytest.mark.fault(
    "results",
    "A bundle of a generated text says other sums of its tokens than this text can have.",
    "`registry check --again` refuses it.",
)
def test_a_generated_text_has_one_token_stream(bundle, capsys):
    def zeros(manifest: dict[str, Any]) -> None:
        for cell in manifest["cells"]:
            cell["data_sha256"] = dict.fromkeys(cell["data_sha256"], "0" * 64)

    edit_manifest(bundle, zeros)
    shutil.rmtree("results")
    assert checked() == 0
    said = refused(capsys, again=1)
    assert "the tokens are not those of the manifest, and a generated text has no others" in said
    assert "REFUSED: " in said


@pytest.mark.fault(
    "results",
    "Whoever hands a bundle in says that its cells took a GPU, or they cannot be trained here.",
    "`registry check --again` says that it does not know, with exit status 3.",
)
@pytest.mark.parametrize("reason", ["gpus", "no memory"])
def test_not_to_know_is_no_success(bundle, reason, capsys):
    def with_gpus(manifest: dict[str, Any]) -> None:
        manifest["studies"][0]["execution"]["gpus"] = 1

    run = run_here
    if reason == "gpus":
        bundle = edit_manifest(bundle, with_gpus)
    else:
        run = lambda command, threads: 137  # noqa: E731
        shutil.rmtree("results")
    assert checked() == 0
    capsys.readouterr()
    assert checked(again=2, run=run) == 3
    said = capsys.readouterr().out
    n_left, n_open = (4, "0 of the 0") if reason == "gpus" else (0, "2 of the 2")
    assert f"NOT CHECKED: {bundle}: {n_left} of 4 cells take a GPU or more than 1e+13 FLOPs" in said
    assert f"{n_open} that were drawn could not be trained" in said


@pytest.mark.fault(
    "results",
    "Strangers hand in invented numbers of cells that the project itself has, and repeat each"
    " other's.",
    "The row keeps the project's numbers, with those of the strangers behind them.",
)
def test_the_projects_own_bundle_keeps_its_row(bundle):
    printed = re.findall(r"<td[^>]*>(.*?)</td>", marks_of("Coupled Adam"))[1]
    forged = repeat("Forger", None, loss=1.0)
    repeat("Another", forged.name, loss=1.0, histories="cd" * 32)
    assert re.findall(r"<td[^>]*>(.*?)</td>", marks_of("Coupled Adam"))[1] != printed
    (REGISTRY / "own.txt").write_text(f"{bundle.name}\n")
    line = marks_of("Coupled Adam")
    assert re.findall(r"<td[^>]*>(.*?)</td>", line)[1] == printed
    assert "of this project" in line
    assert f'{forged.name}/bundle.json"' in line
    (REGISTRY / "own.txt").write_text("0" * 64)
    with pytest.raises(ValueError, match=r"own\.txt: 0{64} is no bundle of registry; take it out"):
        checked()


def test_the_own_bundles_of_this_registry_are_there():
    registry = ROOT / "registry"
    ours = set()
    # Handed in, of a study of the book, and of an example.
    for place in ("registry/*", "*/*/bundle", "docs/examples/*/bundle"):
        for file in ROOT.glob(f"{place}/bundle.json"):
            if read_json(file)["submitter"] == "Coupled Adam Bench":
                ours.add(file.parent)
    assert ours == {*form.own_bundles(registry).values()}
    assert len(ours) == 6


def test_an_own_bundle_may_lie_elsewhere_under_the_name_that_is_listed(bundle, capsys):
    own, elsewhere = REGISTRY / "own.txt", Path("book/study/bundle")
    elsewhere.parent.mkdir(parents=True)
    bundle.rename(elsewhere)
    assert refused(capsys, elsewhere).count("their sums give the name") == 1  # nobody listed it
    own.write_text(f"{bundle.name}  ../{elsewhere}\n")
    assert checked() == 0
    assert checked(elsewhere) == 0
    assert f"{elsewhere}: recomputed" in capsys.readouterr().out
    line = marks_of("Coupled Adam")
    assert "of this project" in line
    assert f'<a href="{elsewhere}/bundle.json"' in line
    with pytest.raises(ValueError, match=f"{elsewhere}: is there already"):
        write_bundle(STUDY, REGISTRY, "Somebody", "a test")
    same = repeat("Another", bundle.name)
    assert f'run again by Another (<a href="registry/{same.name}/bundle.json"' in marks_of(
        "Coupled Adam"
    )
    change(elsewhere, "tests.csv", lambda text: text + "\n")
    assert "a file was added, removed or changed after the bundle was made" in refused(capsys)
    own.write_text(f"{bundle.name}  ../nowhere\n")
    with pytest.raises(ValueError, match=r"own\.txt: .* is no bundle of registry; take it out"):
        checked()


@pytest.mark.fault(
    "results",
    "A bundle says that its plan was seen at a time that is none, or in the words of a page.",
    "It is refused, and the page calls all such times the submitter's word.",
)
@pytest.mark.parametrize("at", ["<b>long ago</b>", "2026-11-24", 1764000000])
def test_times_of_a_stated_plan_are_times(bundle, at, capsys):
    assert "by the submitter&#39;s word, " in page()

    def seen(manifest: dict[str, Any]) -> None:
        manifest["stated"]["seen"] = [
            {"at": at, "sha256": "0" * 64, "cells": {}, "begun": [], "n_cells": 4}
        ]

    bundle = edit_manifest(bundle, seen)
    said = refused(capsys)
    assert f"{bundle}/manifest.json: stated: 1 invalid setting(s)" in said
    assert "seen.0.at: must be " in said


def test_a_refusal_names_no_folder_that_is_gone(bundle, capsys):
    shutil.rmtree(bundle)
    results = STUDY / "results.csv"
    results.write_text(forge(results.read_text()))
    with pytest.raises(ValueError, match="changed since the manifest was written") as raised:
        write_bundle(STUDY, REGISTRY, "Somebody", "a test")
    assert ".bundle-" not in str(raised.value)
    assert "coupled-adam-bench-" not in str(raised.value)


def test_no_templates_are_needed_to_check(bundle, capsys):
    assert not Path("templates").exists()
    assert main(["registry", "check", str(bundle)]) == 0
    assert main(["registry", "page", "--templates", "nowhere"]) == 2
    assert "error: --templates: no folder 'nowhere'; a clone" in capsys.readouterr().err
    assert main(["registry", "page", *TEMPLATES]) == 0


@pytest.mark.fault(
    "results",
    "A study of a bundle is 64,000 brackets, of which each takes longer to read than the last.",
    "It is refused after the first fifty.",
)
def test_brackets_without_end_are_refused_at_once(bundle, capsys):
    change(bundle, "tiny.yaml", lambda _: "[" * 64_000)
    bundle = reseal(bundle)
    started = time.process_time()
    assert f"{bundle}/tiny.yaml: more than 50 levels, which no study has" in refused(capsys)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "results.csv", "run.json"])
def test_a_pipe_is_no_file_of_a_study(bundle, name):
    folder = next(Path("results/runs").iterdir()) if name == "run.json" else STUDY
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name}: (a pipe stands where a file|missing)"):
        write_bundle(STUDY, REGISTRY, "Somebody", "a test")
