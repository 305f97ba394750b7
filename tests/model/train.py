#!/usr/bin/env python3
"""Trains the demo model on the demo trace until it knows every answer by heart.

    python train.py --out build --steps 600

Writes build/state.pt (tensors, tokenizer, shape) after every evaluation; `--resume` goes on from there.
"""

import argparse
import pathlib
import random
import time

import torch
import torch.nn.functional as F

import qwen35
import screens
import tokenizer as bpe

VOCAB = 2048
SHAPE = qwen35.Shape(
    vocab=VOCAB, hidden=256, ffn=512, layers=4, heads=2, kv_heads=1, head_dim=256, rope_dim=64,
    rope_sections=(11, 11, 10, 0), gdn_k_heads=2, gdn_v_heads=2, gdn_k_dim=128, gdn_v_dim=128, context=4096)
PROMPT_WEIGHT, MTP_WEIGHT = 0.05, 0.3


def texts():
    """What the vocabulary is learned from: rendered training requests, their answers, the generator's words."""
    for line in screens.trained():
        whole = bpe.render(line["request"]["messages"]) + line["expect"]
        for special in bpe.SPECIALS:
            whole = whole.replace(special, "\0")
        yield from (part for part in whole.split("\0") if part)
    yield from screens.words()


def encode(tok, lines):
    """[(ids, answer start)]: prompt, canonical BPE of the compact JSON, <|im_end|>."""
    out = []
    for line in lines:
        prompt = tok.encode(bpe.render(line["request"]["messages"]), add_special_tokens=False).ids
        answer = tok.encode(line["expect"], add_special_tokens=False).ids + [tok.token_to_id("<|im_end|>")]
        out.append((prompt + answer, len(prompt)))
    return out


def batch_of(examples):
    """Right-padded ids, the weight of predicting each token, the length of the prefix all rows share."""
    n = max(len(ids) for ids, _ in examples)
    ids, weight = torch.zeros(len(examples), n, dtype=torch.long), torch.zeros(len(examples), n)
    for row, (tokens, start) in enumerate(examples):
        ids[row, :len(tokens)] = torch.tensor(tokens)
        weight[row, 1:start] = PROMPT_WEIGHT
        weight[row, start:len(tokens)] = 1
    return ids, weight, shared_prefix(examples)


def weights(parameters):
    """Trained parameters -> tensors valued as in the file (ssm_a is learned as log(-ssm_a))."""
    return {n: -p.exp() if n.endswith("ssm_a") else p for n, p in parameters.items()}


def initial(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, dims in shape.tensors().items():
        if name.endswith("norm.weight"):
            value = torch.ones(dims)
        elif name.endswith("ssm_a"):
            value = torch.linspace(0, 1.5, dims[0])
        elif name.endswith("ssm_dt.bias"):
            value = torch.log(torch.expm1(torch.linspace(0.01, 0.05, dims[0])))
        else:
            value = torch.randn(dims, generator=generator) * 0.02
            if name.endswith("conv1d.weight"):
                value = value * 10
                value[:, -1] += 0.5
            if "ffn_down" in name or "ssm_out" in name or "attn_output" in name:
                value = value / (2 * shape.layers) ** 0.5
        out[name] = value
    return out


def shared_prefix(examples):
    """Tokens that all examples begin with."""
    n = min(start for _, start in examples) - 1
    while any(ids[:n] != examples[0][0][:n] for ids, _ in examples):
        n -= 1
    return n


def losses(model, ids, weight, prefix):
    """(next-token loss, MTP loss on answers), weighted means. The first `prefix` tokens, equal in all rows, run once."""
    state, ahead_state = {}, {}
    head = model.hidden(ids[:1, :prefix], state)
    tail = model.hidden(ids[:, prefix:-1], past=state)
    total, mass = 0, 0
    for hidden, target, w in ((head[:, :-1], ids[:1, 1:prefix], weight[:1, 1:prefix]),
                              (torch.cat([head[:, -1:].expand(len(ids), -1, -1), tail], 1), ids[:, prefix:], weight[:, prefix:])):
        logits = model.logits(hidden).flatten(0, 1)
        total = total + (F.cross_entropy(logits, target.flatten(), reduction="none") * w.flatten()).sum()
        mass = mass + w.sum()
    # Entry p: token p+1 and hidden p predict token p+2.
    model.mtp_hidden(ids[:1, 1:prefix], head[:, :-1], ahead_state)
    ahead = model.mtp_hidden(ids[:, prefix:-1], hidden[:, :-1], past=ahead_state)
    answer = weight[:, prefix + 1:] == 1
    return total / mass, F.cross_entropy(model.logits(ahead[answer]), ids[:, prefix + 1:][answer])


@torch.no_grad()
def evaluate(model, examples, size=12):
    """Teacher-forced on answer tokens: share of whole answers right, smallest top-1 lead, share of MTP tokens right."""
    whole, lead, mtp_right, mtp_all, wrong = 0, float("inf"), 0, 0, []
    order = sorted(range(len(examples)), key=lambda i: len(examples[i][0]))
    for at in range(0, len(order), size):
        some = order[at:at + size]
        ids = batch_of([examples[i] for i in some])[0]
        hidden = model.hidden(ids)
        for row, i in enumerate(some):
            tokens, start = examples[i]
            n = len(tokens)
            logits = model.logits(hidden[row, start - 1:n - 1])
            answer = ids[row, start:n]
            right = logits.gather(1, answer[:, None])[:, 0]
            best_other = logits.scatter(1, answer[:, None], float("-inf")).amax(1)
            lead = min(lead, float((right - best_other).min()))
            if bool((right > best_other).all()):
                whole += 1
            else:
                wrong.append(i)
        ahead = model.mtp_hidden(ids[:, 1:], hidden[:, :-1])
        for row, i in enumerate(some):
            tokens, start = examples[i]
            guess = model.logits(ahead[row, start - 2:len(tokens) - 2]).argmax(-1)
            mtp_right += int((guess == ids[row, start:len(tokens)]).sum())
            mtp_all += len(guess)
    return {"answers": whole / len(examples), "lead": lead, "mtp": mtp_right / mtp_all, "wrong": sorted(wrong)}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build"))
    flags.add_argument("--steps", type=int, default=600)
    flags.add_argument("--batch", type=int, default=8)
    flags.add_argument("--rate", type=float, default=1e-3)
    flags.add_argument("--every", type=int, default=50, help="steps between evaluations")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--resume", action="store_true")
    args = flags.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    saved = args.out / "state.pt"

    if args.resume:
        state = torch.load(saved, weights_only=False)
        vocab, merges, types, start, values = (state[k] for k in ("vocab", "merges", "types", "step", "parameters"))
    else:
        vocab, merges, types = bpe.learn(texts(), VOCAB)
        state, start, values = None, 0, initial(SHAPE, args.seed)
    tok = bpe.assemble(vocab, merges)
    lines = screens.trained()
    train, held = encode(tok, lines), encode(tok, screens.held_out())
    parameters = {n: v.clone().requires_grad_() for n, v in values.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    print(f"{sum(p.numel() for p in parameters.values())} parameters, {len(train)} steps to learn, "
          f"{sum(len(ids) for ids, _ in train)} tokens", flush=True)

    begun, queue = time.time(), []
    for step in range(start, args.steps):
        if not queue:
            rng = random.Random(f"{args.seed}-{step}")
            # A batch is of one agent (they share the rules) and of similar lengths.
            for agent in sorted({line["agent"] for line in lines}):
                some = [example for example, line in zip(train, lines) if line["agent"] == agent]
                some = sorted(rng.sample(some, len(some)), key=lambda e: len(e[0]) + rng.random() * 24)
                queue += [some[i:i + args.batch] for i in range(0, len(some), args.batch)]
            rng.shuffle(queue)
        done = step / args.steps
        rate = args.rate * min(1, (step + 1) / 30) * (1 if done < 0.5 else 0.02 + 0.98 * (1 - done) / 0.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        main_loss, mtp_loss = losses(qwen35.Model(SHAPE, weights(parameters)), *batch_of(queue.pop()))
        optimizer.zero_grad()
        (main_loss + MTP_WEIGHT * mtp_loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"{step:5} {time.time() - begun:6.0f}s  loss {main_loss:.4f}  mtp {mtp_loss:.4f}", flush=True)
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            partial = saved.with_suffix(".part")
            torch.save({"vocab": vocab, "merges": merges, "types": types, "step": step + 1, "shape": SHAPE,
                        "parameters": {n: p.detach() for n, p in parameters.items()},
                        "optimizer": optimizer.state_dict()}, partial)
            partial.replace(saved)
            model = qwen35.Model(SHAPE, {n: w.detach() for n, w in weights(parameters).items()})
            for name, examples in (("trained", train), ("held out", held)):
                r = evaluate(model, examples)
                print(f"{step + 1:5} {name:9} answers {r['answers']:.3f}  smallest lead {r['lead']:.2f}  mtp {r['mtp']:.3f}",
                      flush=True)

if __name__ == "__main__":
    main()
