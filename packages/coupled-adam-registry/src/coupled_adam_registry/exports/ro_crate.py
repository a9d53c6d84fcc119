"""Describes the results of a study as an RO-Crate: who made which files with what, for archives.

The form is RO-Crate 1.2 (https://w3id.org/ro/crate/1.2), an attached crate whose run is a
``CreateAction``.
"""

import importlib.metadata
import mimetypes
from datetime import date
from pathlib import Path
from typing import Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import sha256_file, write_json

METADATA = "ro-crate-metadata.json"
_FORM = "https://w3id.org/ro/crate/1.2"
_SOFTWARE, _RUN = "#coupled-adam-bench", "#run"

Entity = dict[str, Any]


def write_ro_crate(manifest: dict[str, Any], folder: Path, terms: str) -> Path:
    """Write ``ro-crate-metadata.json`` into the folder of a manifest, and return its path.

    ``terms`` is the URL of the license of the results. ``ValueError`` for a file of results that
    was changed since the manifest was written.
    """
    path = folder / METADATA
    write_json(path, ro_crate(manifest, folder, terms))
    return path


def ro_crate(manifest: dict[str, Any], folder: Path, terms: str) -> Entity:
    """Return the crate of the files in a folder that its manifest knows, and of the manifest."""
    files = [_file(folder, paths.MANIFEST, sha256_file(folder / paths.MANIFEST))]
    for name, checksum in manifest["sha256"].items():
        # An export of some of the files, such as that of the demo in the documentation, lacks the
        # others, and a crate may only name what is there.
        if not (folder / name).is_file():
            continue
        if sha256_file(folder / name) != checksum:
            raise ValueError(
                f"{folder / name}: changed since the manifest was written; start the study again,"
                " which makes its report anew"
            )
        files.append(_file(folder, name, checksum))
    parts = [{"@id": file["@id"]} for file in files]
    about = f"Results of the study {manifest['study']}, of {len(manifest['cells'])} trained models."
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": manifest["title"],
        "description": about,
        "datePublished": date.today().isoformat(),
        "license": {"@id": terms},
        "hasPart": parts,
        "mentions": {"@id": _RUN},
    }
    described = {
        "@id": METADATA,
        "@type": "CreativeWork",
        "conformsTo": {"@id": _FORM},
        "about": {"@id": "./"},
    }
    terms_of_use = {"@id": terms, "@type": "CreativeWork", "name": "License of these results"}
    terms_of_use["description"] = f"The terms at {terms} hold for all files of this crate."
    entities = [described, root, terms_of_use, _software(manifest), _run(manifest, parts), *files]
    return {"@context": f"{_FORM}/context", "@graph": entities}


def _file(folder: Path, name: str, checksum: str) -> Entity:
    return {
        "@id": name,
        "@type": "File",
        "name": name,
        "contentSize": str((folder / name).stat().st_size),
        "encodingFormat": mimetypes.guess_type(name)[0] or "application/octet-stream",
        "sha256": checksum,
    }


def _software(manifest: dict[str, Any]) -> Entity:
    packages = (f"{name} {version}" for name, version in manifest["packages"].items())
    links = importlib.metadata.metadata("coupled-adam-bench").get_all("Project-URL") or []
    addresses = dict(link.split(", ", 1) for link in links)
    return {
        "@id": _SOFTWARE,
        "@type": "SoftwareApplication",
        "name": "Coupled Adam Bench",
        "url": addresses["Repository"],
        "version": f"{manifest['packages']['coupled-adam-bench']}, {manifest.get('git_revision')}",
        "softwareRequirements": ", ".join(packages),
    }


def _run(manifest: dict[str, Any], results: list[Entity]) -> Entity:
    devices = {cell["environment"].get("device") for cell in manifest["cells"]} - {None}
    return {
        "@id": _RUN,
        "@type": "CreateAction",
        "name": f"Training and evaluation of the study {manifest['study']}",
        "description": f"Trained on {', '.join(sorted(devices)) or 'no device'}.",
        "instrument": {"@id": _SOFTWARE},
        "result": results,
    }
