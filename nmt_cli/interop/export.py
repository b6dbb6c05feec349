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
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError, UsageError
from nmt_cli.interop import marian
from nmt_cli.interop.peers import CTranslate2, Peer, Transformers
from nmt_cli.interop.proof import Proof, compare
from nmt_cli.scoring.metrics import corpus_bleu, corpus_chrf
from nmt_cli.training.run import read_run
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.lines import encode

TARGETS = {"hf": ("transformers",), "ctranslate2": ("transformers", "ctranslate2")}
QUANTIZATIONS = ("float32", "bfloat16", "int8")
NUM_LINES = 100
EXAMPLES = {
    "hf": """from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer, model = (kind.from_pretrained("$out") for kind in (AutoTokenizer, AutoModelForSeq2SeqLM))
batch = tokenizer(["$line"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))""",
    "ctranslate2": """import ctranslate2, sentencepiece
translator = ctranslate2.Translator("$out")
tokenizer = sentencepiece.SentencePieceProcessor(model_file="$out/tokenizer.model")
batch = [tokenizer.encode("$line", out_type=str) + ["</s>"]]
options = {"beam_size": $beam, "length_penalty": $penalty, "max_decoding_length": $limit, "min_decoding_length": 0}
results = translator.translate_batch(batch, **options)
print(tokenizer.decode(results[0].hypotheses[0]))""",
}


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
        peer: Peer
        if target == "hf":
            marian.write_marian(loaded, stage)
            peer = Transformers(stage, marian.exported_ids(tokenizer.vocabulary_size))
            _compare_ids(peer.encode([normalise(texts[i]) for i in sources]), [*sources.values()])
        else:
            marian.write_marian(loaded, Path(temporary))
            marian.write_ctranslate2(Path(temporary), stage, manifest["quantization"])
            peer = CTranslate2(stage, tokenizer)
        say(f"comparing {len(sources)} translations")
        proof = compare(loaded.model, peer, [*sources.values()], decoding.beam, decoding.extra_length)
        if manifest["quantization"] == "float32":
            manifest["proof"] = _accept(proof, tokenizer, [*sources])
        else:
            manifest["proof"] = f"{proof} {_loss(proof, tokenizer, [references[i] for i in sources if references])}"
        length = round(statistics.median(len(ids) + 1 for ids in proof.ours))
        penalty = round(decoding.alpha * length / (5 + length), 2)
        if target == "hf":
            marian.write_generation_config(loaded, penalty, stage)
        values = {"out": out.as_posix(), "line": normalise(texts[next(iter(sources))]).replace('"', "'")}
        values |= {"penalty": f"{penalty:g}", "length": f"{length}", "proof": manifest["proof"]}
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


def _data(settings: recipe.Recipe) -> Path:
    return Path("data") / str(settings.corpus.name).removeprefix("hub:").replace("/", "-")


def _lines(settings: recipe.Recipe, file: Path | None) -> tuple[list[str], list[str]]:
    """Return the sentences to compare on, and their references where there are."""
    if file is not None:
        if not file.is_file():
            raise MissingError(f"no file {file}")
        return read_lines(file), []
    data = _data(settings)
    if not artefact.present(data):
        raise MissingError(f"the export is compared on real sentences, and {data} is not here. Give --lines FILE")
    src, tgt = open_corpus(data).lines("dev")
    return src[:NUM_LINES], tgt[:NUM_LINES]


def _compare_ids(theirs: list[list[int]], ours: list[list[int]]) -> None:
    different = sum(a != b for a, b in zip(theirs, ours, strict=True))
    if different and importlib.util.find_spec("sacremoses") is None:
        raise DataError(f"MarianTokenizer splits {different} of {len(ours)} lines differently; nothing is exported")
    if different:
        warn(
            f"with sacremoses installed MarianTokenizer changes {different} of {len(ours)} lines before it splits them"
        )


def _accept(proof: Proof, tokenizer: Tokenizer, lines: list[int]) -> str:
    """Show the lines that differ and return what the proof says.

    Raises:
        DataError: the export is not the same.
    """
    rows = [
        [f"{name} {lines[i] + 1}", *tokenizer.decode([ours, theirs]), f"{gap:.1e}"]
        for name, i, ours, theirs, gap in proof.differing[:20]
    ]
    if rows:
        table("lines that differ", ["search, line", "ours", "theirs", "ours likelier by (nats)"], rows)
    reason = proof.refusal()
    if reason:
        raise DataError(f"the exported model is not kept: {reason}. {proof}")
    return str(proof)


def _loss(proof: Proof, tokenizer: Tokenizer, references: list[str]) -> str:
    """Return what quantisation costs in BLEU."""
    ours, theirs = tokenizer.decode(proof.ours), tokenizer.decode(proof.theirs)
    if not references:
        return f"BLEU of its output against that of the float32 model is {corpus_bleu(theirs, ours)[0]:.2f}."
    before, after = corpus_bleu(ours, references)[0], corpus_bleu(theirs, references)[0]
    return f"BLEU changes from {before:.2f} to {after:.2f} ({after - before:+.2f})."


def _card(loaded: LoadedModel, target: str, values: dict[str, str]) -> str:
    """Return the README of an export; `values` are of this export, the rest is read off the model."""
    settings = loaded.recipe
    plain = {**recipe.to_plain(settings.model), **recipe.to_plain(settings.decoding), **values}
    plain |= {"name": settings.name, "src": settings.corpus.src, "tgt": settings.corpus.tgt}
    plain |= {"corpus": settings.corpus.name, "layers": settings.model.num_layers, "version": __version__}
    plain |= {"limit": min(marian.LONGEST, settings.model.max_length), "scores": _scores(loaded)}
    plain["library"] = "transformers" if target == "hf" else "ctranslate2"
    plain["parameters"] = f"{sum(p.numel() for p in loaded.model.parameters()):,}"
    plain["example"] = Template(EXAMPLES[target]).substitute(plain)
    return Template((Path(__file__).parent / "card.md").read_text("utf-8")).substitute(plain)


def _scores(loaded: LoadedModel) -> str:
    """Return test scores if `nmt reproduce` translated the test set with this very model, else how to get them."""
    data = _data(loaded.recipe)
    if (loaded.directory.parent / "translations.json").is_file() and artefact.present(data):
        run = read_run(loaded.directory.parent, data, any_corpus=True)
        hypotheses, references = run.translations("test"), run.corpus.lines("test")[1] if run.corpus else []
        mine = run.model == loaded.manifest and run.corpus and run.corpus.identity == loaded.manifest.get("corpus")
        if hypotheses and references and mine:
            scores = [("BLEU", corpus_bleu(hypotheses, references)), ("chrF2", corpus_chrf(hypotheses, references))]
            return "\n".join(f"- test {name} {score:.2f} (`{signature}`)" for name, (score, signature) in scores)
    return "Not measured at export. Measure them: `nmt score --model MODEL --corpus CORPUS`."
