"""Published scores that may be compared with a score of `nmt score`."""

# The metric and the number of reference tokens identify newstest2014 (3,003 lines) under any file name.
# "The paper" is "Attention Is All You Need". Sources: its Table 2; results published with fairseq and CTranslate2;
# NVIDIA's conversion between the paper's BLEU and sacreBLEU.
_NEWSTEST2014 = {
    ("bleu", 62_688): "26.9 (OpenNMT-tf base), 28.6 (Ott et al. 2018, big) and other sacreBLEU scores of newstest2014 "
    "en-de. The paper's 27.3 and 28.4 are from another metric. In sacreBLEU, they are about 26.6 and 27.7",
    ("bleu", 77_306): "41.4 (Ott et al. 2018, big) and other sacreBLEU scores, not with the paper's 38.1 and 41.8",
    ("paper-bleu", 64_496): "scores against the official reference. The paper's reference had ASCII quotation marks: "
    "compare paper-BLEU-quotes with the paper's 27.3 and 28.4",
    ("paper-bleu-quotes", 64_496): "the paper's 27.3 (base) and 28.4 (big), and 29.3 (Ott et al. 2018), "
    "not with sacreBLEU",
    ("paper-bleu", 81_149): "the paper's 38.1 (base) and 41.8 (big), not with sacreBLEU. "
    "The paper's scorer is unpublished",
}


def comparable(metric: str, signature: str, reference_length: int, language: str) -> str:
    """Describe the published scores that a score may be compared with.

    `reference_length` is the number of reference tokens, as the metric counts them.
    """
    if "case:mixed" in signature and (metric, reference_length) in _NEWSTEST2014:
        return _NEWSTEST2014[metric, reference_length]
    if "tok:char" in signature and language.lower().startswith("ja"):
        return (
            "figures with this signature on the same test set. Most published scores for Japanese need "
            "--tokenize ja-mecab"
        )
    if metric.startswith("paper"):
        kind = "tokenized, compound-split" if language == "de" else "Moses-tokenized"
        return f"{kind} BLEU on the same test set, not with sacreBLEU"
    return "figures with this signature on the same test set"
