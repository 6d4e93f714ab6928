"""The metadata of a whole EAGLE v2 decode step as one op: what `scenario.metadata_step` does, models left out.

argument                                shape                  dtype     meaning
req_to_token                            [pool_rows, pool_len]  int32/64  the pool; new slots are written
req_pool_indices, seq_lens              [bs]                   int32     row and length of each request
verify_end                              [bs]                   int32     seq_lens + nodes
allocated, wanted                       [bs]                   int32     span of each request's new slots
new_slots                               [sum]                  int64     those slots
first_p, first_index, first_hidden      [bs, k], [bs, k], [bs, H]        the draft model behind the roots
later_p, later_index, later_hidden      [steps-1, bs*k, k], .., [.., H]  and behind each later step's tokens
candidates, retrieve_index,             [bs, nodes]            int64     the draft trees
retrieve_next_token, retrieve_next_sibling
target_predict                          [bs, nodes]            int64     the target model's tokens
page_size                               int                    -         tokens a page

-> accept_lens, tokens, new_verified_id, draft_slots, verify_slots, accepted_slots, drafted; see scenario.Step

Launch: steps + 6, one after another: the pool, draft slots, a selection each draft step, verify slots, the
verdict, the accepted slots, the next roots.
"""

from __future__ import annotations

import functools

import torch

from ..harness import check
from ..harness.spec import Arguments, Case
from . import scenario

IMPLEMENTATIONS = {"triton": scenario.TRITON}


def decode_step(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    verify_end: torch.Tensor,
    allocated: torch.Tensor,
    wanted: torch.Tensor,
    new_slots: torch.Tensor,
    first_p: torch.Tensor,
    first_index: torch.Tensor,
    first_hidden: torch.Tensor,
    later_p: torch.Tensor,
    later_index: torch.Tensor,
    later_hidden: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    page_size: int,
    *,
    impl: str | scenario.Ops = "triton",
    validate: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Every launch of one decode step, in order.  The ops check their own arguments; validate=True is theirs."""
    p = check.tensor("first_p", first_p, shape=(None, None))
    later = check.tensor("later_p", later_p, shape=(None, None, None), like=p)
    nodes = check.tensor("candidates", candidates, shape=(len(p), None), like=p).shape[1]
    config = scenario.Config(
        p.shape[1],
        1 + len(later),
        check.number("page_size", page_size, least=1),
        nodes,
        check.tensor("req_to_token", req_to_token, shape=(None, None), like=p).shape[1],
    )
    if config.nodes != nodes:
        raise ValueError(f"candidates: expected at most {config.nodes} nodes, root and drafts, got {nodes}")
    inputs = scenario.Inputs(req_to_token, req_pool_indices, seq_lens, verify_end, allocated, wanted, new_slots)
    answers = [(first_p, first_index, first_hidden), *zip(later_p, later_index, later_hidden)]
    tree = scenario.Tree(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    ops = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        ops = {name: functools.partial(op, validate=True) for name, op in ops.items()}
    step = scenario.metadata_step(ops, config, inputs, scenario.Canned(answers, tree, target_predict))
    return tuple(vars(step).values())


reference = functools.partial(decode_step, impl=scenario.REFERENCE)
torch_form = functools.partial(decode_step, impl=scenario.TORCH)


def arguments(
    requests: int, topk: int, steps: int, page_size: int = 1, *, hidden: int = 32, pool_len: int = 1024
) -> Arguments:
    """A batch in the middle of decoding, with everything the models would say."""
    config = scenario.Config(topk, steps, page_size, pool_len=pool_len, hidden=hidden)
    inputs, model = scenario.prepare(config, requests)
    first, later = model.answers[0], model.answers[1:]
    shapes = ((0, requests * topk, topk), (0, requests * topk, topk), (0, requests * topk, hidden))
    stacked = [
        torch.stack([answer[i] for answer in later]) if later else first[i].new_empty(shapes[i]) for i in range(3)
    ]
    tree = model.trees
    return {
        **vars(inputs),
        **dict(zip(("first_p", "first_index", "first_hidden"), first)),
        **dict(zip(("later_p", "later_index", "later_hidden"), stacked)),
        **{name: value for name, value in vars(tree).items() if name != "parents"},
        "target_predict": model.predictions,
        "page_size": page_size,
    }


def bytes_moved(a: Arguments) -> int:
    """Answers and trees read once, slots and hidden states written once; the pool only where it is touched."""
    tensors = {name: value for name, value in a.items() if isinstance(value, torch.Tensor)}
    read = sum(t.numel() * t.element_size() for name, t in tensors.items() if name != "req_to_token")
    hidden = a["first_hidden"].numel() * a["first_p"].shape[1] + a["later_hidden"].numel()
    return read + hidden * a["first_hidden"].element_size() + 4 * len(a["new_slots"])


def _case(requests: int, topk: int, steps: int, page_size: int, **more) -> Case:
    size = {"hidden": 4096, "pool_len": 8192} if more.get("timed") else {}
    return Case(lambda _: arguments(requests, topk, steps, page_size, **size), **more)


SIZES = {
    "bs1-topk4-steps3-page1": (1, 4, 3, 1),
    "bs32-topk1-steps3-page1": (32, 1, 3, 1),
    "bs32-topk4-steps3-page1": (32, 4, 3, 1),
    "bs256-topk1-steps3-page1": (256, 1, 3, 1),
    "bs256-topk4-steps3-page1": (256, 4, 3, 1),
    "bs256-topk4-steps3-page64": (256, 4, 3, 64),
    "bs256-topk8-steps5-page1": (256, 8, 5, 1),
    "bs256-topk8-steps5-page16": (256, 8, 5, 16),
}
CASES = {
    "bs3-topk2-steps2-page4": _case(3, 2, 2, 4, quick=True),
    "bs8-topk4-steps3-page1": _case(8, 4, 3, 1, quick=True),
    "bs5-topk1-steps1-page16": _case(5, 1, 1, 16, quick=True),
    "bs2-topk8-steps5-page64": _case(2, 8, 5, 64),
    **{name: _case(*size, timed=True) for name, size in SIZES.items()},
}
