import sys
from pathlib import Path

from nmt_cli.corpus.store import open_corpus


def test_the_corpus_of_the_gpu_benchmark_opens(tmp_path: Path) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
    from gpu_train_speed import generate

    corpus = open_corpus(generate(tmp_path / "corpus", 300, 500), content=True)
    assert len(corpus.src) == len(corpus.tgt) == 300
