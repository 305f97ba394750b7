#!/usr/bin/env python3
"""Tiny random-weight qwen35 files and the numbers a correct engine must reproduce.

    python generate.py                  writes every file of this folder again (same bytes on the same versions)
    python generate.py --verify FOLDER  checks the model code here against another set of NAME.gguf + NAME.golden.*

Needs torch, numpy, gguf, tokenizers, jinja2, safetensors (versions in README.md).
"""

import argparse
import dataclasses
import json
import math
import pathlib
import sys

import torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "model"))

import gguf_io  # noqa: E402
import kquants  # noqa: E402
import qwen35  # noqa: E402
import rounding  # noqa: E402
import tokenizer as bpe  # noqa: E402

VOCAB, GREEDY, CLEAR = 288, 24, 0.05
LENGTHS = (7, 70, 130)             # inside one chunk of 64, past one, past two
TEXT = "the screen shows the button and the list; tap the button, then the list on the screen is done. "

A = qwen35.Shape(vocab=VOCAB, hidden=48, ffn=64, layers=4, heads=2, kv_heads=1, head_dim=32, rope_dim=8,
                 rope_sections=(2, 1, 1, 0), gdn_k_heads=2, gdn_v_heads=2, gdn_k_dim=32, gdn_v_dim=32)
B = qwen35.Shape(vocab=VOCAB, hidden=64, ffn=64, layers=3, heads=4, kv_heads=2, head_dim=32, rope_dim=16,
                 rope_sections=(3, 3, 2, 0), gdn_k_heads=2, gdn_v_heads=4, gdn_k_dim=32, gdn_v_dim=32, tied=False, interval=2)
C = qwen35.Shape(vocab=VOCAB, hidden=256, ffn=256, layers=2, heads=2, kv_heads=1, head_dim=64, rope_dim=16,
                 rope_sections=(3, 3, 2, 0), gdn_k_heads=1, gdn_v_heads=2, gdn_k_dim=64, gdn_v_dim=64, interval=2)


def k_mix(name):
    """What a Q4_K_M file holds: Q6_K for the output, attn_v and ffn_down; rows that are not of 256 fall back to Q8_0."""
    if "ssm_out" in name or "attn_output" in name:
        return Q.Q8_0
    return Q.Q6_K if name == "token_embd.weight" or "attn_v." in name or "ffn_down" in name else Q.Q4_K


FILES = [
    ("qwen35-a", A, 11, lambda name: Q.F32),
    ("qwen35-b", B, 12, lambda name: Q.F32),
    ("qwen35-b-q8_0", B, 12, lambda name: Q.Q8_0),
    ("qwen35-b-q4_0", B, 12, lambda name: Q.Q8_0 if name == "output.weight" else Q.Q4_0),
    ("qwen35-c-q4_k_m", C, 13, k_mix),
]


def draw(shape, seed):
    """Weights in GGUF value space; the logits come out with a standard deviation of about 3.5."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*dims):
        return torch.randn(dims, generator=generator)

    out = {}
    for name, dims in shape.tensors().items():
        if name.endswith("norm.weight"):
            out[name] = 1 + 0.2 * normal(*dims)
        elif name.endswith("ssm_a"):
            out[name] = -torch.exp(0.7 * normal(*dims))
        elif name.endswith("ssm_dt.bias"):
            out[name] = normal(*dims) - 2
        elif name.endswith("conv1d.weight"):
            out[name] = 0.5 * normal(*dims)
        elif name in ("token_embd.weight", "output.weight"):
            out[name] = 3.5 / math.sqrt(dims[1]) * normal(*dims)
        else:
            out[name] = normal(*dims) / math.sqrt(dims[1])
    return out


def greedy(model, ids):
    """(24 argmax tokens after `ids`, end tokens not special; the smallest lead of the best over the second)."""
    out, gap = ids.clone(), float("inf")
    for _ in range(GREEDY):
        top = model.logits(model.hidden(out)[:, -1:])[0, 0].topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        out = torch.cat([out, top.indices[:1][None]], 1)
    return out[0, ids.shape[1]:], gap


def values(shape, w, kinds, ids):
    """Every golden tensor of one prompt (names without the prompt's prefix) and its entry in the json."""
    model, n = qwen35.Model(shape, w), ids.shape[1]
    positions = torch.tensor([0, n // 4, n // 2, n - 2, n - 1])
    mtp_positions = torch.tensor([0, n // 3, n - 2, n - 1])
    layer = max(i for i in range(shape.layers) if shape.recurrent(i) and i <= 1)
    state = {}
    hidden = model.hidden(ids, state)
    logits = model.logits(hidden)[0]
    tokens, gap = greedy(model, ids)
    ahead = model.logits(model.mtp_hidden(torch.cat([ids[:, 1:], tokens[None, :1]], 1), hidden))[0]
    out = {
        "input_ids": ids[0], "positions": positions, "logits": logits[positions], "greedy": tokens,
        "gdn_conv_state": state[f"blk.{layer}."]["conv"][0], "gdn_S": state[f"blk.{layer}."]["S"][0],
        "mtp_positions": mtp_positions, "mtp_logits": ahead[mtp_positions], "mtp_hidden_in_last": hidden[0, -1],
    }
    about = {
        "input_ids": ids[0].tolist(), "logit_positions": positions.tolist(), "greedy": tokens.tolist(),
        "argmax_at_positions": logits[positions].argmax(-1).tolist(), "greedy_min_top2_gap": gap,
        "logit_std": float(logits.std()), "mtp_positions": mtp_positions.tolist(),
        "mtp_argmax": ahead[mtp_positions].argmax(-1).tolist(), "mtp_next_token_after_last": int(tokens[0]), "gdn_layer": layer,
    }
    if any(kind != Q.F32 for kind in kinds.values()):
        rounded = qwen35.Model(shape, w, rounding.product(kinds))
        out["logits_q8act"] = rounded.logits(rounded.hidden(ids))[0][positions]
        out["greedy_q8act"], about["greedy_q8act_min_top2_gap"] = greedy(rounded, ids)
        about["greedy_q8act"] = out["greedy_q8act"].tolist()
        about["argmax_q8act"] = out["logits_q8act"].argmax(-1).tolist()
    return {name: tensor.contiguous() for name, tensor in out.items()}, about


def clear_prompt(shape, w, kinds, length):
    """The first seeded prompt whose greedy path has no near tie, so that float noise cannot turn it."""
    for seed in range(1000):
        ids = torch.randint(0, VOCAB - len(bpe.SPECIALS), (1, length), generator=torch.Generator().manual_seed(seed))
        golden, about = values(shape, w, kinds, ids)
        if about["greedy_min_top2_gap"] > CLEAR:
            return golden, about
    sys.exit(f"no prompt of {length} tokens has a greedy path with every lead above {CLEAR}")


def generate():
    vocab, merges, types = bpe.learn([TEXT], VOCAB)
    for name, shape, seed, quant_of in FILES:
        path = HERE / f"{name}.gguf"
        w, kinds = gguf_io.write(path, name, shape, draw(shape, seed), vocab, merges, types, quant_of, kquants.quantize)
        quantised = any(kind != Q.F32 for kind in kinds.values())
        tensors, prompts = {}, []
        for j, length in enumerate(LENGTHS[:2] if quantised else LENGTHS):
            golden, about = clear_prompt(shape, w, kinds, length)
            tensors |= {f"p{j}.{key}": tensor for key, tensor in golden.items()}
            prompts.append(about)
        save_file(tensors, HERE / f"{name}.golden.safetensors")
        (HERE / f"{name}.golden.json").write_text(json.dumps(
            {"model": path.name, "shape": dataclasses.asdict(shape), "prompts": prompts}, indent=1) + "\n")
        print(f"{name}: {path.stat().st_size} bytes, logit std {[round(p['logit_std'], 2) for p in prompts]}, "
              f"greedy gap {[round(p['greedy_min_top2_gap'], 3) for p in prompts]}")


def verify(folder):
    """Largest difference of each golden tensor from what the code here computes; exit code 1 above 1e-4."""
    worst = 0.0
    for path in sorted(folder.glob("qwen35-*.gguf")):
        golden, about = path.with_suffix(".golden.safetensors"), path.with_suffix(".golden.json")
        if not golden.exists():
            continue
        shape, w, kinds = gguf_io.read(path)
        if dict(shape.tensors()) != {name: tuple(t.shape) for name, t in w.items()}:
            sys.exit(f"{path.name}: tensors differ from the qwen35 map: {set(shape.tensors()) ^ set(w)}")
        want, prompts = load_file(golden), json.loads(about.read_text())["prompts"]
        for j, prompt in enumerate(prompts):
            ids = want[f"p{j}.input_ids"][None]
            model, state = qwen35.Model(shape, w), {}
            hidden = model.hidden(ids, state)
            logits = model.logits(hidden)[0]
            ahead = model.logits(model.mtp_hidden(torch.cat([ids[:, 1:], want[f"p{j}.greedy"][None, :1]], 1), hidden))[0]
            left = state[f"blk.{prompt['gdn_layer']}."]
            got = {"logits": logits[want[f"p{j}.positions"]], "gdn_conv_state": left["conv"][0], "gdn_S": left["S"][0],
                   "mtp_logits": ahead[want[f"p{j}.mtp_positions"]], "mtp_hidden_in_last": hidden[0, -1]}
            differences = {key: float((t - want[f"p{j}.{key}"]).abs().max()) for key, t in got.items()}
            worst = max(worst, *differences.values())
            same = torch.equal(greedy(model, ids)[0], want[f"p{j}.greedy"])
            worst = worst if same else float("inf")
            line = " ".join(f"{key} {value:.1e}" for key, value in differences.items())
            if f"p{j}.logits_q8act" in want:
                rounded = qwen35.Model(shape, w, rounding.product(kinds))
                off = (rounded.logits(rounded.hidden(ids))[0][want[f"p{j}.positions"]] - want[f"p{j}.logits_q8act"]).abs().amax(1)
                # Roundings that fall the other way propagate, so this is shown and not judged.
                line += " q8act rows " + " ".join(f"{float(value):.1e}" for value in off)
            print(f"{path.name} p{j} [{ids.shape[1]}]: greedy {'equal' if same else 'DIFFERS'} {line}", flush=True)
    print(f"largest difference {worst:.1e}")
    return 0 if worst < 1e-4 else 1


@torch.no_grad()
def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--verify", type=pathlib.Path, metavar="FOLDER")
    args = flags.parse_args()
    torch.set_num_threads(1)
    if args.verify:
        sys.exit(verify(args.verify))
    generate()


if __name__ == "__main__":
    main()
