"""The command that tells what a manifest knows in the forms that others ask for."""

import argparse
from pathlib import Path

from coupled_adam_bench.cli.command import AddCommand


def _export(arguments: argparse.Namespace) -> None:
    from coupled_adam_registry.exports.checklist import checklist
    from coupled_adam_registry.exports.manifest import read_manifest
    from coupled_adam_registry.exports.ro_crate import write_ro_crate

    manifest = read_manifest(arguments.manifest)
    if arguments.form == "checklist":
        print(checklist(manifest), end="")
    else:
        print(write_ro_crate(manifest, arguments.manifest.parent, arguments.license))


def add_commands(add: AddCommand) -> None:
    """Add the commands of this module to the command line."""
    summary = (
        "print what the checklists of ARR and NeurIPS ask and a manifest knows, or write"
        " ro-crate-metadata.json into its folder"
    )
    sub = add("export", _export, summary, plan=False)
    sub.add_argument("form", choices=("checklist", "ro-crate"))
    sub.add_argument("manifest", type=Path, help="results/<study>/manifest.json")
    sub.add_argument(
        "--license",
        default="https://creativecommons.org/licenses/by/4.0/",
        metavar="URL",
        help="of the results, in the RO-Crate (default: %(default)s)",
    )
