"""Damage text: remove final stops, and add typos and noise. The module letter_case changes letter case.

The same text and the same state of the random generator always give the same result.
"""

import random
import string

STOPS = ".。．｡।։።"
TYPOS = "swap", "drop", "double", "neighbor"
TYPOS_PER_WORD = 0.1
KEYBOARD = "qwertyuiop", "asdfghjkl", "zxcvbnm"
NEIGHBORS = {key: row[max(0, i - 1) : i] + row[i + 1 : i + 2] for row in KEYBOARD for i, key in enumerate(row)}
EMOJI = "😀😂😊😍😭😎🤔👍👎👏🙏💪🔥✨🎉💯🚀✅❌❤⭐☀⚽🎵🏠🍕☕📷💡🐶"
DOMAINS = "com", "org", "net", "de", "fr", "io"


def ends_with_stop(text: str) -> bool:
    return text.rstrip()[-1:] in tuple(STOPS)


def without_stop(text: str) -> str:
    """Return text without its final stops, such as "...". Question and exclamation marks are kept.

    Text that consists only of stops is returned unchanged.
    """
    return text.rstrip().rstrip(STOPS).rstrip() or text


def with_typos(text: str, draw: random.Random, least: int = 0) -> str:
    """Return text with typos in a tenth of its words on average, and in at least `least` words if possible.

    Words of fewer than three letters get no typos and do not count.
    """
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if sum(map(str.isalpha, word)) >= 3]
    wrong = [i for i in long if draw.random() < TYPOS_PER_WORD]
    if len(wrong) < least:
        wrong = draw.sample(long, min(least, len(long)))
    for i in wrong:
        words[i] = typo(words[i], draw)
    return " ".join(words)


def typo(word: str, draw: random.Random) -> str:
    """Return a word with a typo: two letters swapped, or one letter dropped, doubled or replaced by a neighboring key.

    If the random kind is impossible, such as swapping equal letters, a letter is dropped instead. A word without two
    adjacent letters is returned unchanged.
    """
    candidates = [i for i in range(len(word) - 1) if word[i].isalpha() and word[i + 1].isalpha()]
    if not candidates:
        return word
    i = draw.choice(candidates)
    kind = draw.choice(TYPOS)
    letter = word[i]
    following = word[i + 1]
    if kind == "swap" and letter != following:
        return word[:i] + following + letter + word[i + 2 :]
    if kind == "double":
        return word[:i] + letter + word[i:]
    if kind == "neighbor" and letter.lower() in NEIGHBORS:
        wrong = draw.choice(NEIGHBORS[letter.lower()])
        return word[:i] + (wrong.upper() if letter.isupper() else wrong) + word[i + 1 :]
    return word[:i] + word[i + 1 :]


def noise(draw: random.Random) -> str:
    """Return a random emoji, number, time of day or URL, all of which are the same in every language."""
    kind = draw.randrange(3)
    if kind == 0:
        return draw.choice(EMOJI)
    if kind == 1:
        forms = f"{draw.randrange(10_000)}", f"{draw.randrange(1000)}.{draw.randrange(100):02}"
        return draw.choice([*forms, f"{draw.randrange(24)}:{draw.randrange(60):02}"])
    names = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(4, 10))) for _ in range(2)]
    return f"https://www.{names[0]}.{draw.choice(DOMAINS)}/{names[1]}"


def with_noise(src: str, tgt: str, draw: random.Random) -> tuple[str, str]:
    """Add the same noise to both sides of a pair, at the beginning or at the end."""
    added = noise(draw)
    if draw.random() < 0.5:
        return f"{added} {src}", f"{added} {tgt}"
    return f"{src} {added}", f"{tgt} {added}"
