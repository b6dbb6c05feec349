"""Metrics of translations: sacreBLEU's BLEU, chrF and TER, the paper's BLEU, and COMET."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sacrebleu import BLEU, CHRF, TER

from nmt_cli.scoring import paper_bleu as paper
from nmt_cli.scoring.comet import Comet
from nmt_cli.scoring.downloads import SENTENCEPIECE_TOKENIZERS, fetch_tokenizer
from nmt_cli.scoring.languages import tokenizer_of
from nmt_cli.scoring.published import comparable
from nmt_cli.scoring.significance import compare, interval
from nmt_cli.system.errors import DataError, UsageError

# The name in results of each value of --metric.
METRICS = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF2++", "ter": "TER"}
METRICS |= {"paper-bleu": "paper-BLEU", "paper-bleu-quotes": "paper-BLEU-quotes", "comet": "COMET"}


@dataclass(frozen=True)
class Score:
    """A score. Its fields have the same names in `nmt score --format json`."""

    metric: str  # the option's name, such as "chrf"
    name: str  # such as "chrF2"
    score: float  # 0 to 100; TER may exceed 100
    signature: str  # everything that influences the score, in sacreBLEU's format
    details: dict[str, Any]  # the counts behind the score
    compare_with: str  # published scores that may be compared with this score
    verbose: str = ""  # the details as text
    mean: float | None = None  # mean of the bootstrap samples' scores
    ci: float | None = None  # half the width of the 95% interval of the bootstrap samples' scores

    def shown(self) -> str:
        """Return the score as text, such as 39.31 ± 0.95."""
        return f"{self.score:.2f}" if self.ci is None else f"{self.score:.2f} ± {self.ci:.2f}"


def score_lines(
    metric: str, hypotheses: list[str], references: Sequence[list[str]], baseline: list[str] | None = None,
    *, language: str = "", tokenize: str = "13a", lowercase: bool = False, intervals: bool = False,
) -> tuple[Score, dict[str, Any] | None]:  # fmt: skip
    """Score the hypotheses, and compare them with the baseline. Without a baseline, the comparison is None.

    `references` has one list of lines per reference. Raise DataError if there are no lines, or if the numbers of lines
    differ. Raise UsageError if `tokenize` needs a package that is not installed, or if the paper's BLEU
    does not support `language`.
    """
    # If the numbers of lines differed, sacreBLEU would silently ignore the last lines of the longer side.
    if not hypotheses or any(len(lines) != len(hypotheses) for lines in references):
        counts = ", ".join(f"{len(lines):,}" for lines in references)
        raise DataError(
            f"cannot score {len(hypotheses):,} hypotheses against {counts} references: "
            "the counts must be equal and not 0"
        )
    fold_quotes = metric.endswith("quotes")
    as_paper = metric.startswith("paper")
    if as_paper:
        texts = (hypotheses, baseline or [], *references)
        hypotheses, baseline, *references = (paper.prepare(text, language, fold_quotes=fold_quotes) for text in texts)
    bleu = partial(BLEU, tokenize=tokenize, lowercase=lowercase, force=True)
    chrf = partial(CHRF, lowercase=lowercase)
    kinds: dict[str, Any] = {"bleu": bleu, "chrf": chrf, "chrf++": partial(chrf, word_order=2), "ter": TER}
    if tokenize in SENTENCEPIECE_TOKENIZERS and metric == "bleu":
        fetch_tokenizer(tokenize)
    try:
        scorer = kinds.get(metric, paper.multi_bleu)(references=references)
    except RuntimeError:  # ja-mecab and ko-mecab need other packages
        extra = tokenize.partition("-")[0]
        raise UsageError(f'--tokenize {tokenize} needs more packages: pip install "sacrebleu[{extra}]"') from None
    stats = scorer._extract_corpus_statistics(hypotheses, None)
    result = scorer._aggregate_and_compute(stats)
    comparison = compare(metric, METRICS[metric], scorer, baseline, hypotheses) if baseline else None
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
    """Return COMET's score of the hypotheses, and their comparison with the baseline, as `score_lines` does."""
    stats = scorer._extract_corpus_statistics(hypotheses, None)
    value = scorer._aggregate_and_compute(stats).score
    comparison = compare("comet", METRICS["comet"], scorer, baseline, hypotheses) if baseline else None
    mean, ci = interval(scorer, stats) if intervals else (None, None)
    compare_with = f"COMET of {scorer.model}, times 100, on the same test set (for its license, see the model's card)"
    score = Score("comet", METRICS["comet"], value, str(scorer.get_signature()), {}, compare_with, "", mean, ci)
    return score, comparison


def corpus_bleu(
    hypotheses: list[str], *references: list[str], language: str = "", tokenized: bool = False
) -> tuple[float, str]:
    """Return sacreBLEU's cased BLEU (0 to 100) and the signature. If `tokenized` is true, split only at spaces."""
    tokenize = "none" if tokenized else tokenizer_of(language)
    score, _ = score_lines("bleu", hypotheses, references, tokenize=tokenize)
    return score.score, score.signature
