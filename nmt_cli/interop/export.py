"""The export command: a trained model where transformers and CTranslate2 can use it, with proof that it is the same."""

import statistics
import tempfile
from pathlib import Path

import torch

from nmt_cli import __version__
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import PAD, Tokenizer, copy, normalise
from nmt_cli.interop import marian
from nmt_cli.interop.proof import CTranslate2, Transformers, compare
from nmt_cli.recipe import loading, schema
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.storage import artefact
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import DataError, MissingError, OutputError, UsageError
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.translator import Translator

LIBRARIES = {"hf": "transformers", "ctranslate2": "ctranslate2"}


def export(model: Path, target: str, out: Path, quantization: str | None, lines: Path | None) -> int:
    """Write a model for "hf" or "ctranslate2" into `out`, and prove it there on `lines`, or on the corpus's dev."""
    weights = quantization or "float32"
    if target == "hf" and weights != "float32":
        raise UsageError("--quantization requires --to ctranslate2; transformers quantises when it loads")
    for name in ("transformers", LIBRARIES[target]):
        marian.library(name)
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    loaded = load_model(model)
    settings, tokenizer = loaded.recipe, Tokenizer(loaded.tokenizer_file)
    texts, references = _lines(settings, lines, loaded.directory)
    longest = settings.model.max_length - settings.decoding.extra_length
    sizes = {i: len(ids) for i, ids in enumerate(tokenizer.encode(texts)) if 0 < len(ids) < longest}
    if not sizes:
        raise DataError(f"{lines or 'the dev text'} has no line of 1 to {longest - 1} tokens to compare on")
    chosen, length = {i: texts[i] for i in sizes}, round(statistics.median(sizes.values()))
    penalty = round(settings.decoding.alpha * length / (5 + length), 2)  # of the same slope at this length
    manifest = {"target": target, "quantization": weights}
    with artefact.staged(out, "export", manifest) as stage, tempfile.TemporaryDirectory() as temporary:
        peer: Transformers | CTranslate2
        if target == "hf":
            peer = Transformers(stage, marian.write_marian(loaded, penalty, stage))
            peer.check_ids(tokenizer, [*chosen.values()], [*map(normalise, references)])
        else:
            from ctranslate2.converters import TransformersConverter

            if loaded.model.embedding.weight[PAD].any():
                raise DataError("cannot export: CTranslate2 decodes from a zero embedding, this model from another one")

            marian.write_marian(loaded, penalty, Path(temporary))
            if (Path(temporary) / "target_vocab.json").is_file():
                raise DataError("cannot export: CTranslate2 converts Marian models of one vocabulary; this one has two")
            TransformersConverter(temporary).convert(str(stage), quantization=weights, force=True)
            copy(loaded.tokenizer_file, stage / "tokenizer.model")
            peer = CTranslate2(stage, tokenizer)
        say(f"comparing {counted(len(chosen), 'translation')}")
        translator = Translator.of(loaded.model, tokenizer, settings, torch.float32)
        manifest["proof"], *sides = compare(translator, peer, chosen, exact=weights == "float32")
        if weights != "float32":
            ours, theirs = (tokenizer.target.decode([ids[:-1] for ids in side]) for side in sides)
            standard = [references[i] for i in chosen] if references else ours
            tgt, moses = settings.corpus.tgt, settings.corpus.moses
            scores = (corpus_bleu(side, standard, language=tgt, tokenized=moses)[0] for side in (ours, theirs))
            before, after = scores
            name = "BLEU" if references else "BLEU against the float32 output"
            manifest["proof"] += f" {name} changes from {before:.2f} to {after:.2f} ({after - before:+.2f})."
        about = {"out": out.as_posix(), "line": texts[min(chosen)].replace('"', "'"), "length": length}
        about |= {"penalty": penalty, "proof": manifest["proof"], "settings": settings, "version": __version__}
        origin = loaded.manifest.get("imported")
        about["origin"] = f"imported from {origin}" if origin else f"trained on {settings.corpus.name}"
        about |= {"library": LIBRARIES[target], "limit": min(marian.LONGEST, settings.model.max_length)}
        about["parameters"] = sum(p.numel() for p in loaded.model.parameters())
        example = (Path(__file__).parent / f"card_{target}.txt").read_text("utf-8").format(**about)
        card = (Path(__file__).parent / "card.md").read_text("utf-8").format(**about, example=example)
        artefact.write_file(stage / "README.md", card.encode())
        artefact.write_file(stage / "recipe.yaml", loading.to_yaml(settings))
    say(manifest["proof"], f"{out} is ready; its README.md shows how to use it")
    return 0


def _lines(settings: schema.Recipe, file: Path | None, model: Path) -> tuple[list[str], list[str]]:
    if file is not None:
        if not file.is_file():
            raise MissingError(f"no file {file}")
        return [normalise(line) for line in read_lines(file)], []
    if settings.corpus.name is None:  # an imported model
        raise MissingError("the export is compared on real sentences. Give --lines FILE")
    data = settings.corpus.directory
    beside = model.resolve().parent.parent.parent / data  # runs/, where the model was trained
    places = [place for place in (data, beside) if artefact.present(place)]
    if not places:
        raise MissingError(f"the export is compared on real sentences, and {data} is not here. Give --lines FILE")
    src, tgt = open_corpus(places[0]).lines("dev")
    return [normalise(line) for line in src[:100]], tgt[:100]
