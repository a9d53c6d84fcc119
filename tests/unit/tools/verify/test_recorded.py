"""What a manifest records is read by later versions, too."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.tools.verify.recorded import known_settings

ROOT = Path(__file__).parents[4]
MANIFESTS = sorted(
    path
    for folder in ("docs/examples", "registry", "research")
    for path in (ROOT / folder).rglob("manifest.json*")
)


@pytest.mark.fault(
    "settings",
    "A manifest has settings that sections of this version no longer have.",
    "They are left out wherever they stand, and the rest is read as it is.",
)
def test_settings_that_sections_no_longer_have_are_left_out(tiny_study: Any) -> None:
    now = tiny_study()
    then = json.loads(json.dumps(now))
    then["grid"][0]["data_seeds"] = None
    then["evaluation"]["theory"] = {}
    then["data"]["source"]["gone"] = 1
    then["tables"] = {"table1": {"title": "One", "min_seeds": None}}
    then["gone"] = {}
    assert known_settings(then) == now | {"tables": {"table1": {"title": "One"}}, "gone": {}}
    assert then["grid"][0]["data_seeds"] is None
    assert known_settings("no study") == "no study"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.parent.name)
def test_all_manifests_that_come_along_can_be_read(path: Path) -> None:
    written = path.read_bytes()
    manifest = json.loads(gzip.decompress(written) if path.suffix == ".gz" else written)
    for study in manifest["studies"]:
        files = {"paths": {"text": ["text"], "tokenizer": "tokenizer.json"}}
        assert parse_study(known_settings(study) | files).name == study["study"]
