"""Count the GPU calls of a search on the null GPU. Prints JSON with counts of the search and of each kind of step.

eval "$(PYTHON device.py PYTHON)"; PYTHONPATH=. PYTHON tests/benchmarks/null_gpu/searches.py base --sentences 2000
"""

import argparse
import json
import statistics
import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from device import Counters
from nmt import let_searches_end
from steps import ROOT, wmt14_lengths

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.recipe import loading, schema
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.hardware import choose_device, choose_dtype
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation import search as searching
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.queue import SegmentQueue
from nmt_cli.translation.segments import Segment


def measure(settings: schema.Recipe, search: SearchOptions, sentences: int, models: int) -> dict[str, Any]:
    """Search random sentences, longest first, with an ensemble of identical models; return counts and times."""
    device = choose_device()
    dtype, vocabulary = choose_dtype("auto", device), settings.corpus.tokenizer.vocabulary_size
    model = for_inference(Transformer(settings.model, vocabulary).to(device), dtype)
    rng = np.random.default_rng(1)
    lengths = sorted(wmt14_lengths(sentences, rng)[0].tolist(), reverse=True)
    segments = [Segment([*rng.integers(EOS + 1, vocabulary, n - 1).tolist(), EOS], search) for n in lengths]
    counters, steps, milliseconds, step = Counters(), [], [], searching.Slots.step

    def counted(slots: Any) -> None:
        began = time.perf_counter()
        with counters.during() as counts:
            step(slots)
        milliseconds.append(1e3 * (time.perf_counter() - began))
        steps.append({name: int(n) for name, n in counts.items() if n and name not in ("flops", "product_bytes")})

    searching.Slots.step = counted
    done = list[Segment]()
    queue = SegmentQueue([lambda worker: searching.search([model] * models, dtype, worker)], done.append)
    with counters.during() as whole:
        queue.submit(segments)
        queue.wait_for(lambda: len(done) == len(segments))
    queue.close()
    kinds = Counter(json.dumps(step) for step in steps)
    return {
        "done": sum(not segment.error for segment in done),
        "hypotheses": sum(len(segment.hypotheses) for segment in segments),
        "steps": len(steps),
        "whole": whole,
        "host_ms": statistics.median(milliseconds),
        "kinds": kinds.most_common(8),
        "peak_mb": torch.cuda.max_memory_allocated() >> 20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="name of a recipe, without .yaml")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--models", type=int, default=1)
    options = parser.parse_args()
    let_searches_end()
    settings = loading.load(ROOT / "recipes" / f"{options.recipe}.yaml", [])
    search = SearchOptions(options.beam, 0.6, 50, True, copy_wordless=True)
    print(json.dumps(measure(settings, search, options.sentences, options.models)))


if __name__ == "__main__":
    main()
