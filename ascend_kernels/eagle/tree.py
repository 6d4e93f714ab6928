"""What the two verifications share: the arguments that describe a draft tree, and their checks.

A request's tree has `nodes` nodes; node 0 is the root, its token is already accepted.  retrieve_next_token gives
a node's first child, retrieve_next_sibling the next child of the same parent, -1 for none.
"""

from __future__ import annotations

import torch

from ..harness import check

NODES_LIMIT = 1024


def check_tree(
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    steps: int | None,
) -> int:
    """Types, dtypes, shapes, devices; never reads a value.  Returns the width of accept_index."""
    shape = check.tensor("candidates", candidates, dtypes=check.INTEGERS, shape=(None, None)).shape
    for name, value in (
        ("retrieve_index", retrieve_index),
        ("retrieve_next_token", retrieve_next_token),
        ("retrieve_next_sibling", retrieve_next_sibling),
    ):
        check.tensor(name, value, dtypes=check.INTEGERS, shape=shape, like=candidates)
    nodes = check.number("candidates.shape[1]", shape[1], least=1, most=NODES_LIMIT)
    check.number("candidates.numel()", candidates.numel(), most=2**31 - 1)
    return nodes if steps is None else check.number("num_speculative_tokens", steps, least=1)


def check_tree_values(
    retrieve_index: torch.Tensor, retrieve_next_token: torch.Tensor, retrieve_next_sibling: torch.Tensor
) -> None:
    """The links of every request form one tree that holds all its nodes, and retrieve_index numbers the nodes
    of each request within its own slice.  Waits for the device."""
    requests, nodes = retrieve_index.shape
    first = torch.arange(requests, device=retrieve_index.device)[:, None] * nodes
    wanted = first + torch.arange(nodes, device=retrieve_index.device)
    bad = retrieve_index.sort(1).values != wanted
    check.values("retrieve_index", bad, retrieve_index, "rows that are permutations of their slice of bs*nodes")
    for name, links in (
        ("retrieve_next_token", retrieve_next_token),
        ("retrieve_next_sibling", retrieve_next_sibling),
    ):
        check.values(name, (links < -1) | (links >= nodes), links, f"-1 or a node below {nodes}")
    children, siblings = retrieve_next_token.tolist(), retrieve_next_sibling.tolist()
    for request in range(requests):
        fault = tree_fault(children[request], siblings[request])
        if fault:
            raise ValueError(f"retrieve_next_token, retrieve_next_sibling: no tree in request {request}: {fault}")


def tree_fault(next_token: list[int], next_sibling: list[int]) -> str | None:
    """Why links between nodes are no tree with root 0, or None."""
    if next_sibling[0] != -1:
        return f"the root has node {next_sibling[0]} as its sibling"
    reached, open_nodes = {0}, [0]
    while open_nodes:
        node = open_nodes.pop()
        child = next_token[node]
        while child != -1:
            if child in reached:
                return f"node {child} is reached twice"
            reached.add(child)
            open_nodes.append(child)
            child = next_sibling[child]
    missing = sorted(set(range(len(next_token))) - reached)
    return f"node {missing[0]} has no path from the root" if missing else None
