"""The augmented text of an epoch: a function of seed, epoch and block, with the changes that the recipe asks for."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt_cli.corpus import augmentation, damage, letter_case, tokenizer
from nmt_cli.corpus.augmentation import Augmentation, augment_block
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.recipe import schema

LINES = 400
Text = list[tuple[str, str]]


def corpus_of(directory: Path, **settings: Any) -> Corpus:
    """Return the prepared corpus of the files en and de in a directory."""
    files = {"train_src": [str(directory / "en")], "train_tgt": [str(directory / "de")]}
    cleaning = schema.Cleaning(check_script=False, max_ratio=None)
    corpus = schema.Corpus(name="own", cleaning=cleaning, **files, **settings)
    return open_corpus(prepare(corpus, directory / "data", PrepareOptions(workers=1)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with final stops, Chinese, a character that only bytes can spell, and one long line."""
    directory = tmp_path_factory.mktemp("augmentation")
    draw = np.random.default_rng(3)
    words = ["walking", "house", "yellow", "people", "street", "dog", "it", "a", "näher", "über"]
    src = [" ".join(draw.choice(words, draw.integers(3, 12))) + f" {i}." for i in range(LINES)]
    tgt = [" ".join(line.split()[::-1]).replace(".", "") + " 好。" for line in src]
    src[5] += " 🦄."
    src[-1] = " ".join(map(str, range(70, 150)))
    (directory / "en").write_text("".join(f"{line}\n" for line in src))
    (directory / "de").write_text("".join(f"{line}\n" for line in tgt))
    return corpus_of(directory, tokenizer=schema.Tokenizer(vocabulary_size=400)).directory


@pytest.fixture
def draw(data: Path) -> Callable[..., Text]:
    """A function that returns the text of an epoch. A pair that was joined to another line has two empty sides."""

    def text(epoch: int = 0, seed: int = 1, **shares: float) -> Text:
        corpus, model = open_corpus(data), Tokenizer(data / "tokenizer.model")
        how = Augmentation(data, corpus.identity, schema.Augment(**shares), ("en", "de"), seed)
        sides = []
        for ids, lengths in augment_block(how, (epoch, 0)):
            assert ids.dtype.kind in "iu"
            lines = np.split(ids, np.cumsum(lengths)[:-1])
            assert all(line[-1] == EOS and EOS not in line[:-1] for line in lines if len(line))
            sides.append(model.decode([line[:-1].tolist() for line in lines]))
        return list(zip(*sides, strict=True))

    return text


def test_without_shares_the_text_is_that_of_the_corpus(data: Path, draw: Callable[..., Text]) -> None:
    corpus = open_corpus(data)
    how = Augmentation(data, corpus.identity, schema.Augment(), ("en", "de"), 1)
    for side, (ids, lengths) in zip((corpus.src, corpus.tgt), augment_block(how, (3, 0)), strict=True):
        assert np.array_equal(ids, side.ids)
        assert np.array_equal(lengths, side.lengths())
    assert "🦄" in draw()[5][0]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("no_stop", lambda text, _: damage.without_stop(text)),
        ("upper", letter_case.upper),
        ("title", letter_case.title),
    ],
)
def test_both_sides_change_in_their_share_of_pairs(
    draw: Callable[..., Text], kind: str, change: Callable[[str, str], str]
) -> None:
    plain, some, all_ = draw(), draw(**{kind: 0.3}), draw(**{kind: 1})
    expected = [(change(src, "en"), change(tgt, "de")) for src, tgt in plain]
    assert all_[:-1] == expected[:-1]
    assert all(pair in (old, new) for pair, old, new in zip(some, plain, expected, strict=True))
    assert 0.2 * LINES < sum(pair != old for pair, old in zip(some, plain, strict=True)) < 0.4 * LINES


def test_typos_change_the_source_alone(draw: Callable[..., Text]) -> None:
    plain, wrong = draw(), draw(typos=1)
    assert [tgt for _, tgt in wrong] == [tgt for _, tgt in plain]
    assert sum(new != old for (new, _), (old, _) in zip(wrong, plain, strict=True)) > 0.9 * LINES


def test_noise_is_copied(draw: Callable[..., Text]) -> None:
    changed = [pair for pair in zip(draw(noise=1), draw(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == LINES - 1
    for (src, tgt), (old_src, old_tgt) in changed:
        assert src.replace(old_src, "") == tgt.replace(old_tgt, "")


def test_joined_lines_hold_every_pair_once_and_in_order(draw: Callable[..., Text]) -> None:
    plain, joined = draw(), draw(joined=0.5)
    lines = [pair for pair in joined if any(pair)]
    assert 0.3 * LINES < len(lines) < 0.9 * LINES
    assert all(bool(src) == bool(tgt) for src, tgt in joined)
    for i, side in enumerate(("src", "tgt")):
        everything = "".join(line[i] for line in lines).replace(" ", "")
        assert everything == "".join(line[i] for line in plain).replace(" ", ""), side
    assert augmentation.joined(["你好。", "再见。"]) == "你好。再见。"
    assert augmentation.joined(["One.", "你好。"]) == "One. 你好。"


def test_split_subwords_spell_the_same_text(data: Path, draw: Callable[..., Text]) -> None:
    corpus, model = open_corpus(data), Tokenizer(data / "tokenizer.model")
    assert draw(bpe_dropout=0.3) == draw()
    how = Augmentation(data, corpus.identity, schema.Augment(bpe_dropout=0.3), ("en", "de"), 1)
    tokens = sum(len(ids) for ids, _ in augment_block(how, (0, 0)))
    assert 1.2 < tokens / (len(corpus.src.ids) + len(corpus.tgt.ids)) < 2.5
    table = augmentation.split_table(model)
    pieces = model.tokens(list(range(model.vocabulary_size)))
    for token, (left, right) in zip(pieces, table, strict=True):
        assert left < 0 or pieces[left] + pieces[right] == token
    assert (table[:3] < 0).all()
    assert not any(left >= 0 for token, (left, _) in zip(pieces, table, strict=True) if token.startswith("<0x"))


def test_no_line_exceeds_the_longest_of_the_corpus(data: Path) -> None:
    corpus = open_corpus(data)
    longest = max(side.lengths().max() for side in (corpus.src, corpus.tgt))
    shares = dict.fromkeys(schema.Augment.model_fields, 0.5)
    how = Augmentation(data, corpus.identity, schema.Augment(**shares), ("en", "de"), 1)
    for ids, lengths in augment_block(how, (0, 0)):
        assert longest - 3 <= max(lengths) <= longest
        assert len(ids) == sum(lengths)


def test_a_language_token_stays_one_token_at_the_beginning(tmp_path: Path) -> None:
    text = [f">>bt<< the brown dog number {i} runs." for i in range(60)]
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.train(text, 300, tags=[">>bt<<"]))
    (tmp_path / "en").write_text("".join(f"{line}\n" for line in [*text, f">>bt<< {'brown dog ' * 12}"]))
    (tmp_path / "de").write_text("".join(f"{line[7:]}\n" for line in [*text, f">>bt<< {'brown dog ' * 12}"]))
    opened = corpus_of(tmp_path, tokenizer=schema.Tokenizer(file=str(tmp_path / "tokenizer.model")))
    shares = dict.fromkeys(schema.Augment.model_fields, 0.5)
    how = Augmentation(opened.directory, opened.identity, schema.Augment(**shares), ("en", "de"), 1)
    (ids, lengths), _ = augment_block(how, (0, 0))
    first = ids[(np.cumsum(lengths) - lengths)[lengths > 0]]
    assert len(first) < len(text)
    assert len({*first.tolist()}) == 1
    assert (ids == first[0]).sum() == len(first), "joined lines have it once"


def test_a_language_and_a_tag_stay_at_the_beginning_and_select_the_case(tmp_path: Path) -> None:
    head = ">>tr<< >>tm<< "
    src, tgt = [f"the brown dog {i} runs." for i in range(60)], [f"iyi kahverengi {i} gider." for i in range(60)]
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.train([*src, *tgt], 300, tags=[">>de<<", ">>tr<<", ">>tm<<"]))
    longest = " ".join([*src, *tgt][55:65])
    (tmp_path / "en").write_text("".join(f"{head}{line}\n" for line in [*src, longest]))
    (tmp_path / "de").write_text("".join(f"{line}\n" for line in [*tgt, longest]))
    opened = corpus_of(tmp_path, tokenizer=schema.Tokenizer(file=str(tmp_path / "tokenizer.model")))
    how = Augmentation(
        opened.directory, opened.identity, schema.Augment(upper=1, joined=1), ("en", "de"), 1, ("de", "tr")
    )
    model = Tokenizer(tmp_path / "tokenizer.model")
    texts = [
        model.decode([line[:-1].tolist() for line in np.split(ids, np.cumsum(lengths)[:-1]) if len(line)])
        for ids, lengths in augment_block(how, (0, 0))
    ]
    changed = " ".join(line.removeprefix(head) for line in texts[0])
    assert changed.startswith(" ".join(src[:57]).upper())
    assert ">>" not in changed
    assert " ".join(texts[1]).startswith(" ".join(tgt[:57]).replace("i", "\u0130").upper())


def test_a_separate_target_tokenizer_encodes_the_target(tmp_path: Path) -> None:
    src = [f"the brown dog number {i} runs." for i in range(60)]
    tgt = [f"der braune Hund mit Nummer {i} läuft." for i in range(60)]
    for name, lines, size in (("tokenizer.model", src, 290), ("tokenizer.target.model", tgt, 310)):
        (tmp_path / name).write_bytes(tokenizer.train(lines, size))
    (tmp_path / "en").write_text("".join(f"{line}\n" for line in [*src, " ".join(src[:3])]))
    (tmp_path / "de").write_text("".join(f"{line}\n" for line in [*tgt, " ".join(tgt[:3])]))
    opened = corpus_of(tmp_path, tokenizer=schema.Tokenizer(file=str(tmp_path / "tokenizer.model")))
    how = Augmentation(
        opened.directory, opened.identity, schema.Augment(upper=1, bpe_dropout=0.2), ("en", "de"), 1
    )  # fmt: skip
    model = Tokenizer(tmp_path / "tokenizer.model")
    for side, lines, (ids, lengths) in zip(
        (model, model.target), (src, tgt), augment_block(how, (0, 0)), strict=True
    ):  # fmt: skip
        assert ids.max() < side.vocabulary_size
        first = [line[:-1].tolist() for line in np.split(ids, np.cumsum(lengths)[:-1])[:20]]
        assert side.decode(first) == [line.upper() for line in lines[:20]]


def test_a_range_of_pairs_is_split_at_the_ends_of_parts() -> None:
    upper, joined = schema.Augment(upper=1), schema.Augment(joined=1)
    parts = (10, upper), (20, joined)
    how = Augmentation(Path("x"), "x", schema.Augment(), ("en", "de"), 1, parts=parts)
    assert list(how.runs(0, 5)) == [(0, 0, 5, upper)]
    assert list(how.runs(5, 15)) == [(0, 5, 10, upper), (1, 10, 15, joined)]
    assert list(how.runs(10, 20)) == [(1, 10, 20, joined)]


def test_text_depends_on_seed_and_epoch_and_on_nothing_else(data: Path, draw: Callable[..., Text]) -> None:
    shares = dict.fromkeys(schema.Augment.model_fields, 0.2)
    text = draw(**shares)
    assert text == draw(**shares)
    assert len({str(text), str(draw(1, **shares)), str(draw(seed=2, **shares))}) == 3
    program = f"""if True:
        import hashlib
        from pathlib import Path
        from nmt_cli.corpus.augmentation import Augmentation, augment_block
        from nmt_cli.recipe import schema
        shares = schema.Augment(**{shares})
        how = Augmentation(Path({str(data)!r}), {open_corpus(data).identity!r}, shares, ("en", "de"), 1)
        print(hashlib.sha256(b"".join(a.tobytes() for side in augment_block(how, (0, 0)) for a in side)).hexdigest())"""
    env = {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    how = Augmentation(data, open_corpus(data).identity, schema.Augment(**shares), ("en", "de"), 1)
    arrays = b"".join(a.tobytes() for side in augment_block(how, (0, 0)) for a in side)
    assert done.stdout.strip() == hashlib.sha256(arrays).hexdigest()
