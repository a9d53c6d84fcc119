"""Datasets of the hub, read by the hub's own libraries from a server on this machine that speaks
its protocol."""

import gzip
import hashlib
import json
import re
import shutil
import signal
import subprocess
import time
from typing import Any

import hub_server
import pytest
from forks import python
from hub_server import TEXTS, Fault, Here, HubServer, four_files, small_disk

from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.study.catalogue.presets import HUB_PLACES

SMALL_PARTS = "from coupled_adam_bench.data import prepare; prepare.SHARD_CHARACTERS = 2000"
CARD = b"""---
configs:
- config_name: en
  data_files: en/*.json.gz
- config_name: de
  data_files: de/*.json.gz
---
"""


@pytest.fixture(autouse=True)
def _small_parts(here: Here) -> None:
    here.first = SMALL_PARTS


def data(here: Here) -> Any:
    (folder,) = (here.folder / "results" / "data").iterdir()
    return folder


def bins(here: Here) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(data(here).glob("*.bin"))}


def meta(here: Here) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((data(here) / "meta.json").read_text())
    return values


def lose(here: Here) -> None:
    """Have the next preparation make the data again."""
    (data(here) / "meta.json").unlink()


def test_parquet_on_the_main_branch_under_a_new_name(hub: HubServer, here: Here) -> None:
    commit = hub.add("datasets/org/new", four_files())
    hub.moved["datasets/org/old"] = "datasets/org/new"
    here.source(dataset="org/old")
    done = here.run("prepare")
    assert done.returncode == 0, done.stderr
    assert "'org/old' is now 'org/new': set data.source.dataset to that" in done.stderr
    source = meta(here)["source"]
    assert (source["n_files"], source["place"]["commit"], source["place"]["n_files"]) == (
        4,
        commit,
        4,
    )
    assert source["place"]["dataset"] == "org/new"
    assert sum(split["n_documents"] for split in meta(here)["splits"].values()) == 400
    assert not (data(here) / "shards").exists()


def test_files_of_json_lines_in_a_configuration(hub: HubServer, here: Here) -> None:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:200]).encode()
    files = {
        f"{name}/c4-train.0000{i}.json.gz": gzip.compress(rows)
        for i in (0, 1)
        for name in ("en", "de")
    }
    hub.add("datasets/allenai/c4", files | {"README.md": CARD})
    here.source(dataset="allenai/c4", config_name="en")
    done = here.run("prepare")
    assert done.returncode == 0, done.stderr
    assert meta(here)["source"]["place"]["n_files"] == 2
    assert not hub.sent("store|de/")[2:]
    here.source(dataset="allenai/c4", config_name="fr")
    assert re.search(
        r"(?s)'fr' not found.*'en'.*set data\.source\.config_name", here.run("prepare").stderr
    )


def test_a_preset_is_served_by_the_first_place_that_can(hub: HubServer, here: Here) -> None:
    script = {"openwebtext.py": b"import datasets", "README.md": b""}
    hub.add("datasets/Skylion007/openwebtext", script)
    hub.add(
        "datasets/Skylion007/openwebtext", four_files("plain_text/train"), "refs/convert/parquet"
    )
    here.source(preset="openwebtext")
    done = here.run("prepare")
    assert done.returncode == 0, done.stderr
    place = meta(here)["source"]["place"]
    assert (place["revision"], place["license"]) == ("refs/convert/parquet", "cc0-1.0")
    assert (
        "revision '79d93d786212f7344586290adb811d4ae6a1762c': there is no such revision"
        in done.stderr
    )
    whole = bins(here)
    # The hub's own conversion can be a part only, and then says so.
    hub.add(
        "datasets/Skylion007/openwebtext",
        four_files("plain_text/partial-train"),
        "refs/convert/parquet",
    )
    hub.add("datasets/reedie01/openwebtext", four_files())
    lose(here)
    done = here.run("prepare")
    assert done.returncode == 0, done.stderr
    assert "has only a part of the text (plain_text/partial-train/" in done.stderr
    assert meta(here)["source"]["place"]["dataset"] == "reedie01/openwebtext"
    assert bins(here) == whole


def test_no_place_of_a_preset_can_serve_and_then_its_pinned_copy(
    hub: HubServer, here: Here
) -> None:
    here.source(preset="slimpajama")
    done = here.run("prepare")
    assert done.returncode == 2
    assert re.search(
        r"(?s)error: data\.source: dataset 'cerebras.*dataset 'gmongaras.*data\.source\.preset",
        done.stderr,
    )
    pinned = HUB_PLACES["slimpajama"][1].revision
    assert pinned is not None
    hub.add("datasets/gmongaras/SlimPajama-627B_Reupload", four_files(), pinned)
    done = here.run("prepare")
    assert done.returncode == 0, done.stderr
    assert (
        "dataset 'cerebras/SlimPajama-627B' does not exist, was renamed or removed" in done.stderr
    )


SETTINGS = {
    "script": (
        {"dataset": "org/set"},
        r"has a loading script, set\.py, .*set data\.source\.revision to 'refs/convert",
    ),
    "vanished": (
        {"dataset": "org/gone"},
        r"'org/gone' does not exist, .*\(HTTP 404\); set data\.source\.dataset",
    ),
    "private": ({"dataset": "org/private"}, r"or is private \(HTTP 401\); .*HF_TOKEN"),
    "gated": (
        {"dataset": "org/gated"},
        r"is gated \(HTTP 401\): its terms must be accepted .*set HF_TOKEN",
    ),
    "forbidden": (
        {"dataset": "org/forbidden"},
        r"is gated \(HTTP 403\): its terms must be accepted .*set HF_TOKEN",
    ),
    "no revision": (
        {"dataset": "org/fine", "revision": "v2"},
        r"'org/fine' at revision 'v2': there is no such revision; set data\.source\.revision",
    ),
    "no split": (
        {"dataset": "org/fine", "split": "dev"},
        r"has no split 'dev', only train; set data\.source\.split",
    ),
    "no column": (
        {"dataset": "org/fine", "text_field": "body"},
        (
            r"org/fine, data/train-0.*no field 'body'; fields there: 'text'; set"
            r" data\.source\.text_field"
        ),
    ),
    "no text": (
        {"dataset": "org/images"},
        r"a\.png is none of \.parquet, .*set data\.source\.dataset",
    ),
    "nothing": ({"dataset": "org/empty"}, r"'org/empty' has no files of text"),
    "a folder": (
        {"dataset": "/data/text"},
        r"'/data/text' cannot be read .*use the source 'files'",
    ),
}


@pytest.mark.fault(
    "text and data",
    "a dataset of the hub has a script, is gated, removed or private, or lacks a revision, a split"
    " or a column",
    "preparation stops before it downloads, and says what to set",
)
def test_what_cannot_be_read_says_what_to_set(hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", {"set.py": b"import datasets", "README.md": b"A card."})
    hub.add("datasets/org/gated", four_files(), gated=401)
    hub.add("datasets/org/forbidden", four_files(), gated=403)
    hub.add("datasets/org/fine", four_files())
    hub.add("datasets/org/images", {"train/a.png": b"png" * 100})
    hub.add("datasets/org/empty", {"README.md": b"A card."})
    hub.faults.append(
        Fault("org/private", times=10, status=401, headers={"X-Error-Message": "Invalid username"})
    )
    for case, (settings, _) in SETTINGS.items():
        here.source(**settings)
        (here.folder / "plan.json").rename(here.folder / f"{case}.json")
    # One process for all of them, because the libraries take seconds to import.
    code = """import sys
from coupled_adam_bench.cli import main
for case in sys.argv[1:]:
    print("case", case, main(["prepare", "--plan", f"{case}.json"]), file=sys.stderr)
"""
    _, errors = python(
        "pipeline without a hub", ["-c", code, *SETTINGS], here.folder, here.environment
    ).communicate()
    assert "Traceback" not in errors
    said = dict(zip(SETTINGS, re.split(r"case .* 2\n", errors), strict=False))
    assert said.keys() == SETTINGS.keys()
    for case, (_, message) in SETTINGS.items():
        assert re.search(message, said[case]), said[case]
    assert len(hub.sent("store")) == 1  # the file that has no such column


@pytest.mark.fault(
    "text and data",
    "the hub answers 429 or 5xx, or breaks the connection in the middle of a file",
    "preparation waits, says so, downloads that file again, and makes the same bins",
)
def test_what_passes_is_waited_out(hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.source(dataset="org/set")
    assert here.run("prepare").returncode == 0
    whole = bins(here)
    lose(here)
    broken = four_files()["data/train-00001-of-00004.parquet"]
    hub.faults += [
        Fault("/api/datasets/org/set", status=503),
        Fault("/api/datasets/org/set", status=429),
        Fault(f"/store/{hashlib.sha256(broken).hexdigest()}", cut_after=len(broken) // 3),
        Fault("train-00002", times=2, method="HEAD", status=502),
        Fault("/store/", times=1, status=500),
    ]
    hub.log.clear()
    done = here.run("prepare")
    assert done.returncode == 0, done.stderr
    assert bins(here) == whole
    assert not any(fault.times for fault in hub.faults)
    assert re.search(r"dataset 'org/set': HTTP 503; trying again in 1 s", done.stderr)


@pytest.mark.fault(
    "text and data",
    "a file of the hub arrives with other bytes than the hub lists",
    "the stage stops and names the file, and the next start downloads it again",
)
def test_a_wrong_checksum(hub: HubServer, here: Here) -> None:
    files = four_files()
    hub.add("datasets/org/set", files)
    here.source(dataset="org/set")
    wrong = bytearray(files["data/train-00001-of-00004.parquet"])
    wrong[len(wrong) // 2] ^= 1
    path = f"/store/{hashlib.sha256(files['data/train-00001-of-00004.parquet']).hexdigest()}"
    hub.faults.append(Fault(path, content=bytes(wrong)))
    done = here.run("prepare")
    assert done.returncode == 2
    assert re.search(
        r"train-00001-of-00004\.parquet of .*SHA-256 is .*but the hub lists .*set data\.so",
        done.stderr,
    )
    assert here.run("prepare").returncode == 0


@pytest.mark.fault(
    "text and data",
    "there is no network at all, or HF_HUB_OFFLINE forbids to use it",
    "preparation gives up after execution.hub_minutes, or at once, and says what to do",
)
def test_no_network(hub: HubServer, here: Here) -> None:
    here.source(dataset="org/set", hub_minutes=0.02)
    done = here.run("prepare", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert re.search(
        r"dataset 'org/set': .*gave up after 0\.02 minutes \(execution\.hub_minutes\).*"
        r"run again, connect this machine, or download all on one that is connected",
        done.stderr,
    ), done.stderr
    done = here.run("prepare", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert re.search(
        r"HF_HUB_OFFLINE forbids .*`fetch`, with paths\.hub_mirror.*use the source 'files'",
        done.stderr,
    )
    assert not hub.log


@pytest.mark.fault(
    "text and data",
    "preparation of a dataset of the hub is killed",
    "it goes on after the last finished part: files before it are not downloaded again, and the"
    " bins are the same",
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_and_resumed(workers: str, hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.source(dataset="org/set")
    assert here.run("prepare").returncode == 0
    whole, described = bins(here), meta(here)
    lose(here)
    # The third file hangs.
    hub.faults.append(Fault("train-00002", times=100, method="HEAD", status=503))
    process = here.start("prepare", "--workers", workers)
    shards = data(here) / "shards"
    deadline = time.monotonic() + 60
    while not (
        list(shards.glob("*.json")) and any("train-00002" in entry[1] for entry in hub.log[-3:])
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.faults.clear()
    hub.log.clear()
    assert len(list(shards.glob("*.json"))) > 5
    done = here.run("prepare", "--workers", workers)
    assert done.returncode == 0, done.stderr
    assert (bins(here), meta(here)) == (whole, described)
    assert len(hub.sent("/store/")) <= 3  # the file in which the last part ends, and those after it
    first = hashlib.sha256(four_files()["data/train-00000-of-00004.parquet"]).hexdigest()
    assert not hub.sent(first)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_cap_reads_the_first_documents_only(workers: str, hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.source(dataset="org/set")
    assert here.run("prepare").returncode == 0
    whole = {name: (data(here) / f"{name}.bin").read_bytes() for name in ("train", "val", "test")}
    cap = sum(split["n_tokens"] for split in meta(here)["splits"].values()) // 3
    shutil.rmtree(data(here))
    hub.log.clear()
    here.source(dataset="org/set", max_tokens=cap)
    done = here.run("prepare", "--workers", workers)
    assert done.returncode == 0, done.stderr
    total = sum(split["n_tokens"] for split in meta(here)["splits"].values())
    assert cap <= total < cap + 400  # less than one document more
    for name, tokens in whole.items():
        assert tokens.startswith((data(here) / f"{name}.bin").read_bytes())
    assert meta(here)["source"]["n_files"] == 2
    assert len(hub.sent("/store/")) <= 1 + int(
        workers
    )  # several workers are given parts in advance


@pytest.mark.fault(
    "text and data",
    "the disk is full while a file of the hub is downloaded",
    "the stage stops at once and says where; when there is space, it goes on and makes the same"
    " bins",
)
def test_a_full_disk(hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.source(dataset="org/set")
    results = here.folder / "results"
    with small_disk(results, "100k"):
        (results / "filler").write_bytes(bytes(60 * 1024))
        done = here.run("prepare")
        assert done.returncode == 2
        assert re.search(
            r"error: .*no space left for results/data/.*finished parts are kept", done.stderr
        ), done.stderr
        assert "trying again" not in done.stderr
        (results / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=10m", str(results)], check=True)
        assert here.run("prepare").returncode == 0
        assert sum(split["n_documents"] for split in meta(here)["splits"].values()) == 400


ODD_ANSWERS = {
    "no commit": ("sha", None, "the answer of the hub names no commit"),
    "a size as text": ("size", "5000", "has '5000' bytes, which no file has"),
    "a size below 0": ("size", -1, "has -1 bytes, which no file has"),
    "sizes of 0": ("size", 0, "all of its 4 files are empty by what the hub says"),
}


@pytest.mark.fault(
    "text and data",
    "The hub, or a server in its place, names no commit, or sizes that are text, 0 or below.",
    "It is refused with what to set; another server serves the same study.",
)
@pytest.mark.parametrize("kind", ODD_ANSWERS)
def test_answers_that_lack_what_is_needed(
    kind: str, hub: HubServer, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, value, message = ODD_ANSWERS[kind]
    hub.add("datasets/org/set", four_files())
    info = {"id": "org/set", "sha": None, "siblings": [], "tags": []}
    if field == "sha":
        hub.faults.append(Fault("/api/datasets/org/set$", 100, content=json.dumps(info).encode()))
    else:
        entry = hub_server._entry
        monkeypatch.setattr(hub_server, "_entry", lambda *file: entry(*file) | {"size": value})
    here.source(dataset="org/set")
    done = here.run("prepare")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert "set data.source.dataset to a copy, or HF_ENDPOINT to another server" in done.stderr
    hub.faults.clear()
    monkeypatch.undo()
    assert here.run("prepare").returncode == 0
