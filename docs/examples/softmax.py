"""Softmax over the rows of a matrix in several forms, which the pages about `model`, `watch` and timelines use."""

import triton
import triton.language as tl


@triton.jit
def one_row(x, out, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    value = tl.load(x + row * columns + column, mask=mask, other=float("-inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + column, value / tl.sum(value, 0), mask=mask)


@triton.jit
def careless(x, out, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = columns > column
    value = tl.load(x + row * columns + column, mask=mask, other=float("-inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + column, value / tl.sum(value, 0), mask=mask)


@triton.jit
def many_rows(x, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * columns + column[None, :]
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        value = tl.load(x + at, mask=mask, other=float("-inf"))
        value = tl.exp(value - tl.max(value, 1)[:, None])
        tl.store(out + at, value / tl.sum(value, 1)[:, None], mask=mask)


@triton.jit
def filled_later(x, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * columns + column[None, :]
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        value = tl.load(x + at, mask=mask)
        value = tl.where((column < columns)[None, :], value, float("-inf"))
        value = tl.exp(value - tl.max(value, 1)[:, None])
        tl.store(out + at, value / tl.sum(value, 1)[:, None], mask=mask)
