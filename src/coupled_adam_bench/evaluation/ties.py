"""Choices of a task that are the same tokens to a model, and what they count.

A tokenizer may read two different choices as the same tokens, such as two sentences with unknown
words. Then they are equally likely, and lm-eval takes the one that stands first. Here they share
the hit: of two choices one is right, so an item counts half. So the order of the choices decides
nothing.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from statistics import fmean
from typing import Any

from coupled_adam_bench.evaluation.trees import TokenRequest

_HITS = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")
"""lm-eval's metrics that are 1 if the likeliest choice is right, and else 0."""
_SHOWN = 80
"""Number of characters at the end of a text that a message shows."""


class Response(tuple[float, bool]):
    """What lm-eval is told of a request: its log-likelihood and whether the model would say it;
    beside them its tokens."""

    tokens: bytes

    @classmethod
    def of(cls, score: tuple[float, bool], request: TokenRequest) -> "Response":
        """Return the response to a request, whose tokens are those that the model reads."""
        response = cls(score)
        response.tokens = request.n_continuation.to_bytes(8, "little") + request.tokens.tobytes()
        return response


def groups_of(responses: Sequence[Any]) -> list[list[int]]:
    """Return the places of the responses that have the same tokens, group by group; those of no
    tokens are left out."""
    places: dict[bytes, list[int]] = {}
    for place, response in enumerate(responses):
        if isinstance(response, Response):
            places.setdefault(response.tokens, []).append(place)
    return [group for group in places.values() if len(group) > 1]


def share_hits(task: Any) -> None:
    """Have a task of lm-eval share the hit among choices of the same tokens.

    Its metrics are the mean over the ways to keep one choice of each group in the comparison. A
    task with a ``process_results`` of its own is given the others as a little less likely, and all
    of its metrics are the mean.
    """
    if task.OUTPUT_TYPE != "multiple_choice":
        return
    process = task.process_results
    is_own = callable(task.get_config("process_results"))

    def process_shared(doc: Any, results: Sequence[Any]) -> Any:
        found = process(doc, results)
        groups = groups_of(results)
        if groups and not is_own:
            n_choices = len(task.doc_to_choice(doc))  # acc_mutual_info asks for each once more
            groups = [group for group in groups if group[-1] < n_choices]
        if not groups:
            return found
        tried = []
        for number in range(math.lcm(*map(len, groups))):
            kept = {group[number % len(group)] for group in groups}
            lowered = {place for group in groups for place in group} - kept
            changed = list(results)
            for place in lowered:
                log_p, is_greedy = results[place]
                least = math.nextafter(log_p, -math.inf) if is_own else -math.inf
                changed[place] = (least, is_greedy)
            tried.append(process(doc, changed))
        names = [name for name in found if is_own or name in _HITS]
        names = [name for name in names if isinstance(found[name], Real)]
        shared = {}
        for name in names:
            shared[name] = fmean(float(one[name]) for one in tried)
        return found | shared

    task.process_results = process_shared


def tied_items(samples: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return two texts of the same tokens for each item that has some, by its number, given what
    lm-eval logs of items."""
    tied = {}
    for sample in samples:
        groups = groups_of([response[0] for response in sample["resps"]])
        if groups:
            tied[sample["doc_id"]] = ["".join(sample["arguments"][place]) for place in groups[0]]
    return tied


def describe_ties(tied: Mapping[int, Sequence[str]], n_items: int) -> str:
    """Return the sentence on a task's items with choices of the same tokens."""
    first, texts = next(iter(tied.items()))
    shown = " and ".join(repr(text[-_SHOWN:]) for text in texts[:2])
    return (
        f"{len(tied)} of {n_items} items have choices that are the same tokens under the study's"
        f" tokenizer, so they share the hit; the first is item {first} (from 0), with {shown}"
    )
