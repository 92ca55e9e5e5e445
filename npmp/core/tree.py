"""Nested containers of tensors: observations and recurrent states.

A tree is a tensor, or a tuple, NamedTuple, list or dict of trees. None is an empty tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

# recursive, which the type checker does not support; the functions below check it
Tree: TypeAlias = Any


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to every leaf of `tree` and the same leaves of `others`; a tree of the same
    structure. Raises TypeError for a node that is neither tensor nor container."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, Mapping):
        return {
            key: map_tree(function, tree[key], *(other[key] for other in others)) for key in tree
        }
    if isinstance(tree, (tuple, list)):
        items = [map_tree(function, *nodes) for nodes in zip(tree, *others, strict=True)]
        # a NamedTuple
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items)
    raise TypeError(f"a tree holds tensors, tuples and dicts, not {type(tree).__name__}")


def leaves(tree: Tree) -> list[Tensor]:
    """All tensors of a tree, in a fixed order."""
    tensors: list[Tensor] = []
    map_tree(tensors.append, tree)
    return tensors


def stack_trees(trees: list[Tree]) -> Tree:
    """Trees of one structure -> one tree with leaves stacked along a new first axis."""
    return map_tree(lambda *tensors: torch.stack(tensors), trees[0], *trees[1:])


def cat_trees(trees: list[Tree], dim: int = 0) -> Tree:
    """Trees of one structure -> one tree with leaves concatenated along axis `dim`."""
    return map_tree(lambda *tensors: torch.cat(tensors, dim), trees[0], *trees[1:])


def where_tree(mask: Tensor, first: Tree, second: Tree) -> Tree:
    """Rows of `first` where `mask` [B] is true, of `second` elsewhere; leaves [B, ...]."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (a.dim() - mask.dim())), a, b)

    return map_tree(choose, first, second)
