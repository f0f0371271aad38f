// Weights in blocks on their way to shared memory: a warp brings 16 rows for itself, a chunk of each at a time, as they
// are stored.  What it reads of them there is what formats read of blocks in memory (propolis_blocks.h).
#pragma once

#include "propolis_blocks.h"
#include "propolis_copy.h"
#include "propolis_matrix_bytes.h"

#if PROPOLIS_FRAGMENTS
constexpr int WARPS_OF_BLOCK = BLOCK / PROPOLIS_WARP;  // they share the depth
#if defined(PROPOLIS_MMA)
constexpr int SLOTS = 2;
#else
constexpr int SLOTS = 1;  // what comes next is in registers
#endif

template <class Format>
constexpr int CHUNK_BYTES = CHUNK / Format::SIZE * Format::BYTES;

// Bytes in shared memory `at` behind a place: a multiple of four, or where not `even` `bits` behind one.  Of `at` the
// compiler is to know what it is modulo 4.
template <bool even>
struct Near {
    const u8* place;
    u32 bits;
    int at;
    PROPOLIS_METHOD Near operator+(int more) const { return {place, bits, at + more}; }
    PROPOLIS_METHOD const u8* exactly() const { return place + at + (even ? 0 : bits / 8); }
    PROPOLIS_METHOD u32 word() const {
        const int over = at % 4;
        const u32* from = (const u32*)(place + (at - over));
        if constexpr (even) return over ? word_between(from[0], from[1], (u32)over * 8) : from[0];
        if (over == 0) return word_between(from[0], from[1], bits);
        return halves_at(exactly());
    }
    PROPOLIS_METHOD u32 operator[](int more) const {
        const int byte = at + more;
        if constexpr (even) return *(const u32*)(place + byte / 4 * 4) >> byte % 4 * 8 & 0xff;  // of one that others need
        return exactly()[more];
    }
    PROPOLIS_METHOD u16 half() const { return *(const u16*)exactly(); }
};
template <bool even>
PROPOLIS_FN u32 word_at(Near<even> at) {
    return at.word();
}
template <bool even>
PROPOLIS_FN u32 halves_at(Near<even> at) {
    return at.word();
}
template <bool even>
PROPOLIS_FN u32 bytes_at(Near<even> at) {
    return at.word();
}
template <bool even>
PROPOLIS_FN u32 half_at(Near<even> at) {
    return at.half();
}
template <bool even>
PROPOLIS_FN f32 f16_at(Near<even> at) {
    return to_f32(f16{at.half()});
}

// Rows are those of a tile, from one tile to another; a chunk is `pieces` of 16 bytes, some of which may be beyond it.
// Copies of a warp that are more than these make the last ones again.
template <class Format>
struct Staged {
    static constexpr int BYTES = CHUNK_BYTES<Format>;
    static constexpr bool EVEN = BYTES % 4 == 0;  // then rows begin at multiples of four bytes
    static constexpr int MOST = (BYTES + 2 * (PACK_BYTES - 1)) / PACK_BYTES;
    static constexpr int COPIES = (MOST * FRAGMENT + PROPOLIS_WARP - 1) / PROPOLIS_WARP;
    // Whether all chunks of a warp begin as far from a multiple of 16 as its first.
    static constexpr bool STEADY = WARPS_OF_BLOCK * BYTES % PACK_BYTES == 0;
    const u8* w;  // of the tile, a multiple of 16, of which rows are offsets
    u8* slots;
    i64 row_bytes;
    u32 over, length;      // before the first row, and of each
    u32 start[COPIES];     // of the warp's first chunk
    u32 place[COPIES];     // in a slot
    u32 behind[OWN_ROWS];  // of the warp's first chunk in its slot
    u32 slot;              // whose chunk is computed with
    int pieces, room, warp;
    i32 chunks;
    bool partial;  // whether the last chunk is
#if !defined(PROPOLIS_MMA)
    Piece held[COPIES];
    bool cut;  // whether they are of a chunk that `ends`, so far ahead, with so many rows
    u32 cut_more;
    i32 cut_rows;
#endif

    PROPOLIS_METHOD Staged(u8* shared, const u8* from, i64 depth, i64 row_bytes, int pieces)
        : row_bytes(row_bytes), slot(0), pieces(pieces), warp((int)kept((u32)warp_of_block())) {
        over = (u32)(u64)from % PACK_BYTES;
        w = from - over;
        room = (pieces | 1) * PACK_BYTES;
        slots = shared + warp * (SLOTS * FRAGMENT) * room;
        length = (u32)(depth / Format::SIZE * Format::BYTES);
        chunks = (i32)((depth + CHUNK - 1) / CHUNK);
        partial = depth % CHUNK != 0;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            place[i] = kept((u32)(row_of(i) * room + piece_of(i) * PACK_BYTES));
            start[i] = first_bytes(row_of(i));
            if constexpr (STEADY) start[i] = start[i] / PACK_BYTES * PACK_BYTES + (u32)piece_of(i) * PACK_BYTES;
            start[i] = kept(start[i]);
        }
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) behind[i] = kept(own_row(i) * (u32)room + first_bytes(own_row(i)) % PACK_BYTES);
    }
    PROPOLIS_METHOD int row_of(int i) const {
        const int row = (int)((u32)(lane_of_warp() + i * PROPOLIS_WARP) * (65536u / (u32)pieces + 1) >> 16);
        return row < FRAGMENT ? row : FRAGMENT - 1;
    }
    PROPOLIS_METHOD int piece_of(int i) const {
        const int piece = lane_of_warp() + i * PROPOLIS_WARP - row_of(i) * pieces;
        return piece < pieces ? piece : pieces - 1;
    }
    PROPOLIS_METHOD u32 begin(int row) const { return (u32)row * (u32)row_bytes + over; }
    PROPOLIS_METHOD u32 first_bytes(int row) const { return begin(row) + (u32)(warp * BYTES); }
    PROPOLIS_METHOD void go_on(i32 tiles) { w += (i64)tiles * (FRAGMENT * row_bytes); }
    // How far a chunk of the warp is from its first.
    PROPOLIS_METHOD u32 ahead(i32 chunk) const { return (u32)(chunk - warp) * BYTES; }
    PROPOLIS_METHOD u32 from(int i, u32 ahead) const {
        if constexpr (STEADY) return start[i] + ahead;
        return (start[i] + ahead) / PACK_BYTES * PACK_BYTES + (u32)piece_of(i) * PACK_BYTES;
    }
    // Whether of a tile with so many `rows` in all a chunk may lie beside what may not be read, or has to be 0.
    PROPOLIS_METHOD bool ends(i32 chunk, i32 rows) const {
        return rows < FRAGMENT || (chunk + 1 == chunks && (partial || rows == FRAGMENT));
    }
    // Where such a piece is, and how many bytes of it belong to its row, or to what is before that: of a row that there is
    // not the last one's.
    PROPOLIS_METHOD u32 from(int i, u32 ahead, i32 rows, i32& bytes) const {
        const i32 row = row_of(i), last = (rows < FRAGMENT ? rows : FRAGMENT) - 1;
        const u32 begins = begin(row < last ? row : last);
        const u32 at = (begins + (u32)(warp * BYTES) + ahead) / PACK_BYTES * PACK_BYTES + (u32)piece_of(i) * PACK_BYTES;
        const i32 rest = (i32)(begins + length - at);
        bytes = rest < 0 ? 0 : rest < PACK_BYTES ? rest : PACK_BYTES;
        return bytes ? at : 0;
    }
    // Asks for a chunk, until whose arrival no other is asked for.
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void request(i32 chunk, i32 rows) const {
        const u32 to = shared_address(slots) + (slot ^ (u32)(FRAGMENT * room));
        const u32 more = ahead(chunk);
        if (ends(chunk, rows)) {
#pragma unroll 1
            for (int i = 0; i < COPIES; ++i) {
                i32 bytes;
                const u8* piece = w + from(i, more, rows, bytes);
                copy_async(to + (u32)(row_of(i) * room + piece_of(i) * PACK_BYTES), piece, bytes);
            }
        } else {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                copy_async(to + place[i], STEADY ? w + more + start[i] : w + from(i, more), PACK_BYTES);
            }
        }
        end_of_stage();
    }
    PROPOLIS_METHOD void arrive() {
        wait_for_stage(SLOTS);
        sync_warp();
        slot ^= (u32)(FRAGMENT * room);
    }
#else
    // Pieces at ends are cut as they are stored: whoever asks as they are loaded waits for each.
    PROPOLIS_METHOD void request(i32 chunk, i32 rows) {
        const u32 more = ahead(chunk);
        cut = ends(chunk, rows);
        if (cut) {
            cut_more = more, cut_rows = rows;
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                i32 bytes;
                const u8* piece = w + from(i, more, rows, bytes);
                held[i] = load_piece(piece, bytes);
            }
        } else {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) held[i] = load_piece(w + from(i, more), PACK_BYTES);
        }
    }
    PROPOLIS_METHOD void arrive() {
        if (cut) {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                i32 bytes;
                from(i, cut_more, cut_rows, bytes);
#pragma unroll
                for (int word = 0; word < PACK_BYTES / 4; ++word) held[i].at[word] &= first_bytes_of_word(bytes - 4 * word);
            }
        }
        sync_warp();
#pragma unroll
        for (int i = 0; i < COPIES; ++i) store_pack<PACK_BYTES / 4>((u32*)(slots + place[i]), held[i]);
        sync_warp();
    }
    PROPOLIS_FN u32 first_bytes_of_word(i32 bytes) { return bytes <= 0 ? 0 : bytes < 4 ? (1u << bytes * 8) - 1 : ~0u; }
#endif
    // Of a thread's own rows the chunk that arrived.
    PROPOLIS_METHOD Near<EVEN> own(int i, i32 chunk) const {
        const u32 at = STEADY ? behind[i] : behind[i] / PACK_BYTES * PACK_BYTES + (behind[i] + ahead(chunk)) % PACK_BYTES;
        return {slots + slot + (EVEN ? at : at / 4 * 4), EVEN ? 0 : at % 4 * 8, 0};
    }
};
#endif
