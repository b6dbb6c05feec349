"""Exports run in the toolkits for which they are written, and exports with wrong results are discarded."""

import contextlib
import functools
import io
import json
import re
import resource
import signal
import statistics
import sys
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("ctranslate2")

import torch

from nmt_cli import __version__
from nmt_cli.corpus import tokenizer as subwords
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import EOS, Tokenizer, normalize
from nmt_cli.interop import transformers_marian
from nmt_cli.interop.adapters import Adapter, Transformers
from nmt_cli.interop.export import comparison_lines, export
from nmt_cli.interop.verification import compare, differences_of
from nmt_cli.recipe import loading
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, OutputError, StorageError, UsageError, from_os_error
from nmt_cli.training.loss import smoothed_loss
from nmt_cli.transformer.model import Transformer, pack
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation.translator import Translator

LINES = ["the old cat sees a wet dog", "der alte fox schläft, sagt </s> man", "ein Ding <unk> und  </s>"]
LINES += ["Grüße aus 東京 & <pad>", "a b", "", "Zwei Männer 12"]
PRE = {"norm": "pre", "activation": "swish"}
BIASES = {"attention_bias": True, "output_bias": True, "activation": "gelu"}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function that trains small models to reverse their source. It trains each model only once."""
    directory = tmp_path_factory.mktemp("models")
    file = directory / "tokenizer.model"
    file.write_bytes(subwords.train([f"{line} {i}" for i in range(30) for line in LINES[:2]], 320))
    tokenizer = Tokenizer(file)
    words = [f"{a} {b}" for a in LINES[0].split() for b in LINES[1].split()]
    sources = [[*ids, EOS] for ids in tokenizer.encode(words[::2])]
    sides = [np.concatenate(side) for side in (sources, [[*reversed(ids[:-1]), EOS] for ids in sources])]
    lengths = np.array([len(ids) for ids in sources])
    batch = pack(sides[0], lengths, sides[1], lengths)

    @functools.cache
    def small_model(steps=60, **changes):
        model_directory = directory / f"{steps}-{'-'.join(map(str, changes.items()))}"
        sizes = {"num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 4, "d_k": 8, "d_v": 8, "max_length": 64}
        decoding = {"beam": 2, "extra_length": 10}
        settings = loading.from_plain({"name": "small", "model": {**sizes, **changes}, "decoding": decoding}, "test")
        torch.manual_seed(3)
        model = Transformer(settings.model, tokenizer.vocabulary_size)
        adam = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(steps):
            adam.zero_grad()
            loss, _ = smoothed_loss(model(batch), model.embedding.weight, batch.tgt_out_N, 0.1)
            (loss / len(batch.tgt_out_N)).backward()
            adam.step()
        save_model(model_directory, model.state_dict(), settings, file, {})
        return model_directory

    return small_model


@pytest.fixture(scope="module")
def exported(models, lines, tmp_path_factory):
    """A function that exports small models. It exports each model only once."""

    @functools.cache
    def small_export(target, **changes):
        out = tmp_path_factory.mktemp("exports") / "out"
        assert export(models(**changes), target, out, None, lines) == 0
        return out

    return small_export


@pytest.mark.parametrize("target", ["hf", "ctranslate2"])
@pytest.mark.parametrize("changes", [{}, PRE, BIASES])
def test_both_toolkits_give_the_same_results(exported, target, changes):
    proof = artefact.verify(exported(target, **changes), "export")["proof"]
    ((same, ended),) = re.findall(r"On 6 sentences .* (\d+) of (\d+) translations that end within the limit are", proof)
    assert int(same) == int(ended) >= 3


@pytest.mark.parametrize("target", ["hf", "ctranslate2"])
def test_the_example_on_the_card_runs(target, exported):
    code = (exported(target) / "README.md").read_text().split("```python\n")[1].split("```")[0]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    assert output.getvalue().strip()


def test_the_card_names_the_origin_and_the_length_penalty_of_an_imported_model(models, lines, tmp_path):
    model = load_model(models())
    manifest = {"imported": "OWNER/NAME@c0ffee"}
    decoding = model.recipe.decoding.model_copy(update={"penalty_offset": 0, "alpha": 1})
    recipe = model.recipe.model_copy(update={"decoding": decoding})
    save_model(tmp_path / "model", model.model.state_dict(), recipe, model.tokenizer_file, manifest)
    assert export(tmp_path / "model", "hf", tmp_path / "out", None, lines) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "imported from OWNER/NAME@c0ffee" in card
    assert "log-probabilities by ((0 + length) / 1) ^ 1," in card


def test_the_card_describes_the_model(exported, models):
    parameters = sum(p.numel() for p in load_model(models()).model.parameters())
    for target, library in (("hf", "transformers"), ("ctranslate2", "ctranslate2")):
        out = exported(target)
        card = " ".join((out / "README.md").read_text().split())
        sizes = f"(2 + 2 layers, d_model 32, d_ff 48, 4 heads, post-norm, {parameters:,} parameters)"
        assert card.startswith(f"--- language: - en - de library_name: {library} pipeline_tag: translation ---")
        for expected in (
            "# small: en to de",
            f"{sizes}, trained on toy-en-de (nmt-cli {__version__})",
            f"## Proof {artefact.read_json(out / 'manifest.json')['proof']} ## Limits",
            "divides log-probabilities by ((5 + length) / 6) ^ 0.6, transformers",
            "ends its output at source length + 10 tokens.",
            "have one limit for all sentences, here 64. - MarianTokenizer",
            f'"{out.as_posix()}"',
            LINES[0],
        ):
            assert expected in card
        assert loading.load_stored(out / "recipe.yaml") == load_model(models()).recipe
        manifest = artefact.verify(out, "export")
        assert (manifest["target"], manifest["quantization"]) == (target, "float32")


def test_transformers_searches_with_the_recipe_by_default(exported):
    out = exported("hf")
    config = artefact.read_json(out / "generation_config.json")
    tokenizer = Tokenizer(out / "source.spm")
    length = round(statistics.median(len(ids) for ids in tokenizer.encode([normalize(line) for line in LINES]) if ids))
    assert config["length_penalty"] == pytest.approx(0.6 * length / (5 + length), abs=0.005)
    card, pad = " ".join((out / "README.md").read_text().split()), tokenizer.vocabulary_size - 1
    assert f"by length ^ {config['length_penalty']}. The effect is the same at {length} tokens" in card
    expected = {"num_beams": 2, "max_length": 64, "bad_words_ids": [[pad]], "pad_token_id": pad}
    assert config == {**config, **expected}
    assert [artefact.read_json(out / "config.json")[f"{name}_token_id"] for name in ("unk", "eos")] == [0, 1]


@pytest.mark.parametrize("target", ["hf", "ctranslate2"])
def test_an_export_with_different_results_is_not_kept(models, lines, tmp_path, target, monkeypatch):
    monkeypatch.setattr(transformers_marian, "sines_first", torch.arange)
    with pytest.raises(DataError, match="was discarded because log-probabilities must agree within") as caught:
        export(models(), target, tmp_path / "out", None, lines)
    assert caught.value.exit_code == 65
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["hf", "ctranslate2"])
def test_a_full_disk_leaves_nothing(models, lines, tmp_path, target):
    """One limit on file sizes stops the weights that safetensors writes, the other one stops other files."""
    model, limits, ignored = models(), resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for size in (20_000, 100_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            with pytest.raises((StorageError, OSError), match="File too large") as caught:
                export(model, target, tmp_path / "out", None, lines)
            assert isinstance(caught.value, StorageError) or from_os_error(caught.value).exit_code == 74
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def translator_of(model, change=lambda model: None):
    loaded = load_model(model)
    with torch.no_grad():
        change(loaded.model)
    return Translator.of(loaded.model, Tokenizer(loaded.tokenizer_file), loaded.recipe, torch.float32)


def test_small_differences_are_detected(models, exported):
    translator = translator_of(models())
    size = translator.tokenizer.vocabulary_size
    adapter = Transformers(exported("hf"), [[(i - 1) % size for i in range(size)]] * 2)
    texts = [" ".join(line.split()) for line in LINES]
    adapter.check_tokenizer(translator.tokenizer, texts, texts)
    compare(translator, adapter, {0: LINES[0], 4: LINES[4]}, exact=True)
    changed = translator_of(models(), lambda model: model.decoder[1].residuals[2].norm.weight[0].add_(0.01))
    with pytest.raises(DataError, match="log-probabilities must agree"):
        compare(changed, adapter, {0: LINES[0], 4: LINES[4]}, exact=True)
    adapter.our_ids[1] = adapter.our_ids[1].roll(1)
    with pytest.raises(DataError, match="splits"):
        adapter.check_tokenizer(translator.tokenizer, texts, texts)


class Changed(Adapter):
    """Our own results, but with more tokens in the first `changed` lines and with shifted log-probabilities."""

    def __init__(self, translator, lines, changed, tokens, shift):
        self.translator, self.lines, self.changed, self.tokens, self.shift = translator, lines, changed, tokens, shift

    def translate(self, sources, beam, limit):
        translations = self.translator.translate(self.lines, beam=beam, alpha=0.0, split=False)
        for i, translation in enumerate(translations):
            ids = translation.segments[0].hypotheses[0].ids
            yield [*ids, *([70] * self.tokens if i < self.changed else []), EOS]

    def score(self, pairs):
        return [[score + self.shift for score in row] for row in self.translator.score_ids(pairs)]


def test_differing_lines_are_listed_and_limited(models, capsys):
    translator, words = translator_of(models()), LINES[0].split()
    lines = dict(enumerate((f"{a} {b}" for a in words for b in words), 5))

    def proof(changed, tokens=1, shift=0.0):
        return compare(translator, Changed(translator, [*lines.values()], changed, tokens, shift), lines, exact=True)[0]

    assert "49 of 49 translations that end within the limit are the same." in proof(0)
    assert "lines that differ" not in capsys.readouterr().err
    assert "48 of 49 translations" in proof(1)
    assert re.search(r"lines that differ(?s:.*)\n6 ", capsys.readouterr().err)
    with pytest.raises(DataError, match=r"at most 2% of translations.*; 47 of 49 translations"):
        proof(2)
    segments = [t.segments[0] for t in translator.translate(lines.values(), alpha=0)]
    # The other lines reach the limit exactly when ten tokens are added.
    shorter = sum(len(each.hypotheses[0].ids) < len(each.ids) - 1 for each in segments)
    with pytest.raises(DataError, match=f"; 0 of {shorter} translations"):
        proof(49, 10)
    capsys.readouterr()
    with pytest.raises(DataError, match="; 0 of 49 translations"):
        proof(49)
    listed = re.findall(r"^(\d+) ", capsys.readouterr().err, re.MULTILINE)
    assert listed == [str(i) for i in range(6, 26)]  # the first twenty, by their line numbers in the file
    assert "is 9.0e-05;" in proof(0, shift=9e-5)
    with pytest.raises(DataError, match=r"log-probabilities must agree within 0\.0001"):
        proof(0, shift=-1.1e-4)
    assert differences_of([[-0.5, -10.0]], [[-0.25, -8.0]]) == [0.25, 0.2]  # relative, because the token is unlikely
    assert proof(49, 20).endswith("; 0 of 0 translations that end within the limit are the same.")


@pytest.mark.parametrize("quantization", ["bfloat16", "int8"])
def test_quantized_exports_state_the_change_of_bleu(models, lines, tmp_path, quantization, exported):
    assert export(models(), "ctranslate2", tmp_path / "out", quantization, lines) == 0
    size, plain = ((out / "model.bin").stat().st_size for out in (tmp_path / "out", exported("ctranslate2")))
    assert size < 0.7 * plain
    proof = artefact.verify(tmp_path / "out", "export")["proof"]
    ((after, change),) = re.findall(r"BLEU against the float32 output changes from 100.00 to (\S+) \((\S+)\)\.", proof)
    assert float(change) == pytest.approx(float(after) - 100)


@pytest.mark.parametrize(
    ("changes", "reason"), [({"positions": "learned"}, "positions"), ({"d_k": 4}, "d_k"), ({"d_v": 16}, "d_v")]
)
def test_unsupported_models_are_refused(models, lines, tmp_path, changes, reason):
    with pytest.raises(DataError, match=reason):
        export(models(0, **changes), "hf", tmp_path / "out", None, lines)
    assert not (tmp_path / "out").exists()


def test_wrong_options_are_refused(models, lines, tmp_path, monkeypatch):
    model, out = models(0), tmp_path / "out"
    (tmp_path / "empty.txt").write_text("\n \n" + "a " * 54 + "\n")
    monkeypatch.chdir(tmp_path)
    for options, error, reason in [
        *((("hf", out, kind, lines), UsageError, "ctranslate2") for kind in ("int8", "bfloat16")),
        (("hf", model, None, lines), OutputError, "exists"),
        (("hf", out, None, tmp_path / "none.txt"), MissingError, r"none\.txt"),
        (("hf", out, None, None), MissingError, "--lines"),
        (("hf", out, None, tmp_path / "empty.txt"), DataError, "no line of 1 to 53 tokens"),
    ]:
        with pytest.raises(error, match=reason):
            export(model, *options)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # simulates that it is not installed
    with pytest.raises(UsageError, match=r"ctranslate2.*pip install \"nmt-cli\[export\]\""):
        export(model, "ctranslate2", out, None, lines)
    assert not out.exists()


def test_the_languages_of_an_export(models, lines, tmp_path, monkeypatch):
    """transformers gets both languages. BLEU tokenizes for the target language."""
    loaded, directory, scored = load_model(models(0)), tmp_path / "model", []
    corpus = loaded.recipe.corpus.model_copy(update={"src": "fi", "tgt": "zh"})
    recipe = loaded.recipe.model_copy(update={"corpus": corpus})
    save_model(directory, loaded.model.state_dict(), recipe, loaded.tokenizer_file, {})
    assert export(directory, "hf", tmp_path / "hf", None, lines) == 0
    theirs = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert (theirs["source_lang"], theirs["target_lang"]) == ("fi", "zh")
    monkeypatch.setattr(
        "nmt_cli.interop.export.corpus_bleu", lambda *_, language, **_how: scored.append(language) or (1.0, "")
    )
    assert export(directory, "ctranslate2", tmp_path / "ct2", "int8", lines) == 0
    assert scored == ["zh", "zh"]


def test_exports_are_compared_on_the_dev_text_by_default(reference_run, numbers_corpus, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/numbers").symlink_to(numbers_corpus)
    monkeypatch.chdir(tmp_path)
    assert export(reference_run, "ctranslate2", tmp_path / "out", "int8", None) == 0
    proof = artefact.verify(tmp_path / "out", "export")["proof"]
    translator, (src, tgt) = translator_of(reference_run), open_corpus(numbers_corpus).lines("dev")
    longest = translator.max_length - translator.config.decoding.extra_length
    short = [i for i, ids in enumerate(translator.tokenizer.encode(src)) if len(ids) < longest]
    translations = translator.translate([src[i] for i in short], alpha=0, split=False)
    ours = translator.tokenizer.decode([translation.segments[0].hypotheses[0].ids for translation in translations])
    before = corpus_bleu(ours, [tgt[i] for i in short])[0]
    assert f"BLEU changes from {before:.2f} to " in proof


def test_lines_for_the_comparison(tmp_path, monkeypatch):
    """They are a file's lines, normalized and without references, or else a hundred lines of the dev set."""
    settings = loading.from_plain({"name": "mine", "corpus": {"name": "own"}}, "test")
    (tmp_path / "lines").write_text("a\u00a0u\u0308\nb\n")
    assert comparison_lines(settings, tmp_path / "lines", tmp_path) == (["a ü", "b"], [])
    opened = Mock(return_value=Mock(lines={"dev": ([f"a\u00a0{i}" for i in range(120)], [*range(120)])}.get))
    monkeypatch.setattr("nmt_cli.interop.export.open_corpus", opened)
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "work" / "runs" / "mine" / "model"
    with pytest.raises(MissingError, match=r"and data/own is missing\. Pass --lines FILE"):
        comparison_lines(settings, None, model)
    for data in (tmp_path / "work" / "data" / "own", tmp_path / "data" / "own"):  # the second is preferred
        data.mkdir(parents=True)
        (data / "manifest.json").touch()
        assert comparison_lines(settings, None, model) == ([f"a {i}" for i in range(100)], [*range(100)])
    assert [call.args[0].absolute() for call in opened.call_args_list] == [
        tmp_path / "work" / "data" / "own",
        tmp_path / "data" / "own",
    ]


def test_one_line_within_the_limit_is_enough(models, tmp_path, monkeypatch):
    """The model has 64 positions, and outputs may be ten tokens longer than sources, which have at most 53 tokens."""
    model = models(0)
    tokenizer = Tokenizer(model / "tokenizer.model")
    lines = ["a " * count for count in range(1, 60)]
    sizes = [len(ids) for ids in tokenizer.encode([normalize(line) for line in lines])]
    for size, fits in ((53, True), (54, False)):
        (tmp_path / "lines").write_text(f"{lines[sizes.index(size)]}\n")
        monkeypatch.setattr("nmt_cli.interop.export.write_transformers", Mock(side_effect=LookupError("begun")))
        with pytest.raises(LookupError if fits else DataError, match="begun" if fits else "no line of 1 to 53 tokens"):
            export(model, "hf", tmp_path / "new", None, tmp_path / "lines")
