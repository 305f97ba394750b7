"""Activation rounding of integer dot products: what an engine with quantised weights feeds its matrices."""

import torch
from gguf import GGMLQuantizationType as Q

BLOCK_32 = {Q.Q8_0, Q.Q4_0}
BLOCK_256 = {Q.Q4_K, Q.Q6_K}


def q8_32(x):
    """Blocks of 32: scale max|x|/127 held as f16, values rounded half away from zero with the unrounded scale."""
    b = x.unflatten(-1, (-1, 32))
    scale = b.abs().amax(-1, keepdim=True) / 127
    steps = b * torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    steps = torch.sign(steps) * torch.floor(steps.abs() + 0.5)
    return (steps * scale.half().float()).flatten(-2)


def q8k_256(x):
    """Blocks of 256: scale -(value of largest magnitude)/127 in f32, values rounded half to even, at most 127."""
    b = x.unflatten(-1, (-1, 256))
    peak = b.gather(-1, b.abs().argmax(-1, keepdim=True))
    inverse = torch.where(peak != 0, -127 / peak, torch.zeros_like(peak))
    steps = torch.round(b * inverse).clamp(max=127)
    return (torch.where(peak != 0, steps / inverse, torch.zeros_like(b))).flatten(-2)


def product(kinds):
    """A `qwen35.Model` product that rounds the input of every matrix stored in a quantised type."""
    def apply(name, weight, x):
        kind = kinds[name]
        if kind in BLOCK_32:
            x = q8_32(x)
        elif kind in BLOCK_256:
            x = q8k_256(x)
        return x @ weight.T
    return apply
