"""The export command: a trained model where transformers and CTranslate2 can use it, with proof that it is the same."""

import importlib.util
import statistics
import tempfile
from pathlib import Path
from string import Template

from nmt_cli import __version__, artefact, recipe
from nmt_cli.console import say, table, warn
from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.store import open_corpus, read_lines
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError, UsageError
from nmt_cli.interop import marian
from nmt_cli.interop.peers import CTranslate2, Transformers
from nmt_cli.interop.proof import Proof, compare
from nmt_cli.scoring.metrics import corpus_bleu, corpus_chrf
from nmt_cli.training.run import TRANSLATIONS, read_run
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.lines import encode

TARGETS = {"hf": ("transformers",), "ctranslate2": ("transformers", "ctranslate2")}
QUANTIZATIONS = ("float32", "bfloat16", "int8")
NUM_LINES = 100


def export(model: Path, target: str, out: Path, quantization: str | None, lines: Path | None) -> int:
    """Write a model for another toolkit, prove it there, and return the exit code.

    Args:
        model: a model directory or a run.
        target: "hf" or "ctranslate2".
        out: the new directory.
        quantization: of CTranslate2's weights; None for float32.
        lines: source sentences to compare on, all of them; None for the first of the corpus's dev.

    Raises:
        UsageError: a wrong option, or a package is not installed.
        DataError: the other toolkit cannot compute the model, or computes something else.
    """
    _check(target, out, quantization)
    loaded = load_model(model)
    decoding, tokenizer = loaded.recipe.decoding, Tokenizer(loaded.tokenizer_file)
    texts, references = _lines(loaded.recipe, lines)
    longest = loaded.recipe.model.max_length - decoding.extra_length
    sources = {i: ids for i, ids in enumerate(encode(tokenizer, texts)) if 0 < len(ids) <= longest}
    if not sources:
        raise DataError(f"{lines or 'the dev text'} has no line of 1 to {longest} tokens to compare on")
    manifest = {"target": target, "quantization": quantization or "float32"}
    with artefact.staged(out, "export", manifest) as stage, tempfile.TemporaryDirectory() as temporary:
        peer: Transformers | CTranslate2
        if target == "hf":
            marian.write_marian(loaded, stage)
            peer = Transformers(stage, marian.exported_ids(tokenizer.vocabulary_size))
            _same_ids(peer.encode([normalise(texts[i]) for i in sources]), [*sources.values()])
        else:
            marian.write_marian(loaded, Path(temporary))
            _write_ctranslate2(Path(temporary), stage, manifest["quantization"])
            peer = CTranslate2(stage, tokenizer)
        say(f"comparing {len(sources)} translations")
        proof = compare(loaded.model, tokenizer, peer, sources, decoding.beam, decoding.extra_length)
        manifest["proof"] = proof.text
        if manifest["quantization"] == "float32":
            _accept(proof)
        else:
            manifest["proof"] += _bleu_difference(proof, tokenizer, [references[i] for i in sources if references])
        length = round(statistics.median(len(ids) + 1 for ids in proof.ours))
        penalty = round(decoding.alpha * length / (5 + length), 2)
        if target == "hf":
            _write_generation_config(loaded, penalty, stage)
        values = {"out": out.as_posix(), "line": normalise(texts[min(sources)]).replace('"', "'")}
        values |= {"penalty": f"{penalty}", "length": f"{length}", "proof": manifest["proof"]}
        artefact.write_file(stage / "README.md", _card(loaded, target, values).encode())
        artefact.write_file(stage / "recipe.yaml", recipe.to_yaml(loaded.recipe))
    say(f"{manifest['proof']}\n{out} is ready; its README.md shows how to use it")
    return 0


def _check(target: str, out: Path, quantization: str | None) -> None:
    if target not in TARGETS:
        raise UsageError(f"--to must be one of {', '.join(TARGETS)}, not {target}")
    if quantization not in (None, *QUANTIZATIONS):
        raise UsageError(f"--quantization must be one of {', '.join(QUANTIZATIONS)}, not {quantization}")
    if target == "hf" and quantization not in (None, "float32"):
        raise UsageError("--quantization requires --to ctranslate2; transformers quantises when it loads")
    for package in TARGETS[target]:
        marian.library(package)
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")


def _lines(settings: recipe.Recipe, file: Path | None) -> tuple[list[str], list[str]]:
    """Return the sentences to compare on, and their references where there are."""
    if file is not None:
        if not file.is_file():
            raise MissingError(f"no file {file}")
        return read_lines(file), []
    data = settings.corpus.directory
    if not artefact.present(data):
        raise MissingError(f"the export is compared on real sentences, and {data} is not here. Give --lines FILE")
    src, tgt = open_corpus(data).lines("dev")
    return src[:NUM_LINES], tgt[:NUM_LINES]


def _same_ids(theirs: list[list[int]], ours: list[list[int]]) -> None:
    different = sum(a != b for a, b in zip(theirs, ours, strict=True))
    if different and importlib.util.find_spec("sacremoses") is None:
        raise DataError(f"MarianTokenizer splits {different} of {len(ours)} lines differently; nothing is exported")
    if different:
        warn(
            f"with sacremoses installed MarianTokenizer changes {different} of {len(ours)} lines before it splits them"
        )


def _accept(proof: Proof) -> None:
    """Show the lines that differ; raise DataError if the export is not the same model."""
    if proof.differing:
        columns = ["search, line", "ours", "theirs", "ours likelier by (nats)"]
        table("lines that differ", columns, proof.differing[:20])
    if proof.refusal:
        raise DataError(f"the exported model is not kept: {proof.refusal}. {proof.text}")


def _bleu_difference(proof: Proof, tokenizer: Tokenizer, references: list[str]) -> str:
    ours, theirs = tokenizer.decode(proof.ours), tokenizer.decode(proof.theirs)
    if not references:
        return f" BLEU of its output against that of the float32 model is {corpus_bleu(theirs, ours)[0]:.2f}."
    before, after = corpus_bleu(ours, references)[0], corpus_bleu(theirs, references)[0]
    return f" BLEU changes from {before:.2f} to {after:.2f} ({after - before:+.2f})."


def _write_ctranslate2(directory: Path, out: Path, quantization: str) -> None:
    """Convert what `write_marian` wrote, with the tokenizer beside it."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(directory)).convert(str(out), quantization=quantization, force=True)
    (out / "tokenizer.model").write_bytes((directory / "source.spm").read_bytes())


def _write_generation_config(loaded: LoadedModel, length_penalty: float, out: Path) -> None:
    """Write how transformers searches by default: the recipe's beam, and a length penalty close to ours."""
    pad = loaded.model.vocabulary_size - 1
    marian.library("transformers").GenerationConfig(
        num_beams=loaded.recipe.decoding.beam,
        length_penalty=length_penalty,
        max_length=min(marian.LONGEST, loaded.recipe.model.max_length),
        bad_words_ids=[[pad]],
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=EOS - 1,
        forced_eos_token_id=EOS - 1,
    ).save_pretrained(out)


def _card(loaded: LoadedModel, target: str, values: dict[str, str]) -> str:
    """Return the README of an export; `values` are what the model itself does not tell."""
    settings, templates = loaded.recipe, (Path(__file__).parent / "card.md").read_text("utf-8")
    card, *examples = templates.split("\n%%\n")
    plain = {**recipe.to_plain(settings.model), **recipe.to_plain(settings.decoding), **values}
    plain |= {"name": settings.name, "src": settings.corpus.src, "tgt": settings.corpus.tgt}
    plain |= {"corpus": settings.corpus.name, "version": __version__, "scores": _scores(loaded)}
    plain |= {"limit": min(marian.LONGEST, settings.model.max_length), "library": TARGETS[target][-1]}
    plain["parameters"] = f"{sum(p.numel() for p in loaded.model.parameters()):,}"
    plain["example"] = Template(examples[target == "ctranslate2"]).substitute(plain)
    return Template(card).substitute(plain)


def _scores(loaded: LoadedModel) -> str:
    """Return test scores if `nmt reproduce` translated the test set with this very model, else how to get them."""
    run, data = loaded.directory.parent, loaded.recipe.corpus.directory
    if (run / TRANSLATIONS).is_file() and artefact.present(data):
        files, corpus = read_run(run, data, any_corpus=True), open_corpus(data)
        hypotheses, references = files.translations("test"), corpus.lines("test")[1]
        mine = files.model == loaded.manifest and corpus.identity == loaded.manifest.get("corpus")
        if mine and hypotheses and references:
            scores = {"BLEU": corpus_bleu(hypotheses, references), "chrF2": corpus_chrf(hypotheses, references)}
            return "\n".join(
                f"- test {name} {score:.2f} (`{signature}`)" for name, (score, signature) in scores.items()
            )
    return "Not measured at export. Measure them: `nmt score --model MODEL --corpus CORPUS`."
