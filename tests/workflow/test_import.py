"""A workflow of somebody else imports this one, as docs/import.md says; and the layout that
catalogues look for."""

import re
import shutil

from finished import ROOT, read, write
from starts import jobs, snakemake

PAGE = (ROOT / "docs/import.md").read_text(encoding="utf-8")

(TRIGGERS,) = (
    ["--rerun-triggers", *line.split(", ")]
    for line in re.findall(r"^rerun-triggers: \[(.*)\]$", PAGE, re.MULTILINE)
)


def test_another_workflow_imports_this_one_and_uses_its_results(copy):
    """The rules have other names there, and templates, studies and plan are found from our
    folder."""
    settings = read(copy)
    table = (copy / "results/tiny/tables/table1.md").read_bytes()
    shutil.rmtree(copy / "results/tiny")  # each job runs, and finds in the runs what is done
    write(copy, {"bench": settings, "of_mine": 3}, "own.yaml")
    (importing,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    snakefile = copy / "Snakefile"
    snakefile.write_text(importing.replace("PATH_OF_THE_CLONE", str(ROOT)).replace("NAME", "tiny"))
    result = snakemake(copy, study="own.yaml", snakefile=str(snakefile))
    assert result.returncode == 0, result.stdout
    assert (copy / "mine.md").read_bytes() == table
    again = snakemake(copy, "-n", *TRIGGERS, study="own.yaml", snakefile=str(snakefile))
    assert not jobs(again)


def test_the_catalogue_finds_the_same_workflow(copy):
    assert (ROOT / ".snakemake-workflow-catalog.yml").is_file()
    assert (ROOT / "config" / "README.md").is_file()
    assert not jobs(snakemake(copy, "-n", snakefile=str(ROOT / "workflow" / "Snakefile")))


def test_jobs_that_see_no_common_folder_are_refused(tmp_path, tiny_study):
    write(tmp_path, tiny_study())
    result = snakemake(tmp_path, "-n", "--shared-fs-usage", "none")
    assert result.returncode != 0
    assert (
        "all jobs must see one folder `results`, on a shared file system: see docs/import.md"
        in result.stdout
    )
