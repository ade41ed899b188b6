"""The B-tree of an LMDB file, read from its pages (LMDB 0.9, data format 1; docs/format.md 4.3 and 4.5).

liblmdb does not expose the offset of a value, trusts every page, and refuses to open a file twice in one process. This
module returns offsets, checks every number before it follows it, and never writes.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from iofast.containers.file_bytes import FileBytes
from iofast.errors import ContainerError

MAGIC = 0xBEEFC0DE
VERSION = 1
PAGE_HEADER = 16
MAX_DEPTH = 32  # the size of LMDB's cursor stack
META_END = 168  # bytes of a meta page that are read

_PAGE = struct.Struct("<QHHHH")  # pgno, pad, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # low and high half of size or child, flags, key size
_META = struct.Struct("<IIQQ")  # magic, version, address, map size
_TREE = struct.Struct("<IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_TAIL = struct.Struct("<QQ")  # last page, transaction id
_U64 = struct.Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = 0x6F  # all flags for the kind of a page; 0x10 marks a dirty page and may remain
_BIG = 1
_NOTHING = (1 << 64) - 1  # root of an empty tree


class Meta(NamedTuple):
    """The newest meta page."""

    page_size: int
    txnid: int
    last_page: int
    root: int
    depth: int
    entries: int
    flags: int  # of the unnamed database; 0 = plain keys and values

    @property
    def file_size(self) -> int:
        """The least size of a file that contains every page of the tree."""
        return (self.last_page + 1) * self.page_size


class TreePage(NamedTuple):
    """A checked branch or leaf page: its bytes, its offset `at` in the file, and those of its nodes by their keys."""

    data: bytes
    at: int
    kind: int
    nodes: tuple[int, ...]


def is_lmdb(head: bytes) -> bool:
    """Whether a file that begins with these bytes (24 or more) is an LMDB data file."""
    return len(head) >= 24 and _META.unpack_from(head[:40].ljust(40, b"\0"), PAGE_HEADER)[0] == MAGIC


def read_meta(data: FileBytes | bytes, where: str) -> Meta:
    """The newest meta page of an LMDB file. Raises `ContainerError`, naming `where`, if either is invalid."""
    return read_metas(data, where)[0]


def read_metas(data: FileBytes | bytes, where: str) -> tuple[Meta, Meta]:
    """Both meta pages, the newest first. Raises like `read_meta`."""
    size = len(data)
    try:
        if size < 2 * META_END:
            raise ContainerError(f"the file has {size} bytes, too few for an LMDB file")
        first = _read_meta_page(data[:META_END], 0)
        if size < first.page_size + META_END:
            raise ContainerError(f"the file has {size} bytes, too few for the meta pages of an LMDB file")
        second = _read_meta_page(data[first.page_size : first.page_size + META_END], first.page_size)
        if first.page_size != second.page_size:
            raise ContainerError(f"its meta pages have page sizes {first.page_size} and {second.page_size}")
    except ContainerError as error:
        raise ContainerError(f"{where}: {error}") from None
    return (second, first) if second.txnid > first.txnid else (first, second)


def _read_meta_page(data: bytes, at: int) -> Meta:
    """The meta page at offset `at`, from its bytes."""
    flags = _PAGE.unpack_from(data)[2]
    magic, version, _, _ = _META.unpack_from(data, PAGE_HEADER)
    if magic != MAGIC or not flags & _META_PAGE:
        raise ContainerError(f"no LMDB meta page at offset {at}: magic {magic:#x}, flags {flags:#x}")
    if version != VERSION:
        raise ContainerError(f"LMDB data format {version} at offset {at}, expected {VERSION}")
    page_size = _TREE.unpack_from(data, 40)[0]
    _, tree_flags, depth, _, _, _, entries, root = _TREE.unpack_from(data, 88)
    last_page, txnid = _TAIL.unpack_from(data, 136)
    if not 512 <= page_size <= 65_536 or page_size & (page_size - 1):
        raise ContainerError(f"page size {page_size} at offset {at} is not a power of two, 512 to 65536")
    if not 1 <= last_page < (1 << 47) // page_size or depth > MAX_DEPTH or txnid >> 63:
        found = f"last page {last_page}, depth {depth} or transaction {txnid}"
        raise ContainerError(f"impossible {found} at offset {at}")
    return Meta(page_size, txnid, last_page, root, depth, entries, tree_flags)


class Tree:
    """The unnamed database of an LMDB file as of `meta`. Errors are `ContainerError` that name `where` and the offset.

    Threads may share a tree; nothing outside `data` is read.
    """

    def __init__(self, data: FileBytes | bytes, meta: Meta, where: str) -> None:
        self._data, self.meta, self._where = data, meta, where
        self._size = len(data)

    def find(self, key: bytes) -> tuple[int, int] | None:
        """Offset in the file and length of the value of `key`, or None."""
        number = self.meta.root
        if number == _NOTHING:
            return None
        for _ in range(MAX_DEPTH):
            page = self._page(number)
            nodes, own_key = page.nodes, partial(self._key, page)
            if page.kind == _BRANCH:  # each child has the keys from its own up to, but without, the next one's
                number = self._child(page, nodes[max(0, bisect_right(nodes, key, key=own_key) - 1)])
                continue
            place = bisect_left(nodes, key, key=own_key)
            if place == len(nodes) or own_key(nodes[place]) != key:
                return None
            return self._entry(page, nodes[place])[1:]
        raise self._wrong(number, f"the tree is deeper than {MAX_DEPTH}")

    def walk(self) -> Iterator[tuple[bytes, int, int]]:
        """All entries in the order of their keys: key, offset of the value in the file, its length.

        Raises `ContainerError` for damage. Pages that occur twice, and overlapping nodes, are found before they fill
        the memory; keys that do not rise, and lost entries, after they have been passed.
        """
        left, room, last = self.meta.entries, self._size, None
        pages = iter(range(self.meta.last_page))
        for key, offset, length in self._walk(self.meta.root, 0, pages) if self.meta.root != _NOTHING else ():
            left, room = left - 1, room - _NODE.size - len(key)
            if left < 0 or room < 0:
                raise ContainerError(f"{self._where}: the tree has more than its {self.meta.entries} entries")
            if last is not None and key <= last and self.meta.flags == 0:
                raise ContainerError(f"{self._where}: the key {key!r:.80} at offset {offset} follows {last!r:.80}")
            yield key, offset, length
            last = key
        if left:
            reached = f"only {self.meta.entries - left} of {self.meta.entries} entries can be reached"
            raise ContainerError(f"{self._where}: the tree is damaged: {reached}")

    def _walk(self, number: int, depth: int, pages: Iterator[int]) -> Iterator[tuple[bytes, int, int]]:
        if depth > MAX_DEPTH or next(pages, None) is None:
            raise self._wrong(number, f"the tree is deeper than {MAX_DEPTH}, or has more pages than the file")
        page = self._page(number)
        for node in page.nodes:
            if page.kind == _LEAF:
                yield self._entry(page, node)
            else:
                yield from self._walk(self._child(page, node), depth + 1, pages)

    def _page(self, number: int) -> TreePage:
        """Read a branch or leaf page."""
        size = self.meta.page_size
        at = number * size
        if not 2 <= number <= self.meta.last_page or at + size > self._size:
            raise self._outside(number, "it lies")
        data = self._data[at : at + size]
        own, _, flags, lower, upper = _PAGE.unpack_from(data)
        if own != number or flags & _KINDS not in (_BRANCH, _LEAF):
            raise self._wrong(number, f"not a branch or leaf page: number {own}, flags {flags:#x}")
        if not PAGE_HEADER < lower <= upper <= size or lower & 1:
            raise self._wrong(number, f"impossible bounds {lower} and {upper}")
        nodes: tuple[int, ...] = struct.unpack_from(f"<{(lower - PAGE_HEADER) // 2}H", data, PAGE_HEADER)
        if min(nodes) < upper or max(nodes) > size - _NODE.size:
            raise self._wrong(number, "a node lies outside its page")
        return TreePage(data, at, flags & _KINDS, nodes)

    def _key(self, page: TreePage, node: int) -> bytes:
        start, size = node + _NODE.size, _NODE.unpack_from(page.data, node)[3]
        if start + size > self.meta.page_size:
            raise self._wrong_page(page, "a key ends outside its page")
        return page.data[start : start + size]

    def _child(self, page: TreePage, node: int) -> int:
        """The number of the page below this node of a branch page."""
        self._key(page, node)  # checks it
        low, high, top, _ = _NODE.unpack_from(page.data, node)
        return int(low | high << 16 | top << 32)

    def _entry(self, page: TreePage, node: int) -> tuple[bytes, int, int]:
        low, high, flags, key_size = _NODE.unpack_from(page.data, node)
        length = low | high << 16
        key = self._key(page, node)
        start = node + _NODE.size + key_size
        if flags == 0:
            if start + length > self.meta.page_size:
                raise self._wrong_page(page, f"the value of {key!r:.80} ends outside its page")
            return key, page.at + start, length
        if flags != _BIG or start + 8 > self.meta.page_size:
            raise self._wrong_page(page, f"the entry {key!r:.80} has unknown flags {flags:#x}")
        return key, self._overflow(_U64.unpack_from(page.data, start)[0], length), length

    def _overflow(self, page: int, length: int) -> int:
        """The offset of a value of `length` bytes that begins on this overflow page."""
        at = page * self.meta.page_size
        if not 2 <= page <= self.meta.last_page or at + PAGE_HEADER + length > self._size:
            raise self._outside(page, f"a value of {length} bytes lies")
        own, _, flags, low, high = _PAGE.unpack(self._data[at : at + _PAGE.size])
        if own != page or flags & _KINDS != _OVERFLOW:
            raise self._wrong(page, f"not an overflow page: number {own}, flags {flags:#x}")
        if (low | high << 16) * self.meta.page_size < PAGE_HEADER + length:
            raise self._wrong(page, f"{low | high << 16} overflow pages are too few for {length} bytes")
        return at + PAGE_HEADER

    def _wrong_page(self, page: TreePage, what: str) -> ContainerError:
        return self._wrong(page.at // self.meta.page_size, what)

    def _outside(self, page: int, what: str) -> ContainerError:
        if self._size < self.meta.file_size:
            return ContainerError(f"{self._where} is truncated: {self._size} bytes, expected {self.meta.file_size}")
        return self._wrong(page, f"{what} outside the file of {self._size} bytes")

    def _wrong(self, page: int, what: str) -> ContainerError:
        return ContainerError(f"{self._where}: LMDB page {page} (offset {page * self.meta.page_size}): {what}")
