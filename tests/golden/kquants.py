"""Plain Q4_K and Q6_K quantisers (the gguf package only reads these types): round to nearest, no search for better scales."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

BLOCK = 256


def _half(x):
    return x.astype(np.float16)


def _ratio(a, b):
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b != 0)


def q6_k(blocks):
    """16 sub-blocks of 16: ql[128] low nibbles, qh[64] upper bit pairs, 16 scales i8, d f16."""
    n = len(blocks)
    sub = blocks.reshape(n, 16, 16)
    peak = np.take_along_axis(sub, np.abs(sub).argmax(-1)[..., None], -1)[..., 0]
    scale = peak / -32
    top = np.take_along_axis(scale, np.abs(scale).argmax(-1)[:, None], -1)
    d = _half(top / -128)
    steps = np.clip(np.rint(_ratio(scale, d.astype(np.float32))), -128, 127)
    q = np.rint(_ratio(sub, (d.astype(np.float32) * steps)[..., None]))
    q = (np.clip(q, -32, 31) + 32).astype(np.uint8).reshape(n, 2, 4, 32)   # half, quarter, lane
    ql = np.concatenate([(q[:, :, 0] & 15) | (q[:, :, 2] & 15) << 4, (q[:, :, 1] & 15) | (q[:, :, 3] & 15) << 4], -1)
    qh = q[:, :, 0] >> 4 | q[:, :, 1] >> 4 << 2 | q[:, :, 2] >> 4 << 4 | q[:, :, 3] >> 4 << 6
    return np.concatenate([ql.reshape(n, 128), qh.reshape(n, 64), steps.astype(np.int8).view(np.uint8), d.view(np.uint8)], -1)


def q4_k(blocks):
    """8 sub-blocks of 32: d f16, dmin f16, 12 bytes of 6-bit scales and minima, qs[128]."""
    n = len(blocks)
    sub = blocks.reshape(n, 8, 32)
    low = np.minimum(sub.min(-1), 0)
    scale = (sub.max(-1) - low) / 15
    d, dmin = _half(scale.max(-1, keepdims=True) / 63), _half(-low.min(-1, keepdims=True) / 63)
    d32, dmin32 = d.astype(np.float32), dmin.astype(np.float32)
    ls = np.clip(np.rint(_ratio(scale, d32)), 0, 63).astype(np.uint8)
    lm = np.clip(np.rint(_ratio(-low, dmin32)), 0, 63).astype(np.uint8)
    q = np.rint(_ratio(sub + (dmin32 * lm)[..., None], (d32 * ls)[..., None]))
    q = np.clip(q, 0, 15).astype(np.uint8).reshape(n, 4, 2, 32)
    packed = np.concatenate([ls[:, :4] | ls[:, 4:] >> 4 << 6, lm[:, :4] | lm[:, 4:] >> 4 << 6,
                             (ls[:, 4:] & 15) | (lm[:, 4:] & 15) << 4], -1)
    qs = (q[:, :, 0] | q[:, :, 1] << 4).reshape(n, 128)
    return np.concatenate([d.view(np.uint8), dmin.view(np.uint8), packed, qs], -1)


def quantize(value, kind):
    """As gguf.quants.quantize, with Q4_K and Q6_K added."""
    own = {Q.Q4_K: q4_k, Q.Q6_K: q6_k}.get(kind)
    if own is None:
        return gguf.quants.quantize(value, kind)
    return own(value.reshape(-1, BLOCK)).reshape(*value.shape[:-1], -1)
