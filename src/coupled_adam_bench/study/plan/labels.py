"""Labels: the names of optimizers, models and token counts in results, tables and figures, one for
each thing."""

from collections.abc import Iterator, Sequence

from coupled_adam_bench.study.plan.tuning import PlannedBlock
from coupled_adam_bench.study.settings.base import as_seen

_REMEDY = {
    "optimizers": "give one of them another label",
    "models": "give one of them another label",
    "tokens": "give one of them as {steps: NUMBER, label: TEXT} with another label",
}


def check_labels(blocks: Sequence[PlannedBlock]) -> None:
    """Raise ``ValueError`` with both places for two optimizers, models or counts of tokens that are
    printed alike."""
    first: dict[tuple[str, ...], tuple[str | int, str]] = {}
    several = len({planned.study.name for planned in blocks}) > 1
    for planned in blocks:
        for kind, label, identity, index in _printed(planned):
            place = f"{planned.study.name}: " * several + f"{planned.place}.{kind}.{index}"
            key: tuple[str, ...] = (kind, as_seen(label))
            if kind == "tokens":  # 20B is another number of tokens in a study of other batches
                key = (*key, planned.study.name)
            other, other_place = first.setdefault(key, (identity, place))
            if other != identity:
                raise ValueError(
                    f"{other_place} and {place}: both are printed as {label!r}, so tables and"
                    f" figures could not tell them apart; {_REMEDY[kind]}"
                )


def _printed(planned: PlannedBlock) -> Iterator[tuple[str, str, str | int, int]]:
    """Yield kind, label, what the label stands for, and number of everything in a block that tables
    print."""
    printed: dict[str, list[tuple[str, str | int]]] = {"optimizers": [], "models": [], "tokens": []}
    for cell in planned.cells:
        printed["optimizers"].append((cell.optimizer.label, cell.optimizer.key))
        printed["models"].append((cell.size_label, cell.n_params))
        printed["tokens"].append((cell.length_label, cell.n_tokens))
    for kind, pairs in printed.items():
        yield from ((kind, *pair, index) for index, pair in enumerate(dict.fromkeys(pairs)))
