import json
from typing import Any


def test_a_study_in_parts_has_the_results_of_the_whole(fake: Any, fake_in_parts: Any) -> None:
    assert len(fake_in_parts.plan.studies) == 3
    folders = (fake.study_dir, fake_in_parts.study_dir)
    whole, parts = ({path.relative_to(folder) for path in folder.rglob("*.*")} for folder in folders)
    assert whole == parts
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    assert [study["study"] for study in manifests[1].pop("studies")] == ["table1", "table2", "table7"]
    assert len(manifests[0].pop("studies")) == 1
    assert manifests[0] == manifests[1]
    same = {path for path in whole if path.name not in ("manifest.json", "plan.json")}
    assert len(same) == 2 + 6 + 12 + 1  # results and tests, tables, figures, the report
    for path in same:
        assert (folders[0] / path).read_bytes() == (folders[1] / path).read_bytes(), path
