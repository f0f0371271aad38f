import gc
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis.errors import OutOfMemoryError
from propolis_rocm_hip.allocator import ALIGNMENT
from propolis_rocm_hip.allocator import CachingAllocator
from propolis_rocm_hip.allocator import Statistics


MIB = 1 << 20


class Addresses:
    """A device with so much memory, and nothing in it."""

    id = "rocm:0"
    capturing = False

    def __init__(self, capacity=1 << 40):
        self.capacity = capacity
        self.next = 1 << 32
        self.live = {}
        self.taken = []

    def allocate(self, nbytes):
        """Addresses nobody had before."""
        if sum(self.live.values()) + nbytes > self.capacity:
            msg = "rocm:0: hipMalloc: hipErrorOutOfMemory (2)"
            raise OutOfMemoryError(msg)
        ptr, self.next = self.next, self.next + nbytes + (-nbytes % 4096)
        self.live[ptr] = nbytes
        self.taken.append(nbytes)
        return ptr

    def free(self, ptr):
        """Forget them."""
        del self.live[ptr]

    def info(self):
        """Free and in all."""
        return self.capacity - sum(self.live.values()), self.capacity


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, 40 * MIB)),
            st.tuples(st.just("give"), st.integers(0, 1 << 30)),
            st.tuples(st.just("trim"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_pieces_never_overlap_and_all_comes_back(steps):
    """Whatever the order of calls: no two pieces share a byte, and nothing is lost."""
    device = Addresses()
    pool = CachingAllocator(device)
    held = []
    for what, number in steps:
        if what == "take":
            held.append((pool.allocate(number), number))
        elif what == "give" and held:
            pool.release(held.pop(number % len(held))[0])
        elif what == "trim":
            pool.trim()
        spans = sorted((block.ptr, block.ptr + nbytes) for block, nbytes in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert all(block.ptr % ALIGNMENT == 0 for block, _ in held)
        segments = [(ptr, ptr + size) for ptr, size in device.live.items()]
        assert all(any(a <= s and e <= b for a, b in segments) for s, e in spans)
        now = pool.statistics()
        assert now.allocated == sum(nbytes for _, nbytes in held)
        assert now.reserved == sum(device.live.values())
    for block, _ in held:
        pool.release(block)
    pool.trim()
    assert device.live == {}
    assert pool.statistics().reserved == 0


def test_a_freed_piece_serves_the_next_call():
    """The device is asked once for what a loop allocates and frees."""
    device = Addresses()
    pool = CachingAllocator(device)
    addresses = set()
    for _ in range(100):
        block = pool.allocate(3 * MIB)
        addresses.add(block.ptr)
        pool.release(block)
    assert len(addresses) == 1
    assert device.taken == [20 * MIB]


def test_neighbours_grow_together():
    """Two pieces that lie side by side serve one of both their sizes once they are free."""
    device = Addresses()
    pool = CachingAllocator(device)
    blocks = [pool.allocate(5 * MIB) for _ in range(4)]
    for block in (blocks[1], blocks[3], blocks[2]):
        pool.release(block)
    assert pool.allocate(15 * MIB).ptr == blocks[1].ptr
    assert device.taken == [20 * MIB]


def test_small_pieces_share_a_segment():
    """Four thousand scalars take one segment, not four thousand allocations."""
    device = Addresses()
    pool = CachingAllocator(device)
    blocks = [pool.allocate(4) for _ in range(4096)]
    assert device.taken == [2 * MIB]
    assert len({block.ptr for block in blocks}) == 4096


def test_nothing_has_an_address_of_its_own():
    """An empty tensor is a piece like any other: its address is no other's."""
    pool = CachingAllocator(Addresses())
    assert pool.allocate(0).ptr != pool.allocate(0).ptr


def test_statistics():
    """In use, taken, and their high-water marks, which can be reset."""
    pool = CachingAllocator(Addresses())
    block = pool.allocate(1000)
    pool.release(pool.allocate(30 * MIB))
    assert pool.statistics() == Statistics(
        allocated=1000,
        reserved=32 * MIB,
        peak_allocated=30 * MIB + 1000,
        peak_reserved=32 * MIB,
        allocations=2,
        segments=2,
    )
    assert pool.trim() == 30 * MIB
    pool.reset_peaks()
    now = pool.statistics()
    assert (now.peak_allocated, now.peak_reserved) == (1000, 2 * MIB)
    pool.release(block)


def test_short_memory_gives_the_cache_back_and_tries_again():
    """Cached pieces never stand in the way of an allocation that would fit without them."""
    device = Addresses(capacity=64 * MIB)
    pool = CachingAllocator(device)
    blocks = [pool.allocate(20 * MIB) for _ in range(3)]
    for block in blocks:
        pool.release(block)
    assert pool.allocate(50 * MIB).nbytes == 50 * MIB
    assert pool.statistics().retries == 1
    assert list(device.live.values()) == [50 * MIB]


def test_a_segment_is_no_larger_than_what_is_left():
    """Where a whole segment does not fit, the piece itself still may."""
    device = Addresses(capacity=6 * MIB)
    pool = CachingAllocator(device)
    assert pool.allocate(3 * MIB).nbytes == 3 * MIB
    assert pool.allocate(3 * MIB).nbytes == 3 * MIB


def test_memory_in_reference_cycles_is_found():
    """Tensors that only garbage refers to are collected before an allocation fails."""

    class Holder:
        def __init__(self, pool):
            self.block = pool.allocate(40 * MIB)
            self.pool = pool
            self.me = self

        def __del__(self):
            self.pool.release(self.block)

    pool = CachingAllocator(Addresses(capacity=64 * MIB))
    gc.disable()
    try:
        Holder(pool)
        assert pool.allocate(40 * MIB).nbytes == 40 * MIB
    finally:
        gc.enable()


def test_out_of_memory_names_every_size():
    """What was asked for, what is free, in use, cached and the most that was in use."""
    pool = CachingAllocator(Addresses(capacity=64 * MIB))
    kept = pool.allocate(30 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(3 << 30)
    assert str(caught.value) == (
        "rocm:0: 3.0 GiB do not fit: 34.0 MiB of 64.0 MiB are free, 30.0 MiB are in use by tensors "
        "here, 0 bytes cached in pieces between them, at most 30.0 MiB were in use; use a smaller "
        "model or context, or end what else uses the GPU (rocm:0: hipMalloc: hipErrorOutOfMemory "
        "(2))"
    )
    assert kept.nbytes == 30 * MIB
    assert pool.statistics().allocations == 1


def test_direct_allocations_are_exactly_what_was_asked_for():
    """So that a tool which watches memory sees each tensor, and its end."""
    device = Addresses()
    pool = CachingAllocator(device, direct=True)
    blocks = [pool.allocate(n) for n in (1000, 0, 5 * MIB)]
    assert list(device.live.values()) == [1000, 1, 5 * MIB]
    pool.release(blocks[1])
    assert list(device.live.values()) == [1000, 5 * MIB]
    assert pool.statistics().reserved == 1000 + 5 * MIB


def test_the_end():
    """When nobody has the allocator any more, nor a piece, its segments go back to the device."""
    device = Addresses()
    pool = CachingAllocator(device)
    blocks = [pool.allocate(n) for n in (100, 3 * MIB, 50 * MIB)]
    pool.release(blocks.pop())
    assert len(device.live) == 3
    del pool
    gc.collect()
    assert device.live == {}


def test_a_finaliser_in_the_middle_of_a_call():
    """Release never waits for the lock, which the same thread may hold; nothing is lost."""
    pool = CachingAllocator(Addresses())
    block = pool.allocate(1000)
    with pool._lock:
        pool.release(block)
    assert pool.statistics().allocated == 0


def test_many_threads():
    """Threads that allocate and free at once never get the same piece."""
    pool = CachingAllocator(Addresses())
    owners, problems = {}, []

    def work():
        for number in range(300):
            block = pool.allocate(700 + number)
            if owners.setdefault(block.ptr, threading.get_ident()) != threading.get_ident():
                problems.append(block.ptr)
            del owners[block.ptr]
            pool.release(block)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert pool.statistics().allocated == 0
