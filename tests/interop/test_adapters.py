"""The calls that adapters make to other toolkits, and the tokens and numbers that they return."""

import math
import re
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from tiny_model import make_model

from nmt_cli.corpus import tokenizer as subwords
from nmt_cli.corpus.tokenizer import EOS, UNK, Tokenizer
from nmt_cli.interop import adapters, importing, packages, verification
from nmt_cli.interop.adapters import Adapter, CTranslate2, Marian, Transformers
from nmt_cli.interop.importing import verify_import
from nmt_cli.system.errors import DataError, DivergedError, UsageError
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.translator import Translator

pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
MAPS = [[4, 1, 0, 2, 3], [4, 1, 0, 3, 2]]  # our ids -> theirs
MARIAN_SIDES = [{"<pad>": 3, "<unk>": 1, "</s>": 0, "▁ä": 2}] * 2
NAMES = [["<pad>", "<unk>", "</s>", "a", "b"], ["<pad>", "<unk>", "</s>", "x", "y"]]


class Toolkit:
    """A stand-in for transformers. Its model has the vocabulary </s>, <unk>, 2, 3, <pad> on both sides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, generation: Any = 4, config: Any = 4) -> None:
        self.calls = list[Any]()
        self.model = Mock(side_effect=self.forward)
        self.model.generation_config.decoder_start_token_id = generation
        self.model.config.decoder_start_token_id = config
        self.model.generate = self.generate
        keys = {"missing_keys": ["z", "model.encoder.embed_positions.weight", "model.shared.embed_tokens.weight", "b"]}
        self.load = Mock(return_value=(self.model, keys))
        monkeypatch.setattr(
            adapters, "import_package", lambda _: SimpleNamespace(AutoModelForSeq2SeqLM=Mock(from_pretrained=self.load))
        )

    def generate(self, src: Any, attention_mask: Any, **options: Any) -> Any:
        """Return one row for each source: the start token, 3, </s> and two times <pad>."""
        self.calls.append((src.tolist(), attention_mask.tolist(), options))
        return torch.tensor([[4, 3, 0, 4, 4]] * len(src))

    def forward(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
        self.calls.append((input_ids.tolist(), attention_mask.tolist(), decoder_input_ids.tolist()))
        return SimpleNamespace(logits=torch.arange(5.0).expand(*decoder_input_ids.shape, 5))


def test_transformers_is_loaded_in_float32_without_remote_code_or_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = Toolkit(monkeypatch)
    for name, safe in (("pytorch_model.bin", False), ("model.safetensors.index.json", True)):
        (tmp_path / name).touch()
        adapter = Transformers(tmp_path, MAPS)
        assert toolkit.load.call_args == call(
            tmp_path, use_safetensors=safe, weights_only=True, dtype=torch.float32, output_loading_info=True,
            local_files_only=True, trust_remote_code=False,
        )  # fmt: skip
    assert adapter.missing == ["b", "model.shared.embed_tokens.weight", "z"]  # transformers computes positions
    assert (adapter.beam, adapter.difference) == (None, "")


@pytest.mark.parametrize(("generation", "config", "start"), [(2, 4, 2), (None, 3, 3), (0, 4, 0)])
def test_transformers_scores_begin_with_the_start_token_of_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int | None, config: int, start: int
) -> None:
    toolkit = Toolkit(monkeypatch, generation=generation, config=config)
    [[score]] = Transformers(tmp_path, MAPS).score([([EOS], [EOS])])
    assert toolkit.calls == [([[0]], [[1]], [[start]])]
    assert score == pytest.approx(float(torch.log_softmax(torch.arange(5.0), 0)[0]))


def test_transformers_gets_padded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch is smaller. Both sides have their own ids."""
    toolkit = Toolkit(monkeypatch)
    adapter = Transformers(tmp_path, MAPS)
    sources = [[3, EOS]] * 33 + [[3, 4, UNK, EOS]]
    assert list(adapter.translate(sources, 7, 50)) == [[3, EOS]] * 34
    options = {"num_beams": 7, "length_penalty": 0.0, "early_stopping": False, "max_new_tokens": 50}
    assert toolkit.calls == [
        ([[2, 0]] * 32, [[1, 1]] * 32, options),
        ([[2, 0, 4, 4], [2, 3, 1, 0]], [[1, 1, 0, 0], [1, 1, 1, 1]], options),
    ]
    toolkit.calls.clear()
    scores = list(adapter.score([(source, source[::-1]) for source in sources]))
    assert [len(row) for row in scores] == [2] * 33 + [4]
    expected = torch.log_softmax(torch.arange(5.0), 0)[torch.tensor([0, 1, 2, 3])].tolist()
    assert scores[-1] == pytest.approx(expected)
    assert [len(each[0]) for each in toolkit.calls] == [32, 2]
    assert toolkit.calls[1][1:] == ([[1, 1, 0, 0], [1, 1, 1, 1]], [[4, 0, 3, 4], [4, 0, 1, 2]])


class Pieces:
    """A stand-in for a tokenizer of transformers: one token per letter, then </s>."""

    def __call__(self, text: Any = None, text_target: str | None = None) -> Any:
        if text_target is not None:
            return {"input_ids": [{"a": 3, "b": 2, "?": 1}[letter] for letter in text_target] + [0]}
        return {"input_ids": [[{"a": 2, "b": 3, "?": 1}[letter] for letter in line] + [0] for line in text]}


def own_tokenizer() -> Any:
    """Return a tokenizer for sources, with one for targets. Both split lines with a ? differently from the toolkits."""

    def encode(lines: list[str]) -> list[list[int]]:
        return [[{"a": 3, "b": 4, "?": 4}[letter] for letter in line] for line in lines]

    target = Mock(encode=encode, language=lambda _: [])
    return Mock(encode=encode, target=target, language=lambda ids: ids[:1] if ids == [4, 4, 4] else [])


@pytest.mark.parametrize(("allowed", "fits"), [(1, False), (2, False), (3, True), (4, True)])
def test_lines_that_are_split_differently_are_counted_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, fits: bool
) -> None:
    toolkit = Toolkit(monkeypatch)
    adapter = Transformers(tmp_path, MAPS)
    load = Mock(return_value=Pieces())
    monkeypatch.setattr(adapters, "import_package", lambda _: SimpleNamespace(AutoTokenizer=Mock(from_pretrained=load)))
    lines = ["ab", "a?", "??", "b"], ["ab", "?", "b", "aa", "a"]
    if fits:
        adapter.check_tokenizer(own_tokenizer(), *lines, allowed=allowed)
    else:
        with pytest.raises(DataError, match=r"^MarianTokenizer splits 3 of 9 lines differently from ours$"):
            adapter.check_tokenizer(own_tokenizer(), *lines, allowed=allowed)
    load.assert_called_once_with(toolkit.model.name_or_path, local_files_only=True, trust_remote_code=False)


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A stand-in for CTranslate2's class Translator."""
    made = Mock()
    monkeypatch.setattr(adapters, "import_package", lambda _: SimpleNamespace(Translator=made))
    return made


@pytest.mark.parametrize("ends", [True, False])
def test_ctranslate2_gets_tokens_and_our_search(toolkit: Mock, ends: bool) -> None:
    """Sources end with EOS if the caller says so; targets never do."""
    adapter = CTranslate2(Path("model"), NAMES, ends_source=ends, compute_type="float32", prefix="x" if ends else "")
    assert toolkit.call_args == call("model", compute_type="float32")
    model = toolkit.return_value
    model.translate_batch.return_value = [SimpleNamespace(hypotheses=[["y", "x"], ["x"]])] * 2
    model.score_batch.return_value = [SimpleNamespace(log_probs=[-1.0, -2.0])]
    assert list(adapter.translate([[3, EOS], [4, EOS]], 7, 50)) == [[4, 3, EOS]] * 2
    end = ["</s>"] if ends else []
    assert model.translate_batch.call_args == call(
        [["a", *end], ["b", *end]], [["x"] if ends else []] * 2, min_decoding_length=0, beam_size=7,
        length_penalty=0.0, max_decoding_length=50, max_batch_size=32,
    )  # fmt: skip
    assert list(adapter.score([([3, 4, EOS], [3, EOS])])) == [[-1.0, -2.0]]
    assert model.score_batch.call_args == call([["a", "b", *end]], [["x"]], max_batch_size=32)


@pytest.mark.parametrize("error", [RuntimeError("bad\nmodel"), ValueError("bad\nmodel")])
def test_errors_of_ctranslate2_are_one_line(toolkit: Mock, error: Exception) -> None:
    adapter = CTranslate2(Path("model"), NAMES)
    toolkit.side_effect = error
    toolkit.return_value.translate_batch.side_effect = toolkit.return_value.score_batch.side_effect = error
    with pytest.raises(DataError, match=r"^CTranslate2 cannot load model: bad\\nmodel$"):
        CTranslate2(Path("model"), NAMES)
    for run in (lambda: list(adapter.translate([[EOS]], 1, 1)), lambda: list(adapter.score([([EOS], [EOS])]))):
        with pytest.raises(DataError, match=r"^CTranslate2 cannot run the model: bad\\nmodel$"):
            run()


def test_sentencepiece_models_are_compared_except_for_language_tokens(
    toolkit: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides are compared, each with its own names of pieces. Pieces without a name are unknown."""

    class Processor:
        def __init__(self, model_proto: bytes) -> None:
            self.kind = model_proto.decode()

        def encode(self, line: str, out_type: type) -> list[str]:
            assert out_type is str
            return [{"a": "x", "b": "y"}.get(letter, letter) if self.kind == "target" else letter for letter in line]

    monkeypatch.setattr("sentencepiece.SentencePieceProcessor", Processor)
    adapter = CTranslate2(Path("model"), NAMES, [b"source", b"target"])
    tokenizer, lines = own_tokenizer(), (["ab", "a?", "???", "bbb", "b"], ["ab", "?", "b", "??"])
    with pytest.raises(DataError, match=r"^SentencePiece splits 3 of 9 lines differently from ours$"):
        adapter.check_tokenizer(tokenizer, *lines, allowed=2)
    adapter.check_tokenizer(tokenizer, *lines, allowed=3)
    tokenizer.encode = lambda lines: [[UNK] for _ in lines]
    adapter.check_tokenizer(tokenizer, ["?"], [])


def test_marian_can_read_weights_other_than_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, it reads 8-bit weights converted to float32, also for scores. Text is UTF-8."""
    seen = list[Any]()

    def run(words: list[str], **_: Any) -> Any:
        decode = "--models" in words
        model = Path(words[words.index("--models" if decode else "--model") + 1])
        if model != tmp_path / "model.bin":
            with zipfile.ZipFile(model) as archive:
                seen.append(archive.namelist())
        seen.append(Path(words[words.index("--input" if decode else "--train-sets") + 1]).read_text("utf-8"))
        return SimpleNamespace(returncode=0, stdout="▁ä\n" if decode else "WordScores= -1 -2\n", stderr="")

    monkeypatch.setattr(adapters.subprocess, "run", run)
    for arrays, names in (({"a": torch.zeros(1).numpy()}, [["a.npy"]]), (None, [])):
        seen.clear()
        adapter = Marian(tmp_path / "model.bin", MARIAN_SIDES, "post", arrays)
        assert list(adapter.translate([[3, EOS]], 1, 5)) == [[3, EOS]]
        assert list(adapter.score([([3, EOS], [3, EOS])])) == [[-1.0, -2.0]]
        assert seen == [*names, "▁ä\n"] * 2


@pytest.mark.parametrize("code", [3, -6], ids=["failed", "aborted"])
def test_errors_of_marian_are_reported_even_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A negative code is that of a signal."""
    adapter = Marian(tmp_path / "model.bin", MARIAN_SIDES, "post")
    failed = SimpleNamespace(returncode=code, stdout="x" * 400 + "no memory\n", stderr="")
    monkeypatch.setattr(adapters.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(DataError, match=r"Marian cannot decode with .*model\.bin: x+no memory$") as caught:
        list(adapter.translate([[3, EOS]], 1, 5))
    assert str(caught.value).count("x") == 290


def test_missing_packages_are_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes packages that another package needs."""
    (tmp_path / "half_a_package.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("half_a_package", "nowhere_at_all"):
        with pytest.raises(UsageError, match=r'package nowhere_at_all is missing\. .* pip install "nmt-cli\[export\]"'):
            packages.import_package(name)
    logging = pytest.importorskip("transformers").logging
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        packages.import_package("transformers")
        for text in ("Recommended: pip install sacremoses.", "another"):
            warnings.warn(text, stacklevel=1)
    assert [str(each.message) for each in caught] == ["another"]
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.ERROR, False)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    loaded = load_model(make_model(tmp_path_factory.mktemp("tiny")))
    return Translator.of(loaded.model, Tokenizer(loaded.tokenizer_file), loaded.recipe, torch.float32)


class Same(Adapter):
    """An adapter whose translations are empty and whose scores are our own."""

    def __init__(self, translator: Translator, beam: int | None = None, difference: str = "") -> None:
        self.translator, self.beam, self.difference, self.asked = translator, beam, difference, list[Any]()

    def translate(self, sources: Any, beam: int, limit: int) -> Any:
        self.asked.append((beam, limit))
        return iter([[EOS]] * len(sources))

    def score(self, pairs: Any) -> Any:
        return self.translator.score_ids(pairs)


def test_models_are_compared_by_a_plain_search(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It uses the adapter's beam and the longest source's limit, but no length penalty, splitting, copying or case."""
    searched, translate = list[Any](), translator.translate
    monkeypatch.setattr(translator, "translate", lambda lines, **how: searched.append(how) or translate(lines, **how))
    lines = {0: "der Hund", 3: "12 / 7", 4: "DER HUND und die Katze"}
    longest = max(map(len, translator.tokenizer.encode([*lines.values()]))) + 1
    for beam in (None, 1, 3):
        adapter = Same(translator, beam)
        report, ours, theirs = verification.compare(translator, adapter, lines, exact=False)
        assert adapter.asked == [(beam or 2, longest + 6)]
        as_given = {"split": False, "copy_wordless": False, "case": "off", "spelling": "off"}
        assert searched[-1] == {"beam": beam or 2, "alpha": 0.0, **as_given}
        assert f"On 3 sentences ({sum(map(len, ours))} tokens), beam {beam or 2}, without length penalty" in report
        assert theirs == [[EOS]] * 3
    assert "lines that differ" not in capsys.readouterr().err
    adapter = Same(translator, 1, "Its search differs.")
    report, ours, theirs = verification.compare(translator, adapter, lines, exact=True)
    assert (adapter.asked, theirs) == ([], ours)
    assert report.endswith("; Its search differs.")


def test_lines_that_differ_show_ours_then_theirs(translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    segment = SimpleNamespace(ids=[5, EOS], hypotheses=[SimpleNamespace(ids=[302])])
    ours = Mock(config=translator.config, tokenizer=translator.tokenizer)
    ours.translate.return_value = [SimpleNamespace(segments=[segment])]
    ours.score_ids.return_value = [[-1.0, -2.0]]
    adapter = Mock(beam=1, difference="")
    adapter.translate.return_value, adapter.score.return_value = [[303, EOS]], [[-1.0, -2.0]]
    verification.compare(ours, adapter, {6: "a line"}, exact=True)
    texts = translator.tokenizer.decode([[302], [303]])
    assert texts[0] != texts[1]
    assert re.search(rf"^7 +{' +'.join(map(re.escape, texts))}$", capsys.readouterr().err, re.MULTILINE)


def test_log_probabilities_that_are_not_finite_are_refused_in_one_line(
    translator: Translator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that differ are not listed then. An import never lists its random lines."""
    segment = SimpleNamespace(ids=[5, EOS], hypotheses=[SimpleNamespace(ids=[302])])
    ours = Mock(config=translator.config, tokenizer=translator.tokenizer)
    ours.translate.return_value = [SimpleNamespace(segments=[segment])]
    ours.score_ids.return_value = [[-1.0, -2.0]]
    adapter = Mock(beam=1, difference="")
    adapter.translate.return_value = [[303, EOS]]
    for scores in ([math.nan, -2.0], [-1.0, math.nan], [-math.inf, -2.0]):
        adapter.score.return_value = [scores]
        with pytest.raises(DataError, match="a log-probability is not finite"):
            verification.compare(ours, adapter, {0: "a line"}, exact=True)
    adapter.score.return_value = [[-1.0, -2.0]]
    verification.compare(ours, adapter, {0: "a line"}, exact=True, show=False)
    assert not capsys.readouterr().err


def test_translations_are_compared_only_where_both_end(translator: Translator) -> None:
    """Theirs all end within the limit, six tokens more than the source. Lines where ours reach it are left out."""
    lines = dict(enumerate(["der Hund", "die Katze geht", "rot", "ein Baum und ein Haus"]))
    report, ours, _ = verification.compare(translator, Same(translator), lines, exact=False)
    sources = translator.tokenizer.encode([*lines.values()])
    ended = sum(len(each) < len(source) + 1 + 6 for each, source in zip(ours, sources, strict=True))
    assert ended < len(lines)
    assert re.search(rf"; 0 of {ended} translations that end within the limit are the same\.$", report)


def test_imports_are_compared_with_every_language_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is checked alone. The first 12 tokens are also checked before random lines, which contain none."""
    tags = [f">>l{i:02}<<" for i in range(20)]
    (tmp_path / "tokenizer.model").write_bytes(subwords.train(["ein Hund und eine Katze", "rot"] * 20, 300, tags=tags))
    tokenizer, adapter = Tokenizer(tmp_path / "tokenizer.model"), Mock()
    compared = Mock(return_value=("proof", [], []))
    monkeypatch.setattr(importing, "compare", compared)
    monkeypatch.setattr(importing, "Translator", Mock())
    assert verify_import(Mock(), tokenizer, Mock(), adapter) == "proof"
    first, second = adapter.check_tokenizer.call_args_list
    assert first == call(tokenizer, tags, [])
    lines, targets = second.args[1:]
    assert lines[12:] == [f"{tag} {line}" for tag, line in zip(tags[:12], lines, strict=False)]
    assert (lines[:12], second.kwargs) == (targets, {"allowed": 6})
    assert not any(">>" in line for line in targets)
    assert compared.call_args.args[2:] == (dict(enumerate(lines)),)
    assert compared.call_args.kwargs == {"exact": True, "show": False}
    for error in (DivergedError("nan"), DataError("other")):
        compared.side_effect = error
        with pytest.raises(DataError, match=f"the import of m could not be verified: {error}"):
            verify_import(Mock(), tokenizer, SimpleNamespace(name="m"), adapter)
