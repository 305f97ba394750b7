"""llama.cpp behind its own server: prints the server's address, then, for each line on standard
input, measures once and prints one JSON object. Arguments: model, threads, port."""

import json
import random
import sys
import urllib.request

import xllamacpp

model, threads, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = model
params.n_ctx = 4096
params.n_parallel = 1
params.cpuparams.n_threads = threads
params.cpuparams_batch.n_threads = threads
params.port = port
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)


def timings(count, tokens):
    """Of a prompt of `count` random ids and `tokens` generated ones."""
    body = {
        "prompt": [random.randrange(257) for _ in range(count)],
        "n_predict": tokens,
        "ignore_eos": True,
        "cache_prompt": False,
        "temperature": 0,
    }
    request = urllib.request.Request(
        server.listening_address + "/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["timings"]


for _ in sys.stdin:
    # A prompt of four tokens is a pass of four columns, as verifying three drafts is.
    four = [timings(4, 1)["prompt_ms"] for _ in range(8)]
    measured = {
        "pp512": timings(512, 1)["prompt_per_second"],
        "tg64": timings(1, 64)["predicted_per_second"],
        "verify4": 1000 * len(four) / sum(four),
    }
    print(json.dumps(measured), flush=True)
