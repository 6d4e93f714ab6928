"""How cache entries are judged: what fp32 arithmetic leaves open is bounded, all else is exact."""

from __future__ import annotations

import torch

from ..harness.spec import Arguments, exact, first_difference
from .reference import pages

ERROR = 0.08  # of an entry's absmax, after dequantisation
BYTES = 0.001  # of the written bytes may differ: a code next to a rounding boundary
FEW = 4  # bytes may always: one pooled value rounded the other way moves a few codes of a case with few pools


def entries_close(name: str, actual: torch.Tensor, expected: torch.Tensor, arguments: Arguments) -> str | None:
    """Entries written by this call: dequantised error at most 0.08 of their absmax everywhere, or the next code
    under the same scale, and at most 0.1 % of bytes different (of few bytes: 4).  Entries not written, and every
    other tensor: bit for bit.

    A number between two codes becomes either when it is off by one bit.  Above 256 codes are 32 apart, which is
    up to an eighth of the absmax, so that among millions of pools every order of summation exceeds 0.08.

    Gives None, or what is wrong.

    An entry that is NaN in the reference (a score of +inf) must have NaN codes; its scale is not compared.
    """
    if name == "kv_cache":
        codes, scales = read_entries(actual, arguments.get("preshuffled", False))
        wanted_codes, wanted_scales = read_entries(expected, arguments.get("preshuffled", False))
        slots = written_slots(arguments)
        others = torch.ones(len(codes), dtype=torch.bool)
        others[slots] = False
        for what, got, want in (("codes", codes, wanted_codes), ("scales", scales, wanted_scales)):
            wrong = exact(f"{name} ({what} of entries not to be written)", got[others], want[others], arguments)
            if wrong:
                return wrong
        return _close(name, codes[slots], scales[slots], wanted_codes[slots], wanted_scales[slots])
    if name == "output[0]":
        one = torch.ones(len(actual))
        return _close(name, actual, one, expected, one)
    if name == "output[1]":
        near = (actual - expected).abs() <= 0.01 * expected.abs()
        near |= ~expected.isfinite()
        return None if bool(near.all()) else first_difference(name, actual, expected, ~near)
    return exact(name, actual, expected, arguments)


def read_entries(kv_cache: torch.Tensor, preshuffled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [slots, 128] and scales [slots] fp32 of the whole cache."""
    code_view, scale_view = pages(kv_cache, preshuffled)
    codes = code_view.transpose(2, 3).reshape(-1, 128)
    return codes, scale_view.reshape(-1, 4).contiguous().view(torch.float32)[:, 0]


def written_slots(arguments: Arguments) -> torch.Tensor:
    """Flat slots that the arguments of compress or decode ask to be written."""
    if "loc" in arguments:
        if not arguments.get("write_cache", True):
            return arguments["loc"][:0]
        mask = arguments.get("write_mask")
        return arguments["loc"] if mask is None else arguments["loc"][mask]
    positions, slots, size = arguments["positions"], arguments["slot_mapping"], arguments["pool_size"]
    complete = (positions >= 0) & (positions % size == size - 1) & (slots >= 0)
    return slots[complete & (arguments["tail_slot_mapping"] >= 0)].long()


def _close(name: str, codes, scales, wanted_codes, wanted_scales) -> str | None:
    got, want = _values(codes) * scales[:, None], _values(wanted_codes) * wanted_scales[:, None]
    lost = _values(wanted_codes).isnan().any(1)
    if bool((_values(codes).isnan() != _values(wanted_codes).isnan()).any()):
        return f"{name}: NaN codes in other places than in the reference"
    codes, wanted_codes, got, want = codes[~lost], wanted_codes[~lost], got[~lost], want[~lost]
    scales, wanted_scales = scales[~lost], wanted_scales[~lost]
    far = ~((got - want).abs() <= ERROR * want.abs().amax(1, keepdim=True)) if len(want) else got != got
    # Codes of one sign follow each other like their numbers.
    next_code = (codes.short() - wanted_codes.short()).abs() == 1
    far &= ~(next_code & ((codes ^ wanted_codes) < 128) & (scales == wanted_scales)[:, None])
    if bool(far.any()):
        return first_difference(f"{name} (dequantised)", got, want, far)
    parts = (codes, scales, wanted_codes, wanted_scales)
    as_bytes = [t.contiguous().view(torch.uint8).flatten() for t in parts]
    different = int((as_bytes[0] != as_bytes[2]).sum()) + int((as_bytes[1] != as_bytes[3]).sum())
    total = sum(t.numel() for t in as_bytes[:2])
    most = max(FEW, int(BYTES * total))
    if different > most:
        return f"{name}: {different} of {total} written bytes differ from the reference, more than {most}"
    return None


def _values(codes: torch.Tensor) -> torch.Tensor:
    return codes.contiguous().view(torch.float8_e4m3fn).float()
