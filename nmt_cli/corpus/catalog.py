"""Facts about the named corpora: addresses, revisions, sizes, row counts and hashes.

The recipe settings of these corpora, such as languages and vocabulary size, are in `nmt_cli/recipe/named.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """The approximate size of a corpus. None means unknown."""

    download_bytes: int | None
    text_bytes: int | None
    pairs: int | None  # training pairs


TOY_SIZE = Size(0, 2_200_000, 20_000)

MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_FILES = {"train": "train", "dev": "val", "test": "test_2016_flickr"}  # split -> first part of its file names
MULTI30K_SIZE = Size(1_300_000, 4_000_000, 29_000)
MULTI30K_HELD_OUT_ROWS = {"dev": 1014, "test": 1000}
# No hashes are published for French and Czech, so `prepare` only checks how many lines they have.
MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}

WMT14_REPOSITORY = "wmt/wmt14"
WMT14_REVISION = "b199e406369ec1b7634206d3ded5ba45de2fe696"
WMT14_SIZES = {  # configuration -> size, from the data set's card
    "de-en": Size(818_467_512, 1_358_406_800, 4_508_785),
    "fr-en": Size(7_777_527_744, 14_752_522_252, 40_836_715),
}
WMT14_HELD_OUT_ROWS = {"dev": 3000, "test": 3003}
