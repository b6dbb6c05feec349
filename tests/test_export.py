"""Exports, proven in the toolkits they are for, and the refusal of what is not the same."""

import copy
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("ctranslate2")

import torch

from nmt_cli import artefact, recipe
from nmt_cli.corpus import tokenizer as subwords
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError, UsageError
from nmt_cli.interop import hf, proof, write
from nmt_cli.interop.export import export
from nmt_cli.interop.near_ties import NearTie, outcomes
from nmt_cli.interop.peers import Transformers
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.transformer.model import Transformer, pack
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation.lines import encode

LINES = [
    "the old cat sees a wet dog",
    "der alte fox schläft, sagt </s> man",
    "ein Ding <unk> und  </s>",
    "Grüße aus 東京 & <pad>",
    "a b",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: with models this small, more only wait for each other, for long on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    path.write_bytes(subwords.train([f"{line} {i}" for i in range(30) for line in LINES[:2]], 320))
    return path


def small_model(file: Path, out: Path, **knobs: object) -> Path:
    """Save a small model that has learnt for a moment to say its source backwards, so that its output ends."""
    settings = {"num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 4, "d_k": 8, "d_v": 8, "max_length": 64}
    values = {"name": "small", "model": {**settings, **knobs}, "decoding": {"beam": 3, "extra_length": 10}}
    resolved = recipe.from_plain(values, "test")
    torch.manual_seed(3)
    tokenizer = Tokenizer(file)
    model = Transformer(resolved.model, tokenizer.vocabulary_size)
    sources = encode(tokenizer, [f"{a} {b}" for a in LINES[0].split() for b in LINES[1].split()], False)
    sides = [np.concatenate(x) for x in (sources, [[*reversed(ids[:-1]), EOS] for ids in sources])]
    lengths = np.array([len(ids) for ids in sources])
    batch = pack(sides[0], lengths, sides[1], lengths)
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(100):
        adam.zero_grad()
        loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, 0.1)
        (loss / len(batch.tgt_out_N)).backward()
        adam.step()
    save_model(out, model.state_dict(), resolved, file, {})
    return out


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*LINES, "", "Zwei Männer 12"]) + "\n")
    return path


def run_example(out: Path) -> str:
    """Run the example in an export's README as it stands and return what it prints."""
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", ["hf", "ctranslate2"])
@pytest.mark.parametrize(
    "knobs",
    [{}, {"norm": "pre", "activation": "swish"}, {"attention_bias": True, "output_bias": True, "activation": "gelu"}],
)
def test_same_in_both_toolkits(file: Path, lines: Path, tmp_path: Path, target: str, knobs: dict[str, object]) -> None:
    model = small_model(file, tmp_path / "model", **knobs)
    assert export(model, target, tmp_path / "out", None, lines) == 0
    manifest = artefact.verify(tmp_path / "out", "export")
    ended = re.findall(r"same for (\d+) of (\d+)|output for (\d+) of (\d+)", manifest["proof"])
    assert len(ended) == 2
    for groups in ended:
        same, compared = (int(group) for group in groups if group)
        assert same == compared >= 3


def test_example_runs_as_it_stands(file: Path, lines: Path, tmp_path: Path) -> None:
    model = small_model(file, tmp_path / "model")
    for target in ("hf", "ctranslate2"):
        export(model, target, tmp_path / target, None, lines)
        assert run_example(tmp_path / target).strip()


@pytest.mark.parametrize("target", ["hf", "ctranslate2"])
def test_an_export_that_differs_is_not_kept(
    file: Path, lines: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(file, tmp_path / "model")
    monkeypatch.setattr(hf, "sines_first", torch.arange)
    with pytest.raises(DataError, match="not the same and is not kept") as caught:
        export(model, target, tmp_path / "out", None, lines)
    assert caught.value.exit_code == 65
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_a_small_difference_of_weights_is_found(file: Path, lines: Path, tmp_path: Path) -> None:
    loaded = load_model(small_model(file, tmp_path / "model"))
    (tmp_path / "hf").mkdir()
    write.write_hf(loaded, tmp_path / "hf")
    tokenizer = Tokenizer(file)
    sources = [ids for ids in encode(tokenizer, LINES, False) if ids]
    peer = Transformers(tmp_path / "hf", hf.exported_order(tokenizer.vocabulary_size))
    assert proof.compare(loaded.model, peer, sources, 3, 10).same
    with torch.no_grad():
        loaded.model.decoder[1].feed_forward.inner.weight[0] += 0.01
    assert not proof.compare(loaded.model, peer, sources, 3, 10).same


class Told:
    """A toolkit that computes what our model does but for `noise`, and translates as it is told.

    Args:
        model: in float64.
        told: beam translations, by source; else the exact search's.
        noise: taken off every log-probability, in nats.
    """

    def __init__(self, model: Transformer, told: dict[tuple[int, ...], tuple[int, ...]], noise: float) -> None:
        self.model, self.told, self.noise = model, told, noise

    def translate(self, sources: Sequence[Sequence[int]], beam: int, extra_length: int) -> list[list[int]]:
        found = []
        for source in sources:
            (exact,) = outcomes(self.model, source, beam, len(source) + extra_length, 0.0)
            found.append(list(self.told.get(tuple(source), exact) if beam > 1 else exact))
        return found

    def force(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        return [[p - self.noise for p in row] for row in proof._force(self.model, pairs, torch.float64)]


def test_a_difference_must_be_explained_by_a_near_tie(file: Path, tmp_path: Path) -> None:
    model = load_model(small_model(file, tmp_path / "model")).model
    exact, extra, beam, noise = copy.deepcopy(model).double(), 10, 3, 9e-5  # below what a proof tolerates
    generator = torch.Generator().manual_seed(2)
    sources = [[*torch.randint(3, 300, (4,), generator=generator).tolist(), EOS] for _ in range(70)]
    turns = []  # (gap, source, what is found beyond it)
    for source in sources:
        for ids, tie in outcomes(exact, source, beam, len(source) + extra, 5e-3).items():
            if tie.gap > 0 and len(ids) + 1 < len(source) + extra:
                turns.append((tie.gap, tuple(source), ids))
    gap, source, ids = min(turns)
    assert 1e-4 < gap < 1e-3

    def compared(told: tuple[int, ...], noise: float) -> tuple[bool, NearTie | None]:
        peer = Told(exact, {source: told}, noise)
        result = proof.compare(model, peer, sources, beam, extra)  # type: ignore[arg-type]
        (difference,) = result.differences["beam"]
        assert difference.theirs == list(told)
        return result.same, difference.near_tie

    same, tie = compared(ids, noise)
    assert same
    assert tie is not None
    assert tie.gap == pytest.approx(gap)
    assert compared(ids, 0.0) == (False, None), "the two toolkits round alike, so rounding did not turn it"
    assert compared((*ids, 9), noise) == (False, None), "no near-tie leads there"


@pytest.mark.parametrize("quantization", ["bfloat16", "int8"])
def test_quantised_exports_state_the_difference(
    file: Path, lines: Path, tmp_path: Path, quantization: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_model(file, tmp_path / "model")
    assert export(model, "ctranslate2", tmp_path / "out", quantization, lines) == 0
    plain = export(model, "ctranslate2", tmp_path / "plain", None, lines)
    assert plain == 0
    assert (tmp_path / "out/model.bin").stat().st_size < 0.7 * (tmp_path / "plain/model.bin").stat().st_size
    output = capsys.readouterr()
    assert "BLEU" in output.err
    assert output.out == ""


def test_their_tokenizer_gives_our_ids(file: Path, tmp_path: Path) -> None:
    loaded = load_model(small_model(file, tmp_path / "model"))
    (tmp_path / "hf").mkdir()
    write.write_hf(loaded, tmp_path / "hf")
    tokenizer = Tokenizer(file)
    peer = Transformers(tmp_path / "hf", hf.exported_order(tokenizer.vocabulary_size))
    texts = [" ".join(line.split()) for line in LINES]
    assert peer.encode(texts) == encode(tokenizer, texts, False)


@pytest.mark.parametrize(
    ("knobs", "reason"), [({"positions": "learned"}, "positions"), ({"d_k": 4}, "d_k"), ({"d_v": 16}, "d_v")]
)
def test_what_they_cannot_compute_is_refused(
    file: Path, lines: Path, tmp_path: Path, knobs: dict[str, object], reason: str
) -> None:
    model = small_model(file, tmp_path / "model", **knobs)
    with pytest.raises(DataError, match=reason):
        export(model, "hf", tmp_path / "out", None, lines)
    assert not (tmp_path / "out").exists()


def test_wrong_options(file: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(file, tmp_path / "model")
    with pytest.raises(UsageError, match="--to"):
        export(model, "onnx", tmp_path / "out", None, lines)
    with pytest.raises(UsageError, match="--quantization"):
        export(model, "ctranslate2", tmp_path / "out", "int4", lines)
    with pytest.raises(UsageError, match="ctranslate2"):
        export(model, "hf", tmp_path / "out", "int8", lines)
    with pytest.raises(OutputError, match="exists"):
        export(model, "hf", model, None, lines)
    with pytest.raises(MissingError, match=r"none\.txt"):
        export(model, "hf", tmp_path / "out", None, tmp_path / "none.txt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError, match="--lines"):
        export(model, "hf", tmp_path / "out", None, None)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match="no line"):
        export(model, "hf", tmp_path / "out", None, tmp_path / "empty.txt")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ctranslate2" else find(name))
    with pytest.raises(UsageError, match=r"ctranslate2.*pip install \"nmt-cli\[export\]\""):
        export(tmp_path, "ctranslate2", tmp_path / "out", None, None)
