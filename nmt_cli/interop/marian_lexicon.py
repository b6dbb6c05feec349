"""Read Marian's binary shortlists (lex.50.50.ende.s2t.bin), which are part of Firefox's models.

A shortlist contains the frequent target tokens, which may occur in every translation. For each source token, it lists
other target tokens that may translate this source token.

Layout, little-endian (marian-dev, src/data/shortlist.cpp):
- six u64: magic number, checksum, number of frequent tokens (which have the lowest ids), length of the longest list,
  number of offsets, number of entries
- the offsets, as u64: the index of the first entry of each source token's list, and the end of the last list
- the entries of all lists, as u32

In Firefox's files, up to three offsets may be missing at the end. A source token has a list only if the file contains
the offsets of both ends of the list.
"""

import struct
from pathlib import Path

import numpy as np

from nmt_cli.interop.formats import read_unpacked
from nmt_cli.interop.vocabulary import IdMaps
from nmt_cli.system.errors import DataError
from nmt_cli.translation.shortlist import Shortlist

MAGIC = 0xF11A48D5013417F5
HEADER = struct.Struct("<6Q")


def read_lexicon(file: Path, id_maps: IdMaps) -> Shortlist:
    """Return a shortlist with our ids. `id_maps` lists Marian's ids of our source and target tokens.

    As in Marian, if source and target share a vocabulary, the list of each token includes the token itself. Raises
    DataError if sizes, offsets or ids are invalid. Two values are not checked: the length of the longest list, and the
    checksum, which is a hash of Marian's own design.
    """
    data = read_unpacked(file)
    header = HEADER.unpack(data[: HEADER.size]) if len(data) >= HEADER.size else (0,) * 6
    magic, _, frequent, _, offset_count, entry_count = header
    if magic != MAGIC or HEADER.size + 8 * offset_count + 4 * entry_count != len(data) or offset_count < 1:
        raise DataError(f"{file} is damaged or not a Marian shortlist")
    offsets = np.frombuffer(data, "<u8", offset_count, HEADER.size)
    entries = np.frombuffer(data, "<u4", entry_count, HEADER.size + 8 * offset_count)
    our_ids = {theirs: ours for ours, theirs in enumerate(id_maps[1]) if ours}  # without PAD, which Marian lacks
    rising = bool((offsets[1:] >= offsets[:-1]).all()) and offsets[-1] <= entry_count
    known = entry_count == 0 or (int(entries.max()) < len(our_ids))
    if not (rising and known and frequent <= len(our_ids) and offset_count <= len(id_maps[0])):
        raise DataError(f"{file} does not fit the vocabularies beside it")
    ends, targets = list[int](), list[int]()
    for ours, theirs in enumerate(id_maps[0]):
        if ours and theirs + 1 < offset_count:
            targets += [our_ids[int(i)] for i in entries[offsets[theirs] : offsets[theirs + 1]]]
        if ours and id_maps[0] == id_maps[1]:
            targets.append(ours)
        ends.append(len(targets))
    return Shortlist(sorted(our_ids[i] for i in range(frequent)), ends, targets)
