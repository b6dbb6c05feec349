"""Read the members of a zip file, within limits, and write a copy of the file with some members replaced.

This module writes the zip format itself, because the standard library cannot copy a compressed member without
decompressing it. Nothing is unpacked to disk.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping

from nmt_cli.system.errors import DataError

_MOST_MEMBERS = 20_000
_ENTRY = b"PK\1\2"  # the signature of an entry in the central directory
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_ZIP64 = 1  # the type of the extra field with 64-bit sizes
# Flags of a member
_HAS_DESCRIPTOR = 8  # the sizes of the member follow its data
_IS_ENCRYPTED = 1
_IS_UTF8 = 0x800
_OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")  # the first bytes of encrypted Office files and of Office 97 files


class Archive:
    def __init__(self, data: bytes, max_unpacked: int) -> None:
        """`max_unpacked` is the total number of bytes that all calls to `read` may return.

        Raise DataError if the file is not a zip file or is damaged, or if it has too many members, two with the same
        name, or one whose path leads outside the archive.
        """
        self._data = data
        self._remaining = max_unpacked
        self._limit = max_unpacked
        if data.startswith(_OLD_OFFICE):
            advice = "Save it in a current format, without a password"
            raise DataError(f"the file has a password, or is in the Office 97 format. {advice}")
        if data.count(_ENTRY) > _MOST_MEMBERS:
            raise DataError(f"the file has more than {_MOST_MEMBERS:,} members")
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as opened:
                self._members = {member.filename: member for member in opened.infolist()}
                self._comment = opened.comment
                count = len(opened.infolist())
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error, OverflowError):
            raise DataError("the file is not a zip file, or is damaged") from None
        if count != len(self._members):
            raise DataError("the file has two members with the same name")
        if sum(member.compress_size for member in self._members.values()) > len(data):
            raise DataError("the file is damaged: its members overlap")
        for name in self._members:
            if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name[:2]:
                raise DataError(f"the file has a member whose path leads outside the archive: {name[:60]!r}")

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def read(self, name: str) -> bytes:
        """Return the content of a member.

        Raise DataError if it is missing, damaged, encrypted, too large, or compressed with another method than deflate.
        """
        if name not in self._members:
            raise DataError(f"the file is damaged: it has no {name}")
        member = self._members[name]
        packed = self._packed(member)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(f"{name[:60]!r} is compressed in a way that nmt cannot read")
        try:
            unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
            stored = member.compress_type == zipfile.ZIP_STORED
            content = packed if stored else unpacker.decompress(packed, self._remaining + 1)
        except zlib.error:
            raise DataError(f"the file is damaged: {name[:60]!r} cannot be unpacked") from None
        self._remaining -= len(content)
        if self._remaining < 0:
            raise DataError(f"the file unpacks to more than {self._limit:,} bytes of text. Split it")
        if zlib.crc32(content) != member.CRC:
            raise DataError(f"the file is damaged: {name[:60]!r} does not match its checksum")
        return content

    def replaced(self, contents: Mapping[str, bytes]) -> bytes:
        """Return the file with the members in `contents` replaced. Copy all others, and keep the order."""
        if not contents:
            return self._data
        out, directory = io.BytesIO(), list[bytes]()
        for name, member in self._members.items():
            offset = out.tell()
            packed, crc, size = self._packed(member), member.CRC, member.file_size
            if name in contents:
                packed, crc, size = _compressed(contents[name], member), zlib.crc32(contents[name]), len(contents[name])
            flags = member.flag_bits & ~_HAS_DESCRIPTOR
            encoded_name = member.orig_filename.encode("utf-8" if flags & _IS_UTF8 else "cp437")
            year, month, day, hour, minute, second = member.date_time
            times = hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
            common = (flags, member.compress_type, *times, crc, len(packed), size, len(encoded_name))
            extra = _without_zip64(self._local_extra(member))
            out.write(
                _LOCAL.pack(b"PK\3\4", member.extract_version, *common, len(extra)) + encoded_name + extra + packed
            )
            version, extra = member.create_version | member.create_system << 8, _without_zip64(member.extra)
            rest = len(extra), len(member.comment), 0, member.internal_attr, member.external_attr, offset
            entry = _CENTRAL.pack(_ENTRY, version, member.extract_version, *common, *rest)
            directory.append(entry + encoded_name + extra + member.comment)
        begin, entries = out.tell(), b"".join(directory)
        count = len(directory)
        end = _END.pack(b"PK\5\6", 0, 0, count, count, len(entries), begin, len(self._comment))
        return out.getvalue() + entries + end + self._comment

    def _packed(self, member: zipfile.ZipInfo) -> bytes:
        """Return the bytes of a member as they are in the file, usually compressed."""
        begin = self._data_offset(member)
        packed = self._data[begin : begin + member.compress_size]
        if member.flag_bits & _IS_ENCRYPTED:
            raise DataError("the file has a password. Save it without one")
        if len(packed) != member.compress_size:
            raise DataError(f"the file is damaged: {member.filename[:60]!r} ends early")
        return packed

    def _data_offset(self, member: zipfile.ZipInfo) -> int:
        header = self._data[member.header_offset : member.header_offset + _LOCAL.size]
        if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
            raise DataError(f"the file is damaged: {member.filename[:60]!r} has no header")
        fields = _LOCAL.unpack(header)
        return int(member.header_offset + _LOCAL.size + fields[-2] + fields[-1])

    def _local_extra(self, member: zipfile.ZipInfo) -> bytes:
        name_size, extra_size = _LOCAL.unpack_from(self._data, member.header_offset)[-2:]
        begin = member.header_offset + _LOCAL.size + name_size
        return self._data[begin : begin + extra_size]


def _compressed(content: bytes, member: zipfile.ZipInfo) -> bytes:
    """Compress the content, unless the member is stored uncompressed."""
    if member.compress_type == zipfile.ZIP_STORED:
        return content
    packer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


def _without_zip64(extra: bytes) -> bytes:
    """Remove 64-bit sizes from the extra fields of a member. No member is large enough to need them."""
    kept, offset = b"", 0
    while offset + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, offset)
        if kind != _ZIP64:
            kept += extra[offset : offset + 4 + size]
        offset += 4 + size
    return kept + extra[offset:]
