"""Searches with random models through torch and through the engine, for tests of both."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from reference import random_model, random_pairs, tiny

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.engine import library
from nmt_cli.engine.model import SIGNATURES, Model
from nmt_cli.engine.safetensors_file import Tensor
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation import engine_backend
from nmt_cli.translation import search as torch_search
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.queue import Search, SegmentQueue
from nmt_cli.translation.segments import Hypothesis, Segment

DOUBLE = torch.float64
V = 30
SHAPES: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"activation": "swish", "attention_bias": True},
    {"activation": "gelu", "output_bias": True, "norm": "pre"},
    {"positions": "learned", "d_model": 15, "tied_output": False},
    {"source_vocabulary": 40, "attention_bias": True, "output_bias": True, "tied_output": False},
    {"source_eos": False, "norm": "pre"},
    {"d_model": 32, "d_k": 16, "d_v": 16, "num_heads": 2, "d_ff": 64},
    {"d_model": 48, "d_k": 33, "d_v": 50, "num_heads": 1, "d_ff": 100, "num_layers": 1},
    {"d_model": 18, "d_k": 2, "d_v": 70, "num_heads": 5, "d_ff": 7, "num_layers": 3},
    {"decoder_cell": "ssru", "d_model": 34, "encoder_layers": 1, "activation": "swish", "attention_bias": True},
    {"decoder_cell": "ssru", "norm": "pre", "num_layers": 3},
]


def options(beam: int = 4, alpha: float = 0.6, extra_length: int = 50, **more: Any) -> SearchOptions:
    """Return options for segments, with explicit values in place of a model's defaults."""
    return SearchOptions(beam, alpha, extra_length, True, **{"copy_wordless": True, "penalty_offset": 5, **more})


def model_of(
    seed: int = 0,
    vocabulary: int = V,
    dtype: torch.dtype = DOUBLE,
    eos: float = 1,
    device: str = "cpu",
    **changes: object,
) -> Transformer:
    """Return a random model. With a larger `eos`, more translations end before the length limit."""
    model = random_model(tiny(**changes), vocabulary, seed)
    with torch.no_grad():
        model.embedding.weight *= 2  # sharper choices
        model.embedding.weight[EOS] *= eos
    return for_inference(model.to(device, dtype), dtype)


def sources_of(count: int, seed: int = 0, vocabulary: int = V, longest: int = 9) -> list[list[int]]:
    lengths = torch.randint(2, longest, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [pair[0] for pair in random_pairs(seed, vocabulary, [(n, 2) for n in lengths])]


def engine_tensors(model: Transformer) -> tuple[dict[str, Tensor], object]:
    """Return the tensors of a model in float32, and the owner of their memory."""
    state = {name: tensor.detach().float().contiguous() for name, tensor in model.state_dict().items()}
    return {name: Tensor(tensor.data_ptr(), tuple(tensor.shape)) for name, tensor in state.items()}, state


def engine_model(model: Transformer, *, int8: bool = False) -> Model:
    engine = library.load(SIGNATURES)
    assert engine
    return Model(engine, model.settings, *engine_tensors(model), int8=int8)


def by_torch(models: Sequence[Transformer], dtype: torch.dtype = DOUBLE, rows: int = 384) -> Search:
    return lambda queue: torch_search.search_with_rows(models, dtype, queue, rows)


def by_engine(models: Sequence[Model], rows: int = 384) -> Search:
    return lambda queue: engine_backend.search_with_rows(models, queue, rows)


def search_all(search: Search, segments: Iterable[Segment]) -> list[Segment]:
    """Translate segments in a thread; return them in the order in which they were done, or raise a segment's error."""
    waiting = list(segments)
    done = list[Segment]()
    queue = SegmentQueue([search], done.append)
    queue.submit(waiting)
    queue.wait_for(lambda: len(done) == len(waiting), 100)
    queue.close()
    for segment in waiting:
        if segment.error:
            raise segment.error
    assert sorted(map(id, done)) == sorted(map(id, waiting))
    return done


def searched(
    models: list[Transformer],
    sources: list[list[int]],
    chosen: SearchOptions,
    dtype: torch.dtype = DOUBLE,
    *,
    engine: bool = False,
    rows: int = 384,
    prefixes: Sequence[list[int]] = (),
) -> list[list[Hypothesis]]:
    """Return the hypotheses for each source."""
    forced = prefixes or [[]] * len(sources)
    segments = [Segment(ids, chosen, prefix, (i,)) for i, (ids, prefix) in enumerate(zip(sources, forced, strict=True))]
    search = by_engine([*map(engine_model, models)], rows) if engine else by_torch(models, dtype, rows)
    search_all(search, segments)
    return [segment.hypotheses for segment in segments]


def assert_same(ours: Sequence[list[Hypothesis]], theirs: Sequence[list[Hypothesis]], tolerance: float = 2e-4) -> None:
    """Compare hypotheses in order. Two hypotheses may differ only if their scores are equal within the tolerance."""
    for mine, other in zip(ours, theirs, strict=True):
        assert [h.score for h in mine] == pytest.approx([h.score for h in other], abs=tolerance)
        by_ids = {tuple(h.ids): h for h in other}
        for h in mine:
            if (same := by_ids.get(tuple(h.ids))) is None:
                assert min(abs(h.score - o.score) for o in other) < tolerance
                continue
            assert h.token_log_probabilities == pytest.approx(same.token_log_probabilities, abs=tolerance)
            assert h.log_probability == pytest.approx(same.log_probability, abs=tolerance)
