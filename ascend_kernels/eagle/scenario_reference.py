"""The decode step once more in plain Python: one request, lists, no tensors, no slots.

It shares with scenario.py the rules of the toy language (as formulas written again) and nothing else.
"""

from __future__ import annotations

VOCAB = 997


def children(mode: str, k: int, token: int, before: int) -> list[tuple[float, int]]:
    """Probability and token of each draft child behind `token`, which follows `before`."""
    mark = before % 251
    found = []
    for j in range(k):
        if mode == "all":
            weight = 16 if j == (token + mark) % k else 1 + (token + j) % 8
        else:
            weight = 1 + (token * 13 + mark * 3 + j * 5) % 12 + 4 * (j == (token + mark) % k)
        found.append((weight / 16, (token * 31 + mark * 11 + j * 7 + 3) % VOCAB))
    return found


def target(mode: str, k: int, token: int, before: int) -> int:
    """The target's token behind `token`."""
    mark = before % 251
    likely = children(mode, k, token, before)[(token + mark) % k][1]
    other = VOCAB + (token * 7 + mark) % 89
    if mode == "all":
        return likely
    if mode == "none":
        return other
    return likely if (token * 17 + mark * 5) % 10 < 6 else other


def continuation(mode: str, k: int, tokens: list[int], count: int) -> list[int]:
    """What the target alone would write behind `tokens`, one token at a time."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(target(mode, k, tokens[-1], tokens[-2]))
    return tokens[-count:] if count else []


def accepted(mode: str, k: int, steps: int, nodes: int, tokens: list[int]) -> list[int]:
    """Tokens one decode step adds to a request: the accepted drafts and the bonus token."""
    root = (tokens[-2], tokens[-1])
    # A draft: score, its parent in `drafts` (-1: the root), its token and the one before it.
    drafts = [(p, -1, token, root[1]) for p, token in children(mode, k, root[1], root[0])]
    branches = list(range(k))
    for _ in range(steps - 1):
        grown = []
        for branch in branches:
            score, _, token, before = drafts[branch]
            for p, child in children(mode, k, token, before):
                grown.append(len(drafts))
                drafts.append((score * p, branch, child, token))
        branches = sorted(grown, key=lambda d: (-drafts[d][0], d))[:k]
    tree = sorted(sorted(range(len(drafts)), key=lambda d: (-drafts[d][0], d))[: nodes - 1])
    path, at, last = [], -1, root
    while True:
        wanted = target(mode, k, last[1], last[0])
        path.append(wanted)
        hits = [d for d in tree if drafts[d][1] == at and drafts[d][2] == wanted]
        if not hits:
            return path
        at, last = hits[0], (last[1], wanted)
