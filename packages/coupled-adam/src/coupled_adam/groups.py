"""Parameter groups for CoupledAdam: the token embeddings of a model coupled, everything else with
AdamW."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def coupled_param_groups(
    model: nn.Module,
    *,
    weight_decay: float | None = None,
    embedding_weight_decay: float = 0.0,
    decay_vectors: bool = False,
    embeddings: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Return all trainable parameters of ``model`` as parameter groups for ``CoupledAdam``.

    The first group holds the token embeddings, which are coupled: the input embedding, and the
    output embedding (the head) if it is not the same matrix. The second holds all other matrices,
    including position embeddings, and the third the biases and the weights of norms. These two are
    updated as by AdamW. Empty groups are left out.

    A transformers model declares its token embeddings with ``get_input_embeddings()`` and
    ``get_output_embeddings()``. If PEFT has them in ``modules_to_save``, they are the copies that
    it trains. In any other module, they are an ``nn.Embedding`` and the ``nn.Linear`` that shares
    its weight or has as many outputs as the embedding has rows.

    Args:
        model: any module, with or without ``DistributedDataParallel`` or ``fully_shard`` around it.
        weight_decay: weight decay of all matrices that are not coupled; by default that of the
            optimizer.
        embedding_weight_decay: weight decay of the token embeddings.
        decay_vectors: whether biases and norms decay as these matrices do.
        embeddings: names of the parameters to couple, as in ``model.named_parameters()``; by
            default the token embeddings.

    Raises:
        ValueError: if the token embeddings are ambiguous, frozen, or not in the model, or
            ``embeddings`` has no names.
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    matrices = _named(model, embeddings) if embeddings is not None else _token_embeddings(model)
    coupled = [matrix for matrix in matrices if matrix.requires_grad]
    if not coupled:
        raise ValueError(
            "embeddings: all token embeddings are frozen, so there is nothing to couple; use AdamW"
        )
    taken = {id(parameter) for parameter in coupled}
    rest = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and id(parameter) not in taken
    ]
    # A group without a decay of its own has the one that is given to the optimizer.
    decay = {} if weight_decay is None else {"weight_decay": weight_decay}
    decay_of_vectors = decay if decay_vectors else {"weight_decay": 0.0}
    matrices = [parameter for parameter in rest if parameter.ndim >= 2]
    vectors = [parameter for parameter in rest if parameter.ndim < 2]
    groups = [
        {"params": coupled, "coupled": True, "weight_decay": embedding_weight_decay},
        {"params": matrices, "coupled": False} | decay,
        {"params": vectors, "coupled": False} | decay_of_vectors,
    ]
    return [group for group in groups if group["params"]]


def _named(model: nn.Module, names: Sequence[str]) -> list[Tensor]:
    if isinstance(names, str):
        raise ValueError(
            f"embeddings: {names!r} is text; give a list of names, embeddings=[{names!r}]"
        )
    if isinstance(names, Tensor | nn.Module) or not all(isinstance(name, str) for name in names):
        raise ValueError("embeddings: it must be a list of names, as in model.named_parameters()")
    if not names:
        raise ValueError("embeddings: it has no names; give at least one, or leave it out")
    known = dict(model.named_parameters(remove_duplicate=False))
    unknown = [name for name in names if name not in known]
    if unknown:
        meant = [f"{name!r}{_suggestion(name, known)}" for name in unknown]
        raise ValueError(
            f"embeddings: the model has no parameter {', '.join(meant)}; names are those of"
            " model.named_parameters()"
        )
    return _unique(known[name] for name in names)


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return which of the known names may be meant: those of which ``name`` is a part, or what is
    left of it without its first parts, or else the most similar one."""
    parts = name.split(".")
    found: list[str] = []
    # A last part alone, such as `weight`, tells nothing: most parameters have it.
    while parts and not found and ".".join(parts) not in ("weight", "bias"):
        found = [each for each in known if f".{'.'.join(parts)}." in f".{each}."]
        parts = parts[1:]
    found = found[:3] or difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _token_embeddings(model: nn.Module) -> list[Tensor]:
    return _declared(model) or _searched(model)


def _declared(model: nn.Module) -> list[Tensor]:
    """Return the token embeddings that a transformers model declares; an empty list for any other
    module."""
    try:
        embedding = model.get_input_embeddings()  # type: ignore[operator]
    except (
        AttributeError,
        NotImplementedError,
    ):
        # transformers raises NotImplementedError for models without tokens.
        return []
    embedding = _trained(embedding)
    if not isinstance(embedding, nn.Embedding):
        return []
    find_head = getattr(model, "get_output_embeddings", None)
    head = _trained(find_head()) if find_head is not None else None
    if head is None:
        return [embedding.weight]
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise _undecided(
            model, f"the output embedding is a {type(head).__name__} without a matrix of its own"
        )
    return _unique([embedding.weight, weight])


def _trained(module: Any) -> Any:
    """Return the copy that PEFT trains in place of a module in ``modules_to_save``; return any
    other one unchanged."""
    copies = getattr(module, "modules_to_save", None)
    if not isinstance(copies, nn.ModuleDict):
        return module
    active = (
        [module.active_adapter] if isinstance(module.active_adapter, str) else module.active_adapter
    )
    return next((copies[name] for name in active if name in copies), module.original_module)


def _searched(model: nn.Module) -> list[Tensor]:
    """Return the only embedding that has a head, with that head, or else the only embedding."""
    embeddings = _unique(
        module.weight for module in model.modules() if isinstance(module, nn.Embedding)
    )
    linears = _unique(module.weight for module in model.modules() if isinstance(module, nn.Linear))
    if not embeddings:
        raise _undecided(model, "it has no nn.Embedding")
    # A tied embedding is its own head, so it needs no other one.
    ids_of_linears = {id(linear) for linear in linears}
    tied = [matrix for matrix in embeddings if id(matrix) in ids_of_linears]
    if tied:
        if len(tied) > 1:
            raise _undecided(
                model, f"{len(tied)} embeddings share their weight with a linear layer"
            )
        return tied
    # Without tying, a head is a linear layer with an output for each row.
    heads: dict[int, list[Tensor]] = {}
    for matrix in embeddings:
        heads[id(matrix)] = [linear for linear in linears if len(linear) == len(matrix)]
    with_head = [matrix for matrix in embeddings if heads[id(matrix)]]
    if len(with_head) > 1:
        raise _undecided(
            model, f"{len(with_head)} embeddings have as many rows as a linear layer has outputs"
        )
    if not with_head:
        if len(embeddings) > 1:
            raise _undecided(
                model, f"none of its {len(embeddings)} embeddings has a linear layer for a head"
            )
        return embeddings
    (matrix,) = with_head
    if len(heads[id(matrix)]) > 1:
        raise _undecided(
            model,
            f"{len(heads[id(matrix)])} linear layers have {len(matrix)} outputs, as many as tokens",
        )
    return [matrix, *heads[id(matrix)]]


def _undecided(model: nn.Module, reason: str) -> ValueError:
    """Return the error that lists the candidates and asks for names."""
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    rows = {len(matrix) for matrix in embeddings}
    linears = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    heads = [linear for linear in linears if len(linear) in rows]
    candidates = {id(matrix) for matrix in (*embeddings, *heads)}
    listed = [
        f"{name} ({' x '.join(map(str, parameter.shape))})"
        for name, parameter in model.named_parameters()
        if id(parameter) in candidates
    ]
    return ValueError(
        f"embeddings: cannot tell which parameters of {type(model).__name__} are its token"
        f" embeddings: {reason}; "
        + (f"candidates are {', '.join(listed)}; " if listed else "")
        + "name them: coupled_param_groups(model, embeddings=[NAME, ...])"
    )


def _unique(tensors: Any) -> list[Tensor]:
    """Return the tensors in order, without repetitions."""
    return list({id(tensor): tensor for tensor in tensors}.values())
