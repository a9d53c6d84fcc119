"""Matrices in shards: this process's slice of a row, and sums over a sharded dimension."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a DTensor; return any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def placed_as(grad: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient sharded as its parameter is."""
    if isinstance(parameter, DTensor) and isinstance(grad, DTensor):
        return grad.redistribute(placements=parameter.placements)
    return grad


def sums_over_shards(sums: Tensor, whole: Tensor, dim: int) -> Tensor:
    """Return the sums of ``whole`` over ``dim``, given the sums of this process's shard, in one
    reduction."""
    if not isinstance(whole, DTensor):
        return sums
    placements = [
        Partial() if place.is_shard(dim) else _without(place, dim) for place in whole.placements
    ]
    shape = torch.Size((*whole.shape[:dim], *whole.shape[dim + 1 :]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        sums, whole.device_mesh, placements, shape=shape, stride=stride
    ).full_tensor()


def part_of_row(parameter: Tensor, row: Tensor, dim: int) -> Tensor:
    """Return the slice of a row (a tensor without ``dim``) that belongs to this process's shard of
    ``parameter``."""
    if not isinstance(parameter, DTensor):
        return row
    mesh = parameter.device_mesh
    whole = DTensor.from_local(row, mesh, [Replicate()] * mesh.ndim)
    return whole.redistribute(
        placements=[_without(place, dim) for place in parameter.placements]
    ).to_local()


def _without(place: Placement, dim: int) -> Placement:
    """Return the placement of a tensor without ``dim``, given the placement of the tensor with
    it."""
    if not isinstance(place, Shard) or place.dim == dim:
        return Replicate()
    return Shard(place.dim - (place.dim > dim))
