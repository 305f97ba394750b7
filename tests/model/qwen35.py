"""The qwen35 text model in plain PyTorch, on tensors named and valued as in the GGUF file.

`w` maps GGUF tensor names to float32 tensors in numpy shape (rows first). Norm weights are plain factors and ssm_a is
already -exp(A_log), so the same code runs a training state, a random model and the dequantised tensors of a file.
"""

import dataclasses

import torch
import torch.nn.functional as F

CHUNK = 64


@dataclasses.dataclass
class Shape:
    """Dimensions; the names follow the GGUF keys where those exist."""

    vocab: int
    hidden: int
    ffn: int
    layers: int                     # without the MTP block
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    rope_sections: tuple
    gdn_k_heads: int                # ssm.group_count
    gdn_v_heads: int                # ssm.time_step_rank
    gdn_k_dim: int                  # ssm.state_size
    gdn_v_dim: int                  # ssm.inner_size / ssm.time_step_rank
    mtp: int = 1
    tied: bool = True
    conv: int = 4
    interval: int = 4
    rope_base: float = 1e7
    eps: float = 1e-6
    context: int = 2048

    def recurrent(self, block):
        return block < self.layers and (block + 1) % self.interval != 0

    @property
    def gdn_keys(self):
        return self.gdn_k_heads * self.gdn_k_dim

    @property
    def gdn_values(self):
        return self.gdn_v_heads * self.gdn_v_dim

    def tensors(self):
        """GGUF tensor name -> numpy shape, in file order."""
        h, out = self.hidden, {"token_embd.weight": (self.vocab, self.hidden), "output_norm.weight": (self.hidden,)}
        if not self.tied:
            out["output.weight"] = (self.vocab, h)
        for i in range(self.layers + self.mtp):
            p = f"blk.{i}."
            out |= {p + "attn_norm.weight": (h,), p + "post_attention_norm.weight": (h,),
                    p + "ffn_gate.weight": (self.ffn, h), p + "ffn_up.weight": (self.ffn, h),
                    p + "ffn_down.weight": (h, self.ffn)}
            if self.recurrent(i):
                mixed = 2 * self.gdn_keys + self.gdn_values
                out |= {p + "attn_qkv.weight": (mixed, h), p + "attn_gate.weight": (self.gdn_values, h),
                        p + "ssm_beta.weight": (self.gdn_v_heads, h), p + "ssm_alpha.weight": (self.gdn_v_heads, h),
                        p + "ssm_conv1d.weight": (mixed, self.conv), p + "ssm_dt.bias": (self.gdn_v_heads,),
                        p + "ssm_a": (self.gdn_v_heads,), p + "ssm_norm.weight": (self.gdn_v_dim,),
                        p + "ssm_out.weight": (h, self.gdn_values)}
            else:
                q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
                out |= {p + "attn_q.weight": (2 * q, h), p + "attn_k.weight": (kv, h), p + "attn_v.weight": (kv, h),
                        p + "attn_q_norm.weight": (self.head_dim,), p + "attn_k_norm.weight": (self.head_dim,),
                        p + "attn_output.weight": (h, q)}
            if i >= self.layers:
                out |= {p + "nextn.eh_proj.weight": (h, 2 * h), p + "nextn.enorm.weight": (h,),
                        p + "nextn.hnorm.weight": (h,), p + "nextn.shared_head_norm.weight": (h,)}
        return out


def plain_product(_name, weight, x):
    return x @ weight.T


class Model:
    """`product(name, weight, x)` may be replaced to emulate activation rounding."""

    def __init__(self, shape, w, product=plain_product):
        self.s, self.w, self.product = shape, w, product

    def mm(self, name, x):
        return self.product(name, self.w[name], x)

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.s.eps) * self.w[name]

    def embed(self, ids):
        return F.embedding(ids, self.w["token_embd.weight"])

    def logits(self, hidden):
        """Post-norm hidden -> vocabulary."""
        return self.mm("token_embd.weight" if self.s.tied else "output.weight", hidden)

    def rope(self, x, first):
        """Text positions only (t = h = w), where interleaved M-RoPE is the plain NEOX rotation. x: [batch, head, n, head_dim]."""
        half = self.s.rope_dim // 2
        frequency = self.s.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(first, first + x.shape[2], dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def attention(self, p, x, state=None, past=None):
        s, (b, n, _) = self.s, x.shape
        before = past[p]["k"].shape[2] if past else 0
        q, gate = self.mm(p + "attn_q.weight", x).view(b, n, s.heads, 2 * s.head_dim).chunk(2, -1)
        k = self.mm(p + "attn_k.weight", x).view(b, n, s.kv_heads, s.head_dim)
        v = self.mm(p + "attn_v.weight", x).view(b, n, s.kv_heads, s.head_dim)
        q = self.rope(self.norm(q, p + "attn_q_norm.weight").transpose(1, 2), before)
        k = self.rope(self.norm(k, p + "attn_k_norm.weight").transpose(1, 2), before)
        v = v.transpose(1, 2)
        if past:
            k, v = (torch.cat([past[p][name].expand(b, -1, -1, -1), new], 2) for name, new in (("k", k), ("v", v)))
        if state is not None:
            state[p] = {"k": k, "v": v}
        group = s.heads // s.kv_heads
        mask = torch.ones(n, before + n, dtype=torch.bool).tril(before)
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=mask)
        o = o.transpose(1, 2) * torch.sigmoid(gate)
        return self.mm(p + "attn_output.weight", o.reshape(b, n, -1))

    def delta(self, p, x, state=None, past=None):
        """Gated DeltaNet in chunks."""
        s, (b, n, _) = self.s, x.shape
        raw = self.mm(p + "attn_qkv.weight", x)
        if past:
            padded = torch.cat([past[p]["conv"].expand(b, -1, -1), raw.transpose(1, 2)], -1)
        else:
            padded = F.pad(raw.transpose(1, 2), (s.conv - 1, 0))
        mixed = F.silu(F.conv1d(padded, self.w[p + "ssm_conv1d.weight"][:, None], groups=raw.shape[-1])).transpose(1, 2)
        q, k, v = mixed.split([s.gdn_keys, s.gdn_keys, s.gdn_values], -1)

        def unit(t):
            return t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)

        repeat = s.gdn_v_heads // s.gdn_k_heads
        # V head h uses K head h % n_k: the K heads repeat as a whole.
        q = (unit(q.view(b, n, s.gdn_k_heads, s.gdn_k_dim)) * s.gdn_k_dim**-0.5).repeat(1, 1, repeat, 1)
        k = unit(k.view(b, n, s.gdn_k_heads, s.gdn_k_dim)).repeat(1, 1, repeat, 1)
        v = v.view(b, n, s.gdn_v_heads, s.gdn_v_dim)
        beta = torch.sigmoid(self.mm(p + "ssm_beta.weight", x))
        g = self.w[p + "ssm_a"] * F.softplus(self.mm(p + "ssm_alpha.weight", x) + self.w[p + "ssm_dt.bias"])

        pad = -n % CHUNK                       # padded tokens have beta 0 and decay 1: they leave the state alone
        q, k, v = (F.pad(t.transpose(1, 2), (0, 0, 0, pad)).unflatten(2, (-1, CHUNK)) for t in (q, k, v))
        beta, g = (F.pad(t.transpose(1, 2), (0, pad)).unflatten(2, (-1, CHUNK)) for t in (beta, g))
        total = g.cumsum(-1)
        causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
        decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, float("-inf")).exp()
        kb = k * beta[..., None]
        triangle = (kb @ k.transpose(-1, -2) * decay).tril(-1) + torch.eye(CHUNK)
        solved = torch.linalg.solve_triangular(
            triangle, torch.cat([v * beta[..., None], kb * total.exp()[..., None]], -1), upper=False, unitriangular=True)
        u, wk = solved.split([s.gdn_v_dim, s.gdn_k_dim], -1)
        inside = q @ k.transpose(-1, -2) * decay
        q_in = q * total.exp()[..., None]
        k_out = k * (total[..., -1:] - total).exp()[..., None]
        S = past[p]["S"].expand(b, -1, -1, -1) if past else torch.zeros(b, s.gdn_v_heads, s.gdn_k_dim, s.gdn_v_dim)
        out = []
        for c in range(q.shape[2]):
            new = u[:, :, c] - wk[:, :, c] @ S
            out.append(q_in[:, :, c] @ S + inside[:, :, c] @ new)
            S = S * total[:, :, c, -1].exp()[..., None, None] + k_out[:, :, c].transpose(-1, -2) @ new
        o = torch.stack(out, 2).flatten(2, 3)[:, :, :n].transpose(1, 2)
        if state is not None:
            state[p] = {"conv": padded[..., -(s.conv - 1):], "S": S}
        z = self.mm(p + "attn_gate.weight", x).view(b, n, s.gdn_v_heads, s.gdn_v_dim)
        return self.mm(p + "ssm_out.weight", (self.norm(o, p + "ssm_norm.weight") * F.silu(z)).reshape(b, n, -1))

    def block(self, i, x, state=None, past=None):
        p = f"blk.{i}."
        h = self.norm(x, p + "attn_norm.weight")
        x = x + (self.delta if self.s.recurrent(i) else self.attention)(p, h, state, past)
        h = self.norm(x, p + "post_attention_norm.weight")
        act = F.silu(self.mm(p + "ffn_gate.weight", h)) * self.mm(p + "ffn_up.weight", h)
        return x + self.mm(p + "ffn_down.weight", act)

    def hidden(self, ids, state=None, past=None):
        """[batch, n] -> post-norm hidden states [batch, n, H]; position p reads tokens 0..p.

        A dict in `state` receives each block's state after the last token ("conv" and "S", or "k" and "v"); `past` is such
        a dict to go on from, of this batch or of one row shared by all.
        """
        x = self.embed(ids)
        for i in range(self.s.layers):
            x = self.block(i, x, state, past)
        return self.norm(x, "output_norm.weight")

    def mtp_hidden(self, next_ids, hidden, state=None, past=None):
        """Entry p from (token p+1, post-norm hidden p) -> normed MTP hidden; its logits predict token p+2."""
        p = f"blk.{self.s.layers}.nextn."
        both = torch.cat([self.norm(self.embed(next_ids), p + "enorm.weight"), self.norm(hidden, p + "hnorm.weight")], -1)
        return self.norm(self.block(self.s.layers, self.mm(p + "eh_proj.weight", both), state, past), p + "shared_head_norm.weight")
