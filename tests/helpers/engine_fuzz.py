"""Translate random sentences with random models: `python tests/helpers/engine_fuzz.py LIBRARY SENTENCES SEED`.

LIBRARY should be compiled with -fsanitize=undefined -fsanitize-trap=undefined -DGUARD_PAGES -DSHARED=1, as
test_engine_build.py does: undefined behavior and invalid accesses then end the program. Otherwise most faults go
unnoticed, because this program checks only that the results are valid. It prints a hash of the results, which depends
on the engine's source, the level and the seed, but not on the compiler's flags or the helper threads.
"""

import ctypes
import hashlib
import random
import sys
from ctypes import c_float
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from nmt_cli.engine import library
from nmt_cli.engine.model import SIGNATURES, Model
from nmt_cli.engine.safetensors_file import Tensor
from nmt_cli.engine.team import Team
from nmt_cli.translation.constraints import Constraints
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.segments import Segment

PERIOD = 997  # weights repeat with this period, because drawing all of them would take most of the time


class Fuzz:
    def __init__(self, engine: library.Library, seed: int) -> None:
        self.engine, self.draw, self.results = engine, random.Random(seed), hashlib.sha256()
        self.teams = None, Team(engine, 2), Team(engine, 4)

    def tensors(self, settings: SimpleNamespace, vocabulary: int) -> tuple[dict[str, Tensor], list[Any], int]:
        """Return weights by name, the memory that holds them, and the size of the source vocabulary."""
        draw, s, kept, tensors = self.draw, settings, list[Any](), dict[str, Tensor]()

        def add(name: str, *shape: int) -> None:
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            numbers = (c_float * count)(*(draw.uniform(-1, 1) for _ in range(min(count, PERIOD))))
            for i in range(PERIOD, count, PERIOD):
                ctypes.memmove(ctypes.addressof(numbers) + 4 * i, numbers, 4 * min(PERIOD, count - i))
            kept.append(numbers)
            tensors[name] = Tensor(ctypes.addressof(numbers), shape)

        add("embedding.weight", vocabulary, s.d_model)
        s.source_vocabulary = draw.choice([0, 0, draw.randint(4, 90)])
        if s.source_vocabulary:
            add("own_embeddings.src.weight", s.source_vocabulary, s.d_model)
        s.tied_output, s.output_bias, s.attention_bias = (draw.random() < 0.5 for _ in range(3))
        if not s.tied_output:
            add("own_embeddings.output.weight", vocabulary, s.d_model)
        if s.output_bias:
            add("output_bias", vocabulary)
        if s.positions == "learned":
            add("src_positions.weight", s.max_length, s.d_model)
            add("tgt_positions.weight", s.max_length, s.d_model)
        q, v = s.num_heads * s.d_k, s.num_heads * s.d_v
        for side, depth, norms in (("encoder", s.encoder_layers, 2), ("decoder", s.decoder_layers, 3)):
            for i in range(depth):
                first: dict[str, tuple[int, int]] = {
                    "self_attention.query_key_value": (2 * q + v, s.d_model),
                    "self_attention.output": (s.d_model, v),
                }
                if side == "decoder" and s.decoder_cell == "ssru":
                    first = dict.fromkeys(("recurrence.value", "recurrence.forget"), (s.d_model, s.d_model))
                shapes = {
                    **first,
                    "feed_forward.inner": (s.d_ff, s.d_model),
                    "feed_forward.outer": (s.d_model, s.d_ff),
                }
                if side == "decoder":
                    shapes |= {
                        "cross_attention.query": (q, s.d_model),
                        "cross_attention.key_value": (q + v, s.d_model),
                        "cross_attention.output": (s.d_model, v),
                    }
                for path, shape in shapes.items():
                    add(f"{side}.{i}.{path}.weight", *shape)
                    if (s.attention_bias and "attention" in path) or path.endswith(("inner", "outer", "forget")):
                        add(f"{side}.{i}.{path}.bias", shape[0])
                for norm in [f"{side}.{i}.residuals.{j}.norm" for j in range(norms)]:
                    add(f"{norm}.weight", s.d_model)
                    add(f"{norm}.bias", s.d_model)
            if s.norm == "pre":
                add(f"{side}_norm.weight", s.d_model)
                add(f"{side}_norm.bias", s.d_model)
        return tensors, kept, s.source_vocabulary or vocabulary

    def settings(self) -> SimpleNamespace:
        draw = self.draw
        width = draw.choice([draw.randint(1, 80), 64, 128])
        settings = SimpleNamespace(
            num_layers=1,
            encoder_layers=draw.randint(1, 2),
            decoder_layers=draw.randint(1, 3),
            d_model=width,
            num_heads=draw.randint(1, 9),
            d_k=draw.randint(1, 40),
            d_v=draw.randint(1, 70),
            d_ff=draw.choice([draw.randint(1, 150), 128]),
            norm=draw.choice(["pre", "post"]),
            activation=draw.choice(["relu", "swish", "gelu"]),
            max_length=draw.choice([8, 20, 64, 300]),
            positions="learned" if width % 2 else draw.choice(["learned", "sinusoidal", "marian"]),
            source_eos=draw.random() < 0.8,
            decoder_cell=draw.choice(["attention", "attention", "ssru"]),
        )
        settings.depths = settings.encoder_layers, settings.decoder_layers
        return settings

    def segment(self, longest: int, source: int, target: int) -> Segment:
        draw = self.draw
        length = draw.randint(1, longest)
        limit = draw.randint(1, min(longest, length + 20))
        sampled = draw.random() < 0.3
        width = 1 if sampled else draw.choice([1, 1, 2, 4, 5, 12, 33, draw.randint(1, 400)])
        sampling = Sampling(
            draw.choice([0.5, 1.0, 3.0]), draw.choice([0, 1, 5, 5000]), draw.choice([0.0, 0.5, 1.0]), draw.randrange(99)
        )
        shortlist = SimpleNamespace(tokens=partial(self.listed, target)) if draw.random() < 0.4 else None
        options = SearchOptions(
            width,
            draw.choice([0, 0.6, 3.0]),
            penalty_offset=draw.choice([0, 0.5, 5]),
            n_best=draw.randint(1, width),
            sampling=sampling if sampled else None,
            alignments=draw.random() < 0.5,
            shortlist=shortlist,
        )
        return Segment(
            [*(draw.randint(1, source - 1) for _ in range(length - 1)), 2],
            options,
            [draw.randint(3, target - 1) for _ in range(draw.randint(0, min(3, longest - 1)))],
            max_tokens=limit,
            background=draw.random() < 0.3,
            constraints=None if sampled or draw.random() < 0.5 else self.constraints(target),
        )

    def listed(self, target: int, segment: Segment) -> list[int]:
        """Return a random shortlist's tokens, including EOS and the tokens of the segment's prefix and terms."""
        some = self.draw.sample(range(1, target), self.draw.randint(0, target - 1))
        terms = segment.constraints.tokens if segment.constraints else []
        return sorted({2, *some, *segment.prefix, *terms} - {0})

    def constraints(self, target: int) -> Constraints:
        """Return up to 64 terms, with forms that share beginnings and ends."""
        draw, few = self.draw, [self.draw.randint(3, target - 1) for _ in range(3)]
        begins = bytes([1, 0, 1, *(draw.random() < 0.5 for _ in range(target - 3))])

        def form() -> list[int]:
            return [draw.choice([*few, draw.randint(3, target - 1)]) for _ in range(draw.choice([1, 2, 3, 40]))]

        count = draw.choice([1, 1, 2, 3, 10, 64])
        return Constraints([[form() for _ in range(draw.randint(1, 3))] for _ in range(count)], begins)

    def search_one_model(self) -> int:
        """Translate some sentences with one or two models of the same random weights; return how many."""
        draw, settings = self.draw, self.settings()
        vocabulary = draw.choice([4, 5, 63, 64, 65, draw.randint(4, 1000)])
        tensors, kept, source = self.tensors(settings, vocabulary)
        models = [
            Model(self.engine, settings, tensors, kept, int8=draw.random() < 0.6) for _ in range(draw.choice([1, 1, 2]))
        ]
        slots = draw.randint(1, 9)
        search = EngineSearch(models, slots, draw.choice(self.teams))
        left = count = draw.randint(1, 25)
        while left or search.segments:
            entering = draw.randint(0, min(left, slots - len(search.segments)))
            search.enter([self.segment(settings.max_length, source, vocabulary) for _ in range(entering)])
            left -= entering
            if search.segments and draw.random() < 0.05:
                search.leave(next(iter(search.segments)))
            for segment in search.run(draw.randint(1, 6)):
                self.results.update(repr(segment.hypotheses).encode())
                assert segment.hypotheses or segment.constraints
                assert all(0 < i < vocabulary for each in segment.hypotheses for i in each.ids)
        return count


def main() -> None:
    path, sentences, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    engine = library.load(SIGNATURES, path)
    assert engine
    fuzz, done = Fuzz(engine, seed), 0
    while done < sentences:
        done += fuzz.search_one_model()
    print(f"{done} sentences at level {engine.level}: no fault, results {fuzz.results.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
