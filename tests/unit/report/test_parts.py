import json
from pathlib import Path
from typing import Any

NAMED = {"manifest.json", "plan.json", "setup_training.tex"}
"""Files that name the studies of a composite one."""


def contents(fake: Any, path: Path) -> bytes:
    """Return a file without the folder of the results, and the page without the sections that name
    studies."""
    text = (fake.study_dir / path).read_bytes().replace(str(fake.root).encode(), b"")
    for name in (b"setup", b"cost", b"reproduce") if path.name == "index.html" else ():
        before, section = text.split(b'<section id="%b"' % name)
        text = before + section.partition(b"</section>")[2]
    return text


def test_a_study_in_parts_has_the_results_of_the_whole(fake, fake_in_parts):
    assert len(fake_in_parts.plan.studies) == 3
    folders = (fake.study_dir, fake_in_parts.study_dir)
    files = ((path.relative_to(folder) for path in folder.rglob("[!.]*.*")) for folder in folders)
    whole, parts = ({path for path in found if path.suffix != ".pdf"} for found in files)
    assert whole == parts
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    assert [study["study"] for study in manifests[1].pop("studies")] == [
        "table1",
        "table2",
        "table7",
    ]
    assert len(manifests[0].pop("studies")) == 1
    assert len({manifest.pop("seal") for manifest in manifests}) == 2
    named = [
        {name for name in manifest.pop("sha256") if not name.endswith(".pdf")}
        for manifest in manifests
    ]
    assert named[0] == named[1]
    assert manifests[0] == manifests[1]
    same = {path for path in whole if path.name not in NAMED}
    assert {
        "results.csv",
        "tests.csv",
        "paired.csv",
        "table1.tex",
        "training.svg",
        "index.html",
    } <= {path.name for path in same}
    for path in same:
        assert contents(fake, path) == contents(fake_in_parts, path), path
