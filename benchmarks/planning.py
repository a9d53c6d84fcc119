"""CPU time of a dry run of a study with many cells, beside that of a bare Snakefile with as many
jobs and markers.

    python benchmarks/planning.py [--cells 1008]

The bare Snakefile has rules of the same shape with a log, a benchmark and constants: no function
and no import. So what it takes is Snakemake's own. Both print their jobs, and both run once more
with `--quiet`.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from many_cells import N_SEEDS, plan_of

SNAKEFILE = Path(__file__).parents[1] / "Snakefile"
REPORTS = ("report", "track")
BARE = """
CELLS = {cells}
STAGES = ["test_loss", "embeddings", "downstream"]

rule all:
    input: "{last}.done"

rule prepare:
    output: "data.done"
    log: "logs/data.log"
    shell: "touch {{output}}"

rule train:
    input: ancient("data.done")
    output: "training/{{job}}.done"
    log: "logs/{{job}}.train.log"
    benchmark: "logs/{{job}}.train.tsv"
    resources: mem_mb=4000, runtime=60, gpu=0
    params: version=1
    shell: "touch {{output}}"
"""
STAGE = """
rule {stage}:
    input: ancient("data.done"), "training/{{batch}}.done"
    output: "evaluation/{{batch}}.{stage}.done"
    log: "logs/{{batch}}.{stage}.log"
    benchmark: "logs/{{batch}}.{stage}.tsv"
    resources: mem_mb=4000, runtime=60, gpu=0, turn=1
    params: stage="{stage}", settings="0123456789"
    shell: "touch {{output}}"
"""
REPORT = """
rule {report}:
    input: {inputs}
    output: "{report}.done"
    shell: "touch {{output}}"
"""
MARKERS = (
    'expand("evaluation/{cell}.{stage}.done", cell=CELLS, stage=STAGES),'
    ' expand("training/{cell}.done", cell=CELLS)'
)


def bare_snakefile(cells: list[str]) -> str:
    """Return a Snakefile with a job for each cell and stage; the reports have all markers
    as inputs, as ours do."""
    rules = [BARE.format(cells=cells, last=REPORTS[-1])]
    rules += [STAGE.format(stage=stage) for stage in ("test_loss", "embeddings", "downstream")]
    for report, before in zip(REPORTS, ("", *REPORTS), strict=False):
        inputs = [f'"{before}.done"'] if before else []
        rules.append(
            REPORT.format(
                report=report,
                inputs=", ".join([*inputs, MARKERS]),
            )
        )
    return "".join(rules)


def cpu_seconds(folder: Path, *arguments: str) -> float:
    """Return the CPU seconds of a dry run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        env=os.environ,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cells", type=int, default=1008)
    plan = plan_of(options.parse_args().cells)
    (study,) = plan.studies.values()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = study.model_dump(mode="json", exclude_unset=True)
        (folder / "study.yaml").write_text(yaml.safe_dump(settings))
        (folder / "bare.smk").write_text(bare_snakefile(list(plan.cells)))
        ours = ["--snakefile", str(SNAKEFILE), "--configfile", "study.yaml"]
        bare = ["--snakefile", "bare.smk", "--workflow-profile", "none"]
        print(
            f"{len(plan.cells)} cells, {N_SEEDS} seeds\n\n| | ours, CPU s | bare, CPU s"
            " |\n|---|---|---|"
        )
        for what, more in (("with the text of each job", []), ("--quiet", ["--quiet"])):
            print(
                f"| {what} | {cpu_seconds(folder, *ours, *more):.1f} |"
                f" {cpu_seconds(folder, *bare, *more):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
