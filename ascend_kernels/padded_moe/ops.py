"""Registry rows of the padded_moe ops."""

from __future__ import annotations

from ..harness.spec import Op
from . import cases, reference, twins
from .padded_gather import padded_gather
from .padded_scatter import padded_scatter
from .padded_scatter_wgrad import padded_scatter_wgrad
from .route import route

ROWS = (
    Op(
        name="route",
        family="padded_moe",
        call=route,
        reference=reference.route,
        torch_form=reference.route_in_torch,
        cases=cases.ROUTE,
        implementations=("count",),
        bytes_moved=cases.route_bytes,
    ),
    Op(
        name="padded_gather",
        family="padded_moe",
        call=padded_gather,
        reference=reference.padded_gather,
        torch_form=reference.gather_in_torch,
        cases=cases.GATHER,
        implementations=("planned", "slices", "tokens"),
        twins=twins.GATHER,
        bytes_moved=cases.gather_bytes,
    ),
    Op(
        name="padded_scatter",
        family="padded_moe",
        call=padded_scatter,
        reference=reference.padded_scatter,
        torch_form=reference.scatter_in_torch,
        cases=cases.SCATTER,
        implementations=("planned",),
        twins=twins.SCATTER,
        compare=reference.close,
        bytes_moved=cases.scatter_bytes,
    ),
    Op(
        name="padded_scatter_wgrad",
        family="padded_moe",
        call=padded_scatter_wgrad,
        reference=reference.padded_scatter_wgrad,
        torch_form=reference.wgrad_in_torch,
        cases=cases.WGRAD,
        implementations=("planned", "tokens"),
        twins=twins.WGRAD,
        compare=reference.close,
        bytes_moved=cases.wgrad_bytes,
    ),
)
