"""An encrypted store keeps every promise of the store within, shows nothing to whoever reads it, and tells wrong keys
from damage."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.core.protocol.encoding import decode_entry
from miniclaw_sessions.core.stores import open_store
from miniclaw_sessions.core.stores.base import Append, Store, StoredEntry, is_damaged
from miniclaw_sessions.core.stores.encrypted import EncryptedStore, encrypted, open_entry, seal_entry
from miniclaw_sessions.core.stores.memory import MemoryStore
from miniclaw_sessions.core.stores.none import NoStore
from miniclaw_sessions.encryption import KeyRing
from miniclaw_sessions.errors import InvalidMessage, NotEncrypted, StoreError, WrongKey
from miniclaw_sessions.testing import SEARCH_CHECKS, STORE_CHECKS, StoreCheck, StoreMaker, sample_entries, sample_head
from tests.sampled import sampled

pytestmark = pytest.mark.anyio
SECRET = "Nobody must read this."
KEYS = KeyRing([b"k" * 32])
OTHER = KeyRing([b"o" * 32])


@pytest.fixture(params=sampled(["memory:", "sqlite:", "jsonl:"], every=3))
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreMaker:
    numbers = count(1)
    places: dict[Store, Path] = {}

    def at(path: Path) -> Store:
        path.mkdir(exist_ok=True)
        store = EncryptedStore(open_store(request.param, path), KEYS)
        places[store] = path
        return store

    def new() -> Store:
        return at(tmp_path / str(next(numbers)))

    return StoreMaker(new, (lambda closed: closed) if request.param == "memory:" else (lambda s: at(places[s])))


@pytest.mark.parametrize("check", sampled([*STORE_CHECKS, *SEARCH_CHECKS], every=3), ids=lambda check: check.__name__)
async def test_it_keeps_every_promise_of_a_store(check: StoreCheck, stores: StoreMaker) -> None:
    await check(stores)


@pytest.mark.parametrize("url", ["sqlite:", "jsonl:"])
async def test_its_files_show_nothing_while_it_is_open_nor_afterwards(url: str, tmp_path: Path) -> None:
    def shown() -> list[Path]:
        return [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]

    async with EncryptedStore(open_store(url, tmp_path), KEYS) as store:
        entries = sample_entries(1, 100, text=SECRET)
        assert await store.append([Append(sample_head(), entries)]) == [None]
        assert await store.read("telegram_1") == entries
        assert shown() == []
        await store.delete("telegram_1")
    assert shown() == []
    (tmp_path / "plain").mkdir()
    async with open_store(url, tmp_path / "plain") as plain:  # the search can find something
        await plain.append([Append(sample_head(), sample_entries(1, 1, text=SECRET))])
        assert shown()


async def filled(keys: KeyRing = KEYS) -> MemoryStore:
    inner = MemoryStore()
    await EncryptedStore(inner, keys).append([Append(sample_head(), sample_entries(1, 3, text=SECRET))])
    return inner


def replace(inner: MemoryStore, sequence: int, encoded: bytes) -> None:
    entries = inner._sessions["telegram_1"].entries
    entries[sequence - 1] = StoredEntry(sequence, entries[sequence - 1].entry_id, encoded)


@pytest.mark.parametrize("keys", [OTHER, KeyRing([b"o" * 32, b"p" * 32])])
async def test_a_key_that_is_not_held_stops_every_way_of_reading(keys: KeyRing) -> None:
    store = EncryptedStore(await filled(), keys)
    for reading in (
        store.read("telegram_1"),
        store.read_newest("telegram_1", 1),
        store.find("telegram_1", "entry-2"),
    ):
        with pytest.raises(WrongKey) as caught:
            await reading
        assert (caught.value.needed, caught.value.held) == (KEYS.ids[0], tuple(keys.ids))
        assert isinstance(caught.value, StoreError)
        assert SECRET not in str(caught.value)
    assert len(await store.check()) == 1


async def test_a_further_key_is_enough_to_read_and_the_first_one_writes() -> None:
    inner = await filled()
    store = EncryptedStore(inner, KeyRing([b"o" * 32, b"k" * 32]))
    assert await store.read("telegram_1") == sample_entries(1, 3, text=SECRET)
    await store.append([Append(sample_head(), sample_entries(4, 4))])
    assert [OTHER.is_current(entry.encoded) for entry in await inner.read("telegram_1")] == [False, False, False, True]


async def test_an_entry_that_is_not_encrypted_is_refused_and_not_believed() -> None:
    inner = await filled()
    replace(inner, 2, sample_entries(2, 2, text="You promised me a million.")[0].encoded)
    store = EncryptedStore(inner, KEYS)
    with pytest.raises(NotEncrypted, match=r"entry 2 of session telegram_1 .*rekey"):
        await store.read("telegram_1")
    (problem,) = await store.check()
    assert "entry 2" in problem


@pytest.mark.parametrize("garbage", [b"", b"\0" * 80, b'{"type":"opaque","id":', b"\xf5mc"])
async def test_what_was_never_an_entry_is_damage_of_this_one(garbage: bytes) -> None:
    inner = await filled()
    replace(inner, 2, garbage)
    store = EncryptedStore(inner, KEYS)
    first, damaged, last = await store.read("telegram_1")
    assert [first, last] == [sample_entries(1, 3, text=SECRET)[index] for index in (0, 2)]
    with pytest.raises(InvalidMessage):
        decode_entry(damaged.encoded)
    (problem,) = await store.check()
    assert "entry 2 is damaged" in problem


@given(st.data())
async def test_no_flipped_bit_and_no_other_place_ever_gives_a_wrong_entry(data: st.DataObject) -> None:
    (entry,) = sample_entries(5, 5, text=SECRET)
    sealed = seal_entry(KEYS, "telegram_1", entry)
    assert open_entry(KEYS, "telegram_1", sealed) == entry
    bit = data.draw(st.integers(0, 8 * len(sealed.encoded) - 1))
    flipped = bytearray(sealed.encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    damaged = StoredEntry(5, entry.entry_id, bytes(flipped))
    assert is_damaged(open_entry(KEYS, "telegram_1", damaged).encoded)
    cut = StoredEntry(5, entry.entry_id, sealed.encoded[: data.draw(st.integers(0, len(sealed.encoded) - 1))])
    assert is_damaged(open_entry(KEYS, "telegram_1", cut).encoded)


@pytest.mark.parametrize(
    ("session_id", "sequence", "entry_id"),
    [("telegram_2", 5, "entry-5"), ("telegram_1", 6, "entry-5"), ("telegram_1", 5, "entry-6")],
)
async def test_an_entry_opens_in_its_own_place_only(session_id: str, sequence: int, entry_id: str) -> None:
    (entry,) = sample_entries(5, 5, text=SECRET)
    moved = StoredEntry(sequence, entry_id, seal_entry(KEYS, "telegram_1", entry).encoded)
    assert is_damaged(open_entry(KEYS, session_id, moved).encoded)


async def test_two_entries_that_changed_places_are_both_damaged() -> None:
    inner = await filled()
    first, second, _ = await inner.read("telegram_1")
    replace(inner, 1, second.encoded)
    replace(inner, 2, first.encoded)
    problems = await EncryptedStore(inner, KEYS).check()
    assert [problem.split(":")[1].split(" is ")[0].strip() for problem in problems] == ["entry 1", "entry 2"]


async def test_without_keys_or_entries_a_store_is_what_it_was() -> None:
    plain, none = MemoryStore(), NoStore()
    assert encrypted(plain, None) is plain
    assert encrypted(none, KEYS) is none
    wrapped = encrypted(open_store("sqlite:", Path("/w")), KEYS)
    assert (wrapped.durable, wrapped.keeps_entries, wrapped.files[0]) == (True, True, Path("/w/sessions.db"))
