"""The command ``embedding-geometry``."""

import argparse
import json
import sys
from pathlib import Path

from embedding_geometry import __version__

DESCRIPTION = (
    "measure the embeddings of any causal or masked language model; exit status 1 if one could not"
    " be measured"
)


def add_arguments(parser: argparse.ArgumentParser, default_lists: str, default_counts: str) -> None:
    """Add what ``measure`` reads; ``default_lists`` and ``default_counts`` say what is taken if
    none are given."""
    what = (
        "the folder of a model, its name on the hub with @REVISION or without, or a matrix in a"
        " .npy file"
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help=what)
    kinds = "text files, or .jsonl files with the field 'text'"
    what = f"{kinds}, for the counts of tokens (default: {default_counts})"
    parser.add_argument("--text", action="extend", nargs="+", type=Path, default=[], help=what)
    lists = "a list of word pairs, or a folder with the paper's lists"
    parser.add_argument("--word-similarity", type=Path, help=f"{lists} (default: {default_lists})")
    what = "tokenizer.json, or a folder with one, for the matrices in .npy files"
    parser.add_argument("--tokenizer", type=Path, help=what)
    parser.add_argument("--json", type=Path, help="where to write all numbers, spectra and curves")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status; 2 for what the user can mend, with one message
    and no traceback."""
    parser = argparse.ArgumentParser(prog="embedding-geometry", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_arguments(parser, default_lists="none", default_counts="none")
    arguments = parser.parse_args(argv)
    try:
        return _measure(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _measure(arguments: argparse.Namespace) -> int:
    from embedding_geometry import compare
    from embedding_geometry.word_lists import read_word_lists

    lists = read_word_lists(arguments.word_similarity)
    models, failed = compare.measure_models(
        arguments.models, lists, arguments.text, arguments.tokenizer
    )
    if models:
        print(compare.table_of(models), end="")
        if arguments.json is not None:
            text = json.dumps(compare.to_json(models), indent=1, ensure_ascii=False)
            arguments.json.write_text(f"{text}\n", encoding="utf-8")
    return 1 if failed else 0
