"""What a user should know of prepared data: what was left out of the text, and what there is little
of. It imports nothing heavy, as the workflow tells it at its end."""

from collections.abc import Iterator, Mapping
from typing import Any

from coupled_adam_bench.store.markup import first_of
from coupled_adam_bench.study.catalogue.metrics import FEW_DOCUMENTS
from coupled_adam_bench.study.plan.inputs import hidden_in
from coupled_adam_bench.study.settings import BinsSource, FilesSource, Study

_LEFT_OUT = {
    "n_empty_documents": "documents without text",
    "n_invalid_documents": "rows without valid text",
    "n_files_without_text": "files without text",
}


def left_out(skip: str, source: Mapping[str, Any]) -> str | None:
    """Return in a sentence what ``data.skip`` has left out; None if it was nothing.

    ``source`` is that of ``meta.json``.
    """
    counts = {what: source.get(fact, 0) for fact, what in _LEFT_OUT.items()}
    found = ", ".join(f"{what}: {number:,}" for what, number in counts.items() if number)
    return f"left out: {found} (data.skip: {skip})" if found else None


def notes(study: Study, meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each other thing to know of the data that ``meta.json`` describes."""
    splits = meta["splits"]
    if others := meta["source"].get("other_files"):
        named = ", ".join(f"{ending}: {number:,}" for ending, number in others.items())
        yield f"files with other endings are not read ({named})"
    patterns = study.paths.text if isinstance(study.data.source, FilesSource) else ()
    hidden = [str(path) for pattern in patterns for path in hidden_in(pattern)]
    if hidden:
        yield (
            f"hidden files and folders are not read ({first_of(hidden)}); to read one, name it in"
            " paths.text"
        )
    if study.training.data_order == "pairs":
        return  # train is a source, of which a run may draw any number of tokens
    split = study.evaluation.test_loss.split
    held_out = splits[split]
    if held_out["n_documents"] < FEW_DOCUMENTS:
        is_bins = isinstance(study.data.source, BinsSource)
        cure = "hold out a larger file" if is_bins else f"raise data.split.{split}_fraction"
        yield (
            f"the loss is measured on {held_out['n_tokens']:,} tokens of"
            f" {held_out['n_documents']} documents, which are few: other text may give another"
            f" loss; {cure}"
        )
    n_train, largest = splits["train"]["n_tokens"], study.largest_tokens
    if largest > n_train:
        yield (
            f"train has {n_train:,} tokens, and the largest run of the grid reads {largest:,}:"
            f" {largest / n_train:.3g} times the text; give more text, or a smaller number of"
            " tokens"
        )
