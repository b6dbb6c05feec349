"""The doctor command: what in a run is known to cost BLEU, causes before symptoms, most costly first.

A run and what lies beside it is gathered into one record; every check looks at that record and yields findings. Sizes
are what others measured and told (the paper's Table 3, issue threads of other toolkits), or follow from the run's own
figures, or are called estimates. A corpus of the paper's kind is compared with the paper's nearest model; of any other
run only what is wrong anywhere is named.
"""

import html
import json
import math
import shutil
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli import artefact, recipe
from nmt_cli.corpus.cleaning import SOURCE_HELD_OUT
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import UNK, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError, printable
from nmt_cli.reporting import paper
from nmt_cli.scoring.metrics import TOKENISED, corpus_bleu
from nmt_cli.scoring.paper_bleu import LANGUAGES, paper_bleu
from nmt_cli.scoring.score import Text, read
from nmt_cli.training import metrics

Cost = tuple[float, float]
ALL: Cost = (math.inf, math.inf)  # the score is of something else, or nothing was learnt
HARMLESS = 0.1
LARGE_CORPUS = 1_000_000  # pairs; the paper's settings are for corpora like this
FEW_TOKENS, USUAL_TOKENS = 1000, 4000  # per update, on small corpora
SPACING = {"base": 1500, "big": 600}  # updates between the paper's checkpoints
WMT14 = {"de": (4_500_000, 37_000), "fr": (36_000_000, 32_000)}  # the paper's pairs and pieces (section 5.1)
UNSKILLED = 4.6  # nats per piece: perplexity 100
SYMPTOMS = ("output", "output-length", "still-falling", "overfitting")  # nobody chose these: they follow from the rest

# What the paper did or what is right; where the cost comes from; what to do.
ABOUT: dict[str, tuple[str, str, str]] = {
    "tokenizer": (
        "one joint model for text, training and translation (section 5.1)",
        "most of it; a published EN-FR model with subwords learnt anew: 35.42, not 43.2 (fairseq issue 1411)",
        "prepare the corpus with the run's tokenizer (nmt prepare --tokenizer FILE), or train a new run on this corpus",
    ),
    "strange-pieces": (
        "subwords learnt on the training text of both languages (section 5.1), so that few are single characters",
        "estimate: such words are spelt out, and sentences become much longer",
        "leave out --tokenizer, or name one that was learnt on these languages",
    ),
    "corpus": ("one corpus throughout", "what is scored may be other text", "name the run's own corpus: --data DIR"),
    "test-set": (
        "newstest2014, all 3,003 lines (table 2); other corpora name their own",
        "wrong sets cost 1 to 3 where they are near (fairseq issue 4477), all of it where they are not",
        "translate the test set and score against its own references: nmt score HYP --corpus DATA",
    ),
    "metric": (
        "cased, both sides tokenised alike, compounds split",
        "fairseq issues 346 and 1300, sacreBLEU issues 162 and 178; for case an estimate",
        "score what nmt translate writes as it is; undo subwords and tokens of other tools first",
    ),
    "tokens-per-update": (
        f"about 25,000 source and 25,000 target tokens (5.1); recipes for small corpora have about {USUAL_TOKENS:,}",
        "20.9 to 23.5 on one GPU (tensor2tensor issues 317, 455, 539; fairseq issue 346), shared out by halvings",
        "a new run with more training.tokens_per_step; what memory does not hold is summed up in parts",
    ),
    "updates": (
        "100,000 updates for base, 300,000 for big (section 5.2); other recipes name their own number",
        "0.5 to 1 for big stopped early (fairseq issues 202, 1976, 3828); on Multi30k a third of 3,000 updates gave "
        "31.3, not 39.3; otherwise an estimate",
        "the same command again goes on; where training.steps itself is low, raise it",
    ),
    "averaging": (
        "the mean of the last 5 checkpoints for base, 20 for big, written every 10 minutes (section 6.1)",
        "27.37 without and 27.66 with it (deep-shallow issue 3), “at least 1 BLEU” (OpenNMT-py issue 514)",
        "nmt average-checkpoints RUN --last 5, then translate and score again",
    ),
    "old-model": (
        "averaged the last checkpoints (section 6.1)",
        "averaging the wrong checkpoints made 14.51 of 21.28 (tensor2tensor issue 317)",
        "nmt average-checkpoints RUN, then translate and score again",
    ),
    "warm-up": (
        "4,000 updates, to a rate of 7.0e-4 (base) or 4.9e-4 (big) (section 5.3)",
        "IWSLT14 without warm-up or with wrong subwords: 7.94, not 35 (reports on fairseq); otherwise an estimate",
        "a new run with training.warmup_steps=4000, training.rate_factor=1",
    ),
    "model": (
        "the base or big model of Table 3",
        "the paper's Table 3, base model; for dropout of big fairseq issues 202, 1976, 3828; else an estimate",
        "a new run with the paper's value, unless this is what is being tried",
    ),
    "norm": (
        "layer norm after each sub-layer (section 3.1)",
        "estimate; up to about 6 layers post-norm is the better one (Takase et al. 2022)",
        "a new run with model.norm=post",
    ),
    "details": (
        "Adam 0.9, 0.98, 1e-9, no clipping, no biases in attention, ReLU, float32",
        "estimate: implementations that reach the paper's figures differ in these",
        "nothing",
    ),
    "search": (
        "beam 4, alpha 0.6, at most 50 pieces more than the source (section 6.1)",
        "a few tenths, for greedy search more (fairseq issues 346, 1352)",
        "translate again with decoding.beam=4, decoding.alpha=0.6",
    ),
    "old-translations": ("scored what its model said", "estimate", "nmt reproduce again: it translates anew"),
    "data": (
        "4.5 M pairs EN-DE, 36 M EN-FR (section 5.1); other recipes name their own number",
        "16 for 58 million pairs: 1 BLEU (Popel and Bojar 2018), by halvings; wrong pairs teach nothing",
        "nmt prepare with all of the data, after a look at its report: what was dropped, and why",
    ),
    "normalisation": (
        "text as it comes; quotation marks alike on both sides",
        "quotation marks alone: 1.5 (tensor2tensor issue 317)",
        "corpus.cleaning.nfkc=false, or normalise the references alike and say so",
    ),
    "contamination": ("says nothing of it", "it hides losses: the score is too good", "compare on other test sets too"),
    "cleaning": (
        "the usual cleaning of WMT text (Britz et al. 2017)",
        "estimate",
        "prepare with the recipe's defaults",
    ),
    "vocabulary": (
        "about 37,000 pieces EN-DE, 32,000 EN-FR (section 5.1)",
        "estimate",
        "set corpus.tokenizer.vocabulary_size, prepare and train again",
    ),
    "diverged": (
        "finite numbers, and a loss that falls fast in the first thousands of updates",
        "a model that predicts words without their source scores next to nothing",
        "lower training.rate_factor, more training.warmup_steps, training.precision=fp32, or model.norm=pre",
    ),
    "overfitting": (
        "a dev loss that falls to the end",
        "this run's dev BLEU where it has one, else Table 3: 0.1 nats are about 0.9 BLEU",
        "more dropout, fewer updates (training.patience), or more data",
    ),
    "still-falling": (
        "trained until the dev loss was nearly flat",
        "the paper's Table 3: 0.1 nats are about 0.9 BLEU",
        "train longer: raise training.steps",
    ),
    "output": (
        "hardly any such lines",
        "this run: what these lines would add if they scored like the others",
        "look at them (nmt score --details), then at the other findings: mostly too little or unclean training",
    ),
    "output-length": (
        "about as many words as the references: its length penalty was chosen for that (section 6.1)",
        "this run: BLEU's brevity penalty, or the words too many",
        "see the other findings first; decoding.alpha moves the length",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One thing that costs BLEU: a key of ABOUT, what is so, and the lowest and highest usual loss when it is alone."""

    id: str
    what: str
    cost: Cost


@dataclass(frozen=True)
class Record:
    """A run and what lies beside it. What is not there is None or empty, and named in `unchecked`.

    Attributes:
        near: the paper's model it is compared with, "base" or "big"; None for corpora that are not of the paper's kind.
        updates: lines of metrics; validations: likewise.
        step: the last update known of.
        averaged: steps whose mean the model is.
        made_by: of the model's weights and the recipe's search, as `reproduce` stamps translations.
        hypothesis: translations of the test set; reference and source: its two sides.
        triples: hypothesis, reference and source of every line, where their counts agree.
        bleu: of these, by sacreBLEU.
    """

    run: Path
    settings: recipe.Recipe
    near: str | None
    corpus: Corpus | None
    updates: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    step: int
    averaged: list[int]
    made_by: str | None
    hypothesis: Text | None
    reference: Text | None
    triples: list[tuple[str, str, str]]
    bleu: float | None
    unchecked: list[str]

    @property
    def paper(self) -> dict[str, Any]:
        """The knobs of the paper's nearest model; of base where there is none."""
        return paper.models()[self.near or "base"]

    @property
    def tokens(self) -> float:
        """Target tokens per update, as counted while training."""
        counted = [r["tgt_tokens_per_step"] for r in self.updates if r.get("tgt_tokens_per_step")]
        return statistics.fmean(counted) if counted else float(self.settings.training.tokens_per_step)


def gather(run: Path, data: Path | None, hypothesis: Path | None, reference: Path | None) -> Record:
    """Read a run, its corpus (`data`, else data/<corpus>, here or beside runs/) and its translations of the test set.

    Raises:
        MissingError: there is no such run, or a file named is not there.
        DataError: the run or its corpus is damaged.
    """
    if not (run / "recipe.yaml").is_file():
        raise MissingError(f"no run in {run}. Train one: nmt train RECIPE")
    settings = recipe.load_stored(run / "recipe.yaml")
    name, unchecked = str(settings.corpus.name).removeprefix("hub:").replace("/", "-"), []
    places = [Path("data") / name, run.resolve().parent.parent / "data" / name]
    where = data or next((place for place in places if artefact.present(place)), None)
    corpus = open_corpus(where) if where else None
    if not corpus:
        unchecked.append(f"data, tokenizer and test set: no corpus in {places[0]} (--data DIR)")
    updates, validations = _records(run / "metrics.jsonl")
    if not updates:
        unchecked.append("loss curve: metrics.jsonl is not there, or empty")
    averaged, made_by = [], None
    if artefact.present(run / "model"):
        model = artefact.read_json(run / "model" / artefact.MANIFEST)
        try:
            averaged = sorted(int(step) for step in model.get("steps", []))
            weights = model["files"]["model.safetensors"]["sha256"]
        except (TypeError, ValueError, KeyError):
            raise DataError(f"{run / 'model' / artefact.MANIFEST} is damaged. Average the checkpoints again") from None
        made_by = artefact.digest([weights, recipe.to_plain(settings.decoding)])
    else:
        unchecked.append("averaging: there is no model yet (nmt average-checkpoints)")
    path = hypothesis or (run / "test.hyp" if (run / "test.hyp").is_file() else None)
    hyp = read(path) if path else None
    src, tgt = (_side(corpus, f"test.{side}") for side in ("src", "tgt"))
    ref = read(reference) if reference else tgt
    if not hyp or not ref:
        lacks = "no reference (--reference FILE)" if hyp else "no translations of the test set (--hypothesis FILE)"
        unchecked.append(f"output, test set and metric: {lacks}")
    elif settings.corpus.tgt == recipe.TREES:
        unchecked.append("output: BLEU says nothing of trees (nmt score --metric brackets)")
    triples, bleu = [], None
    if hyp and ref and len(hyp.lines) == len(ref.lines) > 0 and settings.corpus.tgt != recipe.TREES:
        source = src.lines if src and len(src.lines) == len(hyp.lines) else [""] * len(hyp.lines)
        triples, bleu = list(zip(hyp.lines, ref.lines, source, strict=True)), corpus_bleu(hyp.lines, ref.lines)[0]
    like_wmt14 = name.startswith("wmt14") or (corpus is not None and len(corpus.src) >= LARGE_CORPUS)
    near = paper.departures(settings)[0] if like_wmt14 and settings.corpus.tgt != recipe.TREES else None
    step = max([record["step"] for record in updates + validations] + averaged, default=0)
    facts = (settings, near, corpus, updates, validations, step, averaged, made_by, hyp, ref, triples, bleu, unchecked)
    return Record(run, *facts)


def _side(corpus: Corpus | None, file: str) -> Text | None:
    return read(corpus.directory / file) if corpus and file in corpus.manifest["files"] else None


def _records(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the updates and the validations of a run's metrics."""
    records = metrics.read(path)
    names = ("step", "nll", "dev_nll", "dev_bleu", "tgt_tokens_per_step", "skipped")
    for record in records:
        known = [record.get(name) for name in names] if isinstance(record, dict) else [None]
        right = all(value is None or (isinstance(value, int | float) and value >= 0) for value in known)
        if not right or not isinstance(known[0], int):
            raise DataError(f"{path} is damaged: {printable(record, 60)} is no record of training")
    return [r for r in records if "nll" in r], [r for r in records if r.get("dev_nll") is not None]


# --- whether the score means anything --------------------------------------------------------------------------------


def _tokenizer(r: Record) -> Iterator[Finding]:
    files = [r.run / "tokenizer.model", r.run / "model" / "tokenizer.model"]
    files += [r.corpus.tokenizer_file] if r.corpus else []
    kinds = {artefact.sha256(file): file for file in files if file.is_file()}
    if len(kinds) > 1:
        names = " and ".join(str(file) for file in kinds.values())
        yield Finding("tokenizer", f"The tokenizers do not fit: {names} differ, so the same ids are other pieces.", ALL)
    elif r.corpus and artefact.read_json(r.run / "corpus.json").get("corpus") != r.corpus.identity:
        yield Finding("corpus", f"{r.corpus.directory} is not the corpus this run was trained on.", ALL)
    if r.corpus:
        lines = [line for split in ("test", "dev") for side in r.corpus.lines(split) for line in side[:500]]
        tokenizer = Tokenizer(r.corpus.tokenizer_file)
        ids = Counter(i for line in tokenizer.encode(lines) for i in line)
        strange = sum(n for i, n in ids.items() if i == UNK or tokenizer.pieces([i])[0].startswith("<0x"))
        if strange > 0.02 * ids.total():
            what = f"The tokenizer does not know this text: {strange / ids.total():.0%} of its pieces are single bytes."
            yield Finding("strange-pieces", what, (1, 10))


def _bare(lines: list[str]) -> list[str]:
    """Return lines without what tokenising, escaping or lower-casing changes."""
    return ["".join(filter(str.isalnum, html.unescape(line).lower())) for line in lines]


def _test_set(r: Record) -> Iterator[Finding]:
    if not r.hypothesis or not r.reference:
        return
    files = r.corpus.manifest["files"] if r.corpus else {}
    dev, test = (r.corpus.lines(split)[1] if r.corpus else [] for split in ("dev", "test"))
    counts = len(r.hypothesis.lines), len(r.reference.lines)
    best = max((v.get("dev_bleu") or 0 for v in r.validations), default=0)
    score = r.bleu if r.reference.lines == test else None  # of text in another form it tells nothing
    said = [hyp for hyp, _, src in r.triples if hyp.strip() and hyp != src]  # of the others `output` tells
    if r.near and counts[0] == 2737:
        what = "2,737 lines are the filtered newstest2014, wmt14 of sacreBLEU; the paper's is wmt14/full."
        yield Finding("test-set", what, (1, 3))
    elif test and _bare(r.reference.lines) != _bare(test):
        what = f"{r.reference.name} is not the test set of this run's corpus"
        yield Finding("test-set", f"{what}{' but its dev set' if r.reference.lines == dev else ''}.", ALL)
    elif counts[0] != counts[1]:
        what = f"{r.hypothesis.name} has {counts[0]:,} lines, the reference {counts[1]:,}: not this test set."
        yield Finding("test-set", what, ALL)
    elif score is not None and len(dev) == counts[0] and corpus_bleu(r.hypothesis.lines, dev)[0] > 2 * score + 5:
        yield Finding("test-set", "The translations are of the dev set, not of the test set.", ALL)
    elif score is not None and best > 4 * score + 5 and 2 * len(said) > counts[0]:
        what = f"{score:.1f} BLEU on the test set, {best:.1f} on dev: these are not translations of it, line by line."
        yield Finding("test-set", what, ALL)
    elif any(f"dev.{side}" in files and files[f"dev.{side}"] == files.get(f"test.{side}") for side in ("src", "tgt")):
        yield Finding("test-set", "The dev set is the test set: what was chosen on it looks too good.", (1, 3))
    elif str(r.settings.corpus.name).startswith("wmt14") and counts[1] != 3003:
        yield Finding("test-set", f"The test set has {counts[1]:,} lines.", (1, 3))


def _metric(r: Record) -> Iterator[Finding]:
    test = r.corpus.lines("test")[1] if r.corpus else []
    if test and r.reference and r.reference.lines != test and _bare(r.reference.lines) == _bare(test):
        what = f"{r.reference.name} is the test set, but tokenised, lower-cased or with other marks."
        yield Finding("metric", what, (0, 3))
    marked, marked_refs = (sum(bool(TOKENISED.search(line[i])) for line in r.triples) for i in (0, 1))
    if marked > max(0.1 * len(r.triples), 2 * marked_refs):
        what = "translations look tokenised (a stop cut off, &quot;, @@ or ▁), and their references do not."
        yield Finding("metric", f"{marked:,} of {len(r.triples):,} {what}", (1, 3))
    said = [line for line in r.triples if line[0].strip()]  # of empty ones `output` tells
    cased, cased_refs = (sum(line[i] != line[i].lower() for line in said) for i in (0, 1))
    if 4 * min(cased, cased_refs) < max(cased, cased_refs):
        lower = "translations" if cased < cased_refs else "references"
        yield Finding("metric", f"The {lower} are lower-cased, the other side is not.", (1, 10))


# --- how it was trained ----------------------------------------------------------------------------------------------


def _updates(r: Record) -> Iterator[Finding]:
    planned, theirs = r.settings.training.steps, r.paper["training"]
    usual = theirs["tokens_per_step"] if r.near else USUAL_TOKENS
    if r.tokens < (0.7 * usual if r.near else FEW_TOKENS):
        halvings = math.log2(usual / r.tokens)
        what = f"An update has {r.tokens:,.0f} target tokens, {usual / r.tokens:.1f} times fewer than usual."
        yield Finding("tokens-per-update", what, (0.5 * halvings, 2 * halvings))
    share = r.step / planned
    if r.near:  # more tokens in each make up for fewer updates
        share = r.step / theirs["steps"] * max(1.0, r.tokens / usual)
    if 0 < share < 0.9:
        what = f"{r.step:,} updates" + f" of the {planned:,} planned" * (r.step < planned)
        what += f": {share:.0%} of the training of the paper's {r.near} model." if r.near else "."
        # Short runs are planned to end when they have learnt enough; the paper's were long past that.
        costs = [(1 / 3, (0.5, 1.0)), (0.1, (1.0, 4.0))] if r.near else [(2 / 3, (0.5, 4.0)), (1 / 3, (2.0, 10.0))]
        yield Finding("updates", what, next((cost for least, cost in costs if share >= least), (4, 20)))


def _averaging(r: Record) -> Iterator[Finding]:
    last, first = r.settings.averaging.last, r.averaged[:1]
    if not first or (last == len(r.averaged) == 1 and r.settings.expect.paper_dev_bleu):
        return  # there is no model, or it is a row of Table 3, where the paper did not average either
    want, span = r.paper["averaging"]["last"] if r.near else last, r.averaged[-1] - first[0]
    if len(r.averaged) == 1:
        yield Finding("averaging", f"No averaging: the model is the checkpoint of update {first[0]:,} alone.", (0.3, 1))
    elif len(r.averaged) < want:
        yield Finding("averaging", f"Only {len(r.averaged)} checkpoints are averaged.", (0, 0.3))
    elif span < ((want - 1) * SPACING[r.near] / 2 if r.near else 0.01 * r.step):
        yield Finding("averaging", f"The averaged checkpoints are too close: {span:,} updates in all.", (0, 0.3))
    if r.averaged[-1] < 0.9 * r.step:
        what = f"The model ends at update {r.averaged[-1]:,}, the run at {r.step:,}."
        yield Finding("old-model", what, (0.3, 7))


def _model(r: Record) -> Iterator[Finding]:
    if not r.near:
        return
    t, m, right = r.settings.training, r.settings.model, dict(r.paper["model"])
    if r.near == "big" and "fr" in (r.settings.corpus.src, r.settings.corpus.tgt):
        right["dropout"] = 0.1  # section 6.1
    rows = (line.partition(": ")[2].partition(";") for line in paper.TABLE_3.split("\n"))
    table_3 = {changes: float(figures.split()[1]) for changes, _, figures in rows}
    knobs = ("num_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v")
    ours = {**{knob: getattr(m, knob) for knob in right}, "label_smoothing": t.label_smoothing}
    right["label_smoothing"] = 0.1
    for group in (knobs, ("dropout",), ("positions",), ("label_smoothing",)):
        changed = [knob for knob in group if ours[knob] != right[knob]]
        change, usual = (" ".join(f"{knob}={of[knob]}" for knob in changed) for of in (ours, right))
        lost = table_3[""] - table_3[change] if r.near == "base" and change in table_3 else None
        if changed and (lost is None or lost > 0):
            what = f"The model has {change}, the paper's {r.near} has {usual}."
            yield Finding("model", what, (0, 1) if lost is None else (lost, lost))
    if m.norm == "pre":
        yield Finding("norm", "Layer norm comes before each sub-layer.", (0.3, 0.6))
    peak = t.rate_factor * (m.d_model * t.warmup_steps) ** -0.5
    times = peak * (right["d_model"] * 4000) ** 0.5
    if t.warmup_steps != 4000 or not 0.8 < times < 1.25:
        cost = (1, 20) if t.warmup_steps < 1000 and m.norm == "post" else (0, 0.3) if 0.4 < times < 2.5 else (0.3, 2)
        yield Finding("warm-up", f"Warm-up of {t.warmup_steps:,} updates, to a rate of {peak:.1e}.", cost)
    names = ("training.adam", "training.clip", "model.attention_bias", "model.output_bias", "model.activation")
    changes = recipe.differences(recipe.to_plain(recipe.Recipe()), recipe.to_plain(r.settings))
    details = [change for change in changes if change.startswith(names)]
    details += ["training.precision: bf16"] if t.precision == "bf16" else []
    if details:
        yield Finding("details", "; ".join(details), (0, HARMLESS))


def _search(r: Record) -> Iterator[Finding]:
    d, trees = r.settings.decoding, r.settings.corpus.tgt == recipe.TREES
    found = [f"beam {d.beam}"] if (d.beam == 1 and not trees) or (r.near and not 4 <= d.beam <= 10) else []
    found += [f"alpha {d.alpha:g}"] if r.near and abs(d.alpha - 0.6) > 0.1 else []
    found += [f"at most {d.extra_length} pieces more than the source"] if r.near and d.extra_length < 50 else []
    if found:
        yield Finding("search", f"The recipe searches with {', '.join(found)}.", (0.3, 1) if d.beam == 1 else (0, 0.3))
    stamp, own = r.run / "translations.json", r.hypothesis and r.hypothesis.name == str(r.run / "test.hyp")
    if own and stamp.is_file() and r.made_by and artefact.read_json(stamp).get("made_by") != r.made_by:
        yield Finding("old-translations", "The translations are not by this model and search, but older.", (0, 1))


# --- what it was trained on, and what came out -----------------------------------------------------------------------


def _data(r: Record) -> Iterator[Finding]:
    if not r.corpus:
        return
    c, manifest, pairs = r.settings.corpus, r.corpus.manifest, len(r.corpus.src)
    cleaning = artefact.read_json(r.corpus.directory / "cleaning.json")
    wmt14, pieces = WMT14["fr" if "fr" in (c.src, c.tgt) else "de"]
    usual = (r.settings.expect.pairs or [wmt14 if str(c.name).startswith("wmt14") else 0])[0]
    if usual and pairs < 0.9 * usual:
        halvings = math.log2(usual / pairs)
        what = f"{pairs:,} training pairs, not {usual:,}" + f" (corpus.limit is {c.limit})" * bool(c.limit)
        yield Finding("data", f"{what}.", (0.5 * halvings, 1.5 * halvings))
    for warning in cleaning.get("warnings", []):
        if "shifted" in warning or "swapped" in warning:
            yield Finding("data", f"nmt prepare warned: {warning}.", ALL)
    test = cleaning.get("references", {}).get("test", {})
    share = test.get("not_reproduced", 0) / max(1, test.get("lines", 0))
    if share > 0.02:
        what = f"{share:.0%} of the references cannot be said as they are: {cleaning.get('unicode')} changes them."
        yield Finding("normalisation", what, (0, min(1.5, 10 * share)))
    known = cleaning.get("noted", {}).get(SOURCE_HELD_OUT, {}).get("pairs", 0)
    if not manifest.get("generated") and known > 0.05 * sum(len(r.corpus.lines(s)[0]) for s in ("dev", "test")):
        yield Finding("contamination", f"{known:,} training sources are also in dev or test", (0, HARMLESS))
    off = [k for k in ("unescape", "drop_copies", "drop_duplicates", "check_script") if not getattr(c.cleaning, k)]
    if r.near and (off or (c.cleaning.max_tokens or 250) < 100):
        what = ", ".join([f"without {k}" for k in off] or [f"only to {c.cleaning.max_tokens} pieces"])
        yield Finding("cleaning", f"Cleaned {what}.", (0, 0.5))
    if r.near and not 0.5 <= manifest["vocabulary_size"] / pieces <= 1.5:
        yield Finding("vocabulary", f"The vocabulary has {manifest['vocabulary_size']:,} pieces.", (0, 0.5))


def _curve(r: Record) -> Iterator[Finding]:
    losses = [(u["step"], float(u["nll"])) for u in r.updates if u["nll"] is not None]
    skipped, crash = max((u.get("skipped") or 0 for u in r.updates), default=0), r.run / "crash.json"
    gave_up = crash.is_file() and artefact.read_json(crash).get("step") not in range(r.step)  # and did not go on later
    if gave_up or len(losses) < len(r.updates) or skipped > max(3, r.step // 1000):
        what = "Training gave up" if gave_up else f"{skipped:,} updates were skipped"
        yield Finding("diverged", f"{what}: numbers were not finite.", ALL if gave_up else (0, 1))
    warm = r.settings.training.warmup_steps
    if len(losses) > 5:
        end, low = statistics.fmean(loss for _, loss in losses[-3:]), min(loss for _, loss in losses)
        some = Counter(r.corpus.tgt.ids[:200_000].tolist()) if r.corpus else Counter[int]()
        entropy = -sum(n / some.total() * math.log(n / some.total()) for n in some.values())
        if end > low + 1:
            yield Finding("diverged", f"Training diverged: its loss was {low:.2f}, and is {end:.2f}.", ALL)
        elif end > (0.6 * entropy or UNSKILLED) and end > losses[len(losses) // 2][1] - 0.1 and r.step > warm:
            yield Finding("diverged", f"Training never took off: the loss stays at {end:.2f}.", ALL)
    dev = [(v["step"], float(v["dev_nll"])) for v in r.validations]
    if len(dev) < 5 or r.step < 0.9 * r.settings.training.steps:
        return
    last, (best_step, best) = dev[-1][1], min(dev, key=lambda point: point[1])
    bleus = [float(v["dev_bleu"]) for v in r.validations if v.get("dev_bleu") is not None]
    lost = max(bleus) - bleus[-1] if bleus else 10 * (last - best)
    gain = min(loss for step, loss in dev if step <= max(dev[0][0], 0.8 * dev[-1][0])) - last
    if last - best > 0.03 and lost > 0.5:
        what = f"The dev loss rises: {best:.3f} at update {best_step:,}, {last:.3f} at the end."
        yield Finding("overfitting", what, (0.5 * lost, lost))
    elif gain > 0.03:
        yield Finding("still-falling", f"The dev loss fell by {gain:.3f} in the last fifth.", (4 * gain, 10 * gain))


def _loops(line: str) -> bool:
    """Return whether one to four words are said four times in a row."""
    words = line.split()[:1000]
    for size in range(1, 5):
        run = 0
        for a, b in zip(words, words[size:], strict=False):
            run = run + 1 if a == b else 0
            if run == 3 * size:
                return True
    return False


def _output(r: Record) -> Iterator[Finding]:
    if r.bleu is None:
        return
    counts = {
        "are empty": sum(not hyp.strip() and bool(ref.strip()) for hyp, ref, _ in r.triples),
        "are copies of their source": sum(hyp == src != ref and len(src.split()) > 2 for hyp, ref, src in r.triples),
        "hold an unknown piece": sum("⁇" in hyp or "<unk>" in hyp for hyp, _, _ in r.triples),
        "say something four times in a row": sum(_loops(hyp) and not _loops(ref) for hyp, ref, _ in r.triples),
    }
    for what, count in counts.items():
        share = min(0.9, count / len(r.triples))
        if count > 1 and share > 0.005:
            lost = r.bleu * share / (1 - share)
            cost = ALL if share > 0.5 else (0.5 * lost, lost)
            yield Finding("output", f"{count:,} of {len(r.triples):,} translations {what}.", cost)
    ours, theirs = (sum(len(line[i].split()) for line in r.triples) for i in (0, 1))
    ratio = max(0.1, ours / max(1, theirs))
    if not 0.95 <= ratio <= 1.05:
        lost = r.bleu * (math.exp(1 / ratio - 1) - 1 if ratio < 1 else ratio - 1)
        what = f"The translations have {ratio:.2f} times the words of their references."
        yield Finding("output-length", what, (0.5 * lost, lost))


CHECKS: tuple[Callable[[Record], Iterator[Finding]], ...] = (
    *(_tokenizer, _test_set, _metric, _data, _updates, _averaging, _model, _search, _curve, _output),
)


# --- saying it -------------------------------------------------------------------------------------------------------


def examine(record: Record) -> list[Finding]:
    """Return all findings: causes before symptoms, the most costly first."""
    found = [finding for check in CHECKS for finding in check(record)]
    if any(finding.id == "test-set" and finding.cost == ALL for finding in found):  # its lines are not to be compared
        found = [finding for finding in found if not finding.id.startswith(("output", "metric"))]
    return sorted(found, key=lambda finding: (finding.id in SYMPTOMS, -sum(finding.cost)))


def _about(r: Record, finding: Finding) -> dict[str, str]:
    right, source, do = ABOUT[finding.id]
    return {"because": source, "the paper": right, "do": do.replace("RUN", str(r.run))}


def _cost(cost: Cost) -> str:
    if math.isinf(cost[1]):
        return "all of it: the score means nothing"
    low, high = (f"{value:.1f}".removesuffix(".0") for value in cost)
    return f"{low} BLEU" if low == high else f"up to {high} BLEU" if low == "0" else f"{low} to {high} BLEU"


def _head(r: Record) -> Iterator[str]:
    against = f"compared with the paper's {r.near}" if r.near else "small data, not held against the paper's settings"
    name, steps, expect = r.settings.corpus.name, r.settings.training.steps, r.settings.expect
    yield f"{r.run}: corpus {name}, {r.step:,} of {steps:,} updates; {against}"
    if r.bleu is not None and r.hypothesis and r.reference:
        band = f" (expected: {expect.bleu[0]:g} to {expect.bleu[1]:g})" if expect.bleu else ""
        yield f"test: {r.bleu:.2f} BLEU by sacreBLEU{band}"
        if expect.paper_bleu and r.settings.corpus.tgt in LANGUAGES:
            ours = paper_bleu(r.hypothesis.lines, r.reference.lines, language=r.settings.corpus.tgt).score
            yield f"test: {ours:.2f} as the paper counts, which gives about 0.7 more (the paper: {expect.paper_bleu:g})"


def text(r: Record, found: list[Finding], width: int) -> str:
    """Return the report as plain text, at most `width` columns wide."""

    def wrapped(words: str, first: str = "", indent: int = 0) -> list[str]:
        words = printable(words, 1000)
        return textwrap.wrap(words, width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False)

    costly = [finding for finding in found if finding.cost[1] > HARMLESS]
    small = [f"{f.what} (the paper: {ABOUT[f.id][0]})" for f in found if f not in costly]
    lines = [line for part in _head(r) for line in wrapped(part, indent=2)]
    if costly:
        order = "causes before symptoms, " * (len({finding.id in SYMPTOMS for finding in costly}) > 1)
        many = f"{len(costly)} findings, {order}the most costly first. Each costs what it says when it is alone."
        lines += ["", *wrapped(many if len(costly) > 1 else "1 finding.")]
    for number, finding in enumerate(costly, 1):
        lines += ["", *wrapped(finding.what, f"{number:>2}. ", 4)]
        for label, value in {"costs": _cost(finding.cost), **_about(r, finding)}.items():
            lines += wrapped(value, f"    {label:<11}", 15)
    for heading, items in ((f"Harmless, at most {HARMLESS} BLEU:", small), ("Not checked:", r.unchecked)):
        lines += ["", heading] if items else []
        lines += [line for item in items for line in wrapped(item, "  - ", 4)]
    if not costly:
        low = r.settings.expect.bleu[:1]
        yet = f", though {r.bleu:.2f} is less than expected" if low and r.bleu is not None and r.bleu < low[0] else ""
        lines += ["", *wrapped(f"Nothing was found that is known to cost BLEU{yet}.")]
    return "\n".join(lines)


def doctor(run: Path, data: Path | None, hypothesis: Path | None, reference: Path | None, as_json: bool) -> None:
    """Print on stdout what in a run is known to cost BLEU.

    Args:
        run: such as runs/base.
        data: the prepared corpus; None to look for it.
        hypothesis: translations of the test set; None for the run's own.
        reference: of them; None for the corpus' test set.
        as_json: print one JSON object; a cost of null means that the score means nothing.

    Raises:
        MissingError, DataError: the run cannot be read.
    """
    record = gather(run, data, hypothesis, reference)
    found = examine(record)
    if sys.stdout is None:
        raise OutputError("standard output is closed: there is nowhere to print the findings")
    if as_json:
        rows: list[dict[str, Any]] = []
        for finding in found:
            cost = None if finding.cost == ALL else [round(value, 2) for value in finding.cost]
            names = {"because": "source", "the paper": "paper", "do": "do"}
            about = {names[label]: value for label, value in _about(record, finding).items()}
            rows.append({"id": finding.id, "what": finding.what, "cost": cost, **about})
        head = {"run": str(run), "compared_with": record.near, "updates": record.step, "bleu": record.bleu}
        report = json.dumps({**head, "findings": rows, "unchecked": record.unchecked}, indent=1, ensure_ascii=False)
    else:
        report = text(record, found, max(40, min(shutil.get_terminal_size((100, 24)).columns, 110)))
    sys.stdout.buffer.write(f"{report}\n".encode(errors="backslashreplace"))
    sys.stdout.flush()
