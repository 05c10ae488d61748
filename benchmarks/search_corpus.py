"""A million messages as people write them: words by Zipf's law, in English, German, Chinese and Japanese.

English words are those of Python's own documentation, with names that occur rarely; the others are made of the
syllables and characters of their language, so that parts of words occur in several.
"""

from __future__ import annotations

import random
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pydoc_data.topics import topics

PHRASE = "the gate closes"
"""Said in one message of 1,000."""

NEEDLE = "quokkavale"
"""A word that is said in one message of 100,000."""

COMMON_CHINESE, RARE_CHINESE, JAPANESE = "会议", "猞猁", "データベース"
"""Said in 20, in one, and in 5 Chinese or Japanese messages of 1,000."""

_GERMAN = re.findall(
    r"\w+",
    """der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat
    dass sie nach wird bei einer um am sind noch wie einem über einen so zum haben nur oder aber vor zur bis mehr
    durch man kann gegen vom können schon wenn ihre dann unter wir soll ich zwei wieder keine immer sagte Besprechung
    Rechnung Straße Übergabe Schlüssel Datenbank Verfügbarkeit""",
)
_PARTICLES = re.findall(r"\w+", "は が を に の で と も です ます した して から まで")
_SYLLABLES = [
    begin + middle + end
    for begin in re.findall(r"\w+", "b d f g h k l m n p r s t v w z br st tr sch")
    for middle in ("a", "e", "i", "o", "u", "ei", "au", "ie")
    for end in ("", "n", "r", "s", "l", "t")
]


def texts(seed: int = 1) -> Iterator[str]:
    """Messages without end; the same ones for the same seed."""
    rnd = random.Random(seed)
    english = _zipf(_english_words() + _made(rnd, 30_000, _SYLLABLES), rnd)
    german = _zipf(_GERMAN + _made(rnd, 20_000, _SYLLABLES), rnd)
    han = _zipf([chr(code) for code in rnd.sample(range(0x4E00, 0x4E00 + 6_000), 3_000)], rnd)
    kana = [chr(code) for code in range(0x30A2, 0x30F3)]
    chinese = _zipf(["".join(han() for _ in range(2 + n % 5 // 4)) for n in range(10_000)], rnd)
    japanese = _zipf(_pairs(han, 4_000) + _made(rnd, 2_000, kana), rnd)
    while True:
        length = int(rnd.lognormvariate(3.4, 0.9)) + 1
        language = rnd.random()
        if language < 0.75:
            word = english if language < 0.55 else german
            text = " ".join(word() for _ in range(length))
        elif language < 0.88:
            words = [chinese() + ("\uff0c" if rnd.random() < 0.1 else "") for _ in range(length)]
            words += [COMMON_CHINESE] * (rnd.random() < 0.02) + [RARE_CHINESE] * (rnd.random() < 0.001)
            text = "".join(words)
        else:
            words = [japanese() + rnd.choice(_PARTICLES) for _ in range(length // 2 + 1)]
            text = "".join([*words, JAPANESE] if rnd.random() < 0.005 else words)
        yield _with_rare(text, rnd)


def _with_rare(text: str, rnd: random.Random) -> str:
    chance = rnd.random()
    if chance < 1e-5:
        text += f" {NEEDLE}"
    elif chance < 1e-3:
        text = f"{PHRASE} {text}"
    elif chance < 0.2:
        text += f" https://example.org/{rnd.getrandbits(40):x} #{rnd.randrange(100_000)}"
    return text


def _english_words() -> list[str]:
    counted = Counter(word.lower() for text in topics.values() for word in re.findall(r"[A-Za-z][a-z']{0,20}", text))
    return [word for word, _ in counted.most_common()]


def _made(rnd: random.Random, count: int, parts: Sequence[str]) -> list[str]:
    return ["".join(rnd.choice(parts) for _ in range(rnd.randint(2, 4))) for _ in range(count)]


def _pairs(one: Callable[[], str], count: int) -> list[str]:
    return [one() + one() for _ in range(count)]


def _zipf(words: Sequence[str], rnd: random.Random) -> Callable[[], str]:
    """Something that gives one of the words each time, those in front most often."""
    sums = list(accumulate(1 / (rank + 2.7) for rank in range(len(words))))
    return lambda: words[bisect(sums, rnd.random() * sums[-1])]
