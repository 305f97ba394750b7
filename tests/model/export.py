#!/usr/bin/env python3
"""Writes the trained state as demo.gguf (Q8_0 matrices) and checks what is in the file.

    python export.py --state build/state.pt --out demo.gguf
    python export.py --check demo.gguf

The check reads the file back and asks for every answer of both traces three times: teacher-forced with float
activations, teacher-forced with activations rounded to int8 blocks of 32 as an engine does, and (with --greedy) as a free run.
Exit code 1 when an answer of the trained trace is not known by heart.
"""

import argparse
import pathlib
import sys

import gguf
import torch

import gguf_io
import qwen35
import rounding
import screens
import tokenizer as bpe
import train

LIMIT = 8_000_000


def tokenizer_of(path):
    """The tokenizer as the file holds it."""
    file = gguf.GGUFReader(path)
    vocab, merges = (file.get_field(f"tokenizer.ggml.{key}").contents() for key in ("tokens", "merges"))
    return bpe.assemble(vocab, [tuple(m.split(" ")) for m in merges])


def free_run(model, tok, examples, limit=screens.MAX_TOKENS):
    """How many answers come out token by token exactly as recorded, without any schema."""
    right, end = 0, tok.token_to_id("<|im_end|>")
    for tokens, start in examples:
        ids, state = list(tokens[:start]), {}
        hidden = model.hidden(torch.tensor([ids]), state)
        while len(ids) - start < limit:
            ids.append(int(model.logits(hidden[0, -1]).argmax()))
            if ids[-1] == end:
                break
            past, state = state, {}
            hidden = model.hidden(torch.tensor([ids[-1:]]), state, past)
        right += ids == tokens
    return right


@torch.no_grad()
def check(path, free):
    shape, w, kinds = gguf_io.read(path)
    size = pathlib.Path(path).stat().st_size
    tok, good = tokenizer_of(path), size < LIMIT
    print(f"{path}: {size} bytes, {sum(t.numel() for t in w.values())} parameters")
    models = {"float activations": qwen35.Model(shape, w), "int8 activations": qwen35.Model(shape, w, rounding.product(kinds))}
    for trace, lines in (("trained", screens.trained()), ("held out", screens.held_out())):
        examples = train.encode(tok, lines)
        for form, model in models.items():
            r = train.evaluate(model, examples)
            names = [f"{lines[i]['episode']} {lines[i]['step']}" for i in r["wrong"]]
            print(f"{trace:9} {form}: {round(r['answers'] * len(lines))} of {len(lines)} answers, smallest lead {r['lead']:.2f}, "
                  f"mtp {r['mtp']:.3f}" + (f"; not known: {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}" if names else ""))
            good = good and (trace != "trained" or r["answers"] == 1)
        if free:
            print(f"{trace:9} free run, int8 activations: {free_run(models['int8 activations'], tok, examples)} of {len(lines)}")
    return 0 if good else 1


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--state", type=pathlib.Path, default=pathlib.Path("build/state.pt"))
    flags.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo.gguf"))
    flags.add_argument("--check", type=pathlib.Path, help="only check this file")
    flags.add_argument("--greedy", action="store_true", help="also run every answer freely (a minute)")
    args = flags.parse_args()
    torch.set_num_threads(1)
    path = args.check
    if path is None:
        state = torch.load(args.state, weights_only=False)
        with torch.no_grad():
            gguf_io.write(args.out, "Tandem demo, phone screens by heart", state["shape"], train.weights(state["parameters"]),
                          state["vocab"], state["merges"], state["types"], lambda _name: gguf.GGMLQuantizationType.Q8_0)
        path = args.out
    sys.exit(check(path, args.greedy))


if __name__ == "__main__":
    main()
