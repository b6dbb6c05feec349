"""Metrics of lines of text: sacreBLEU's BLEU, chrF and TER, the paper's own BLEU, and significance tests."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from sacrebleu import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from nmt_cli.scoring import paper_bleu as paper
from nmt_cli.scoring.comet import Comet
from nmt_cli.scoring.downloads import PIECES, fetch_pieces
from nmt_cli.scoring.intervals import interval
from nmt_cli.system.errors import DataError, UsageError

# The names of metrics as options, and in results.
METRICS = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF2++", "ter": "TER"}
METRICS |= {"paper-bleu": "paper-BLEU", "paper-bleu-quotes": "paper-BLEU-quotes", "comet": "COMET"}
# sacreBLEU's tokenizers for text without spaces between words; its ja-mecab needs another package.
TOKENIZERS = {"zh": "zh", "ja": "char", "th": "char", "my": "char", "km": "char", "lo": "char"}
# ISO 639-1. A code may also have three letters (ISO 639-3), and a script and a region: zh-Hant-TW, pt_BR, es-419.
_CODES = """aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz
ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu
ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd
ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss
st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"""
_LANGUAGE = re.compile(r"([a-z]{2,3})([-_][a-z]{4})?([-_]([a-z]{2}|[0-9]{3}))?", re.IGNORECASE)
# What detokenised text hardly ever holds: a stop cut off, Moses' entities, BPE and SentencePiece marks.
TOKENISED = re.compile(r" [.,](?:\s|$)|&(?:quot|apos|amp|#\d+);|@@ |@-@|▁")
UNSPACED = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")  # Chinese and Japanese
# Published figures, by metric and tokens in the references of newstest2014 (3,003 lines), whatever the file is called.
# Source: the paper's Table 2; results published with fairseq and CTranslate2; NVIDIA's fit of both scales.
COMPARABLE = {
    ("bleu", 62_688): "26.9 (OpenNMT-tf base), 28.6 (Ott et al. 2018, big) and other sacreBLEU of newstest2014 en-de. "
    "The paper's 27.3 and 28.4 are another metric, about 26.6 and 27.7 on this scale",
    ("bleu", 77_306): "41.4 (Ott et al. 2018, big) and other sacreBLEU, not with the paper's 38.1 and 41.8",
    ("paper-bleu", 64_496): "figures against the official reference. The paper's had its quotation marks in ASCII: "
    "compare paper-BLEU-quotes with its 27.3 and 28.4",
    ("paper-bleu-quotes", 64_496): "the paper's 27.3 (base) and 28.4 (big), and 29.3 (Ott et al. 2018). "
    "Not with sacreBLEU",
    ("paper-bleu", 81_149): "the paper's 38.1 (base) and 41.8 (big), whose scorer was never published, not sacreBLEU",
}


@dataclass(frozen=True)
class Score:
    metric: str  # the option's name, such as "chrf"
    name: str  # such as "chrF2"
    score: float  # 0 to 100; TER may exceed 100
    signature: str  # everything that has an influence on the score, as sacreBLEU writes it
    details: dict[str, Any]  # the counts behind the score
    compare_with: str  # the published figures that it may be compared with
    verbose: str = ""  # the details for people to read
    mean: float | None = None  # of bootstrap samples
    ci: float | None = None  # half of their 95 % interval

    def shown(self) -> str:
        """Return the score as people read it: 39.31 ± 0.95."""
        return f"{self.score:.2f}" if self.ci is None else f"{self.score:.2f} ± {self.ci:.2f}"


def is_language(code: str) -> bool:
    match = _LANGUAGE.fullmatch(code)
    return match is not None and (len(match[1]) == 3 or match[1].lower() in _CODES.split())


def tokenizer_of(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language code, such as zh or zh-CN."""
    return TOKENIZERS.get(re.split("[-_]", language.lower())[0], "13a")


def comparable(metric: str, signature: str, reference_length: int, language: str) -> str:
    """Return the published figures that a score may be compared with; the length is in the metric's own tokens."""
    if "case:mixed" in signature and (metric, reference_length) in COMPARABLE:
        return COMPARABLE[metric, reference_length]
    if "tok:char" in signature and language.lower().startswith("ja"):
        return (
            "figures with this signature on the same test set. Most published ones of Japanese are of ja-mecab: "
            "--tokenize ja-mecab"
        )
    if metric.startswith("paper"):
        kind = "tokenised, compound-split" if language == "de" else "Moses-tokenised"
        return f"{kind} BLEU on the same test set. Not with sacreBLEU"
    return "figures with this signature on the same test set"


def score_lines(
    metric: str, hypotheses: list[str], references: Sequence[list[str]], baseline: list[str] | None = None,
    *, language: str = "", tokenize: str = "13a", lowercase: bool = False, intervals: bool = False,
) -> tuple[Score, dict[str, Any] | None]:  # fmt: skip
    """Return the score of raw lines, and the comparison with the baseline's; a DataError says that counts differ."""
    if not hypotheses or any(len(lines) != len(hypotheses) for lines in references):  # sacreBLEU would cut the longer
        counts = ", ".join(f"{len(lines):,}" for lines in references)
        raise DataError(f"cannot score {len(hypotheses):,} hypotheses against {counts} references: give one of each")
    fold_quotes, as_paper = metric.endswith("quotes"), metric.startswith("paper")
    if as_paper:
        texts = (hypotheses, baseline or [], *references)
        hypotheses, baseline, *references = (paper.prepare(text, language, fold_quotes=fold_quotes) for text in texts)
    bleu = partial(BLEU, tokenize=tokenize, lowercase=lowercase, force=True)
    chrf = partial(CHRF, lowercase=lowercase)
    kinds: dict[str, Any] = {"bleu": bleu, "chrf": chrf, "chrf++": partial(chrf, word_order=2), "ter": TER}
    if tokenize in PIECES and metric == "bleu":
        fetch_pieces(tokenize)
    try:
        scorer = kinds.get(metric, paper.multi_bleu)(references=references)
    except RuntimeError:  # of ja-mecab and ko-mecab, which need other packages
        extra = tokenize.partition("-")[0]
        raise UsageError(f'--tokenize {tokenize} needs more packages: pip install "sacrebleu[{extra}]"') from None
    stats = scorer._extract_corpus_statistics(hypotheses, None)
    result = scorer._aggregate_and_compute(stats)
    comparison = _compare(metric, scorer, baseline, hypotheses) if baseline else None
    mean, ci = interval(scorer, stats) if intervals else (None, None)
    signature = str(scorer.get_signature())
    if as_paper:
        samples = f"bs:{scorer.n_bootstrap}|seed:{scorer.seed}|" if intervals else ""
        signature = f"nrefs:{len(references)}|{samples}case:mixed|tok:moses2017-{language}|punct:replace-unicode"
        signature += "|quotes:ascii" if fold_quotes else ""
        signature += "|split:atat" if language == "de" else "|split:none"
        signature += "|smooth:none|arithmetic:multi-bleu"
    details, verbose = {}, ""
    if "bleu" in metric:
        details = {"precisions": result.precisions, "bp": result.bp, "length_ratio": result.ratio}
        details |= {"hyp_len": result.sys_len, "ref_len": result.ref_len}
        counts = f"BP={result.bp:.3f}, ratio={result.ratio:.3f}, hyp_len={result.sys_len}, ref_len={result.ref_len}"
        verbose = f"{result.prec_str} ({counts})"
    compare_with = comparable(metric, signature, details.get("ref_len", 0), language)
    score = Score(metric, METRICS[metric], float(result.score), signature, details, compare_with, verbose, mean, ci)
    return score, comparison


def score_comet(
    scorer: Comet, hypotheses: list[str], baseline: list[str] | None, *, intervals: bool
) -> tuple[Score, dict[str, Any] | None]:
    """Return COMET's score of lines, and the comparison with the baseline's."""
    stats = scorer._extract_corpus_statistics(hypotheses, None)
    value = scorer._aggregate_and_compute(stats).score
    comparison = _compare("comet", scorer, baseline, hypotheses) if baseline else None
    mean, ci = interval(scorer, stats) if intervals else (None, None)
    compare_with = f"COMET of {scorer.model} (see the model's card for its licence) times 100 on the same test set"
    score = Score("comet", METRICS["comet"], value, str(scorer.get_signature()), {}, compare_with, "", mean, ci)
    return score, comparison


def _compare(metric: str, scorer: Any, baseline: list[str], hypotheses: list[str]) -> dict[str, Any]:
    """Test by sacreBLEU's paired bootstrap (bs), with half of the 95 % interval, and approximate randomisation (ar)."""
    row: dict[str, Any] = {"metric": metric, "name": METRICS[metric]}
    systems, test = [("baseline", baseline), ("this", hypotheses)], cast(Any, PairedTest)
    for kind in ("bs", "ar"):
        signatures, results = test(systems, {metric: scorer}, None, kind)()
        ((name, signature),) = signatures.items()
        old, new = results[name]
        p = 1.0 if old.score == new.score else float(new.p_value)  # sacreBLEU has 1 / (samples + 1) for equal systems
        row |= {f"p_{kind}": p, f"signature_{kind}": str(signature)}
        if kind == "bs":
            row |= {"baseline": float(old.score), "score": float(new.score), "difference": float(new.score - old.score)}
            row |= {"baseline_ci": float(old.ci), "score_ci": float(new.ci)}
    worse = row["difference"] > 0 if metric == "ter" else row["difference"] < 0
    return row | {"significantly_worse": worse and row["p_bs"] < 0.05}


def corpus_bleu(
    hypotheses: list[str], *references: list[str], language: str = "", tokenised: bool = False
) -> tuple[float, str]:
    """Return sacreBLEU's BLEU (cased, 0 to 100) of lines of a language, and its signature."""
    tokenize = "none" if tokenised else tokenizer_of(language)
    score, _ = score_lines("bleu", hypotheses, references, tokenize=tokenize)
    return score.score, score.signature
