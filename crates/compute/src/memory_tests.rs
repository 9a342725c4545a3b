//! What is written to pages and slots is read back, from any thread, and sizes from a bad config are errors.

use super::*;

/// Element (slot, dimension) of K and V, by the layout's definition.
fn element(block: &KvBlock<'_>, head_dim: usize, slot: usize, d: usize) -> (f32, f32) {
    let panel = d / PANEL * PANEL;
    let width = (head_dim - panel).min(PANEL).next_multiple_of(16);
    let (k_at, v_at) = (d * BLOCK + slot, panel * BLOCK + slot * width + d - panel);
    match block {
        KvBlock::F16 { k, v } => {
            (f16::from_bits(k[k_at]).to_f32(), f16::from_bits(v[v_at]).to_f32())
        }
        KvBlock::F32 { k, v } => (k[k_at], v[v_at]),
    }
}

#[test]
fn written_positions_are_read_back_and_neighbours_keep_theirs() {
    let mut seed = 11u32;
    for format in [KvFormat::F16, KvFormat::F32] {
        for head_dim in [8, 16, 40, 64, 80, 128, 256] {
            let kv_heads = 2;
            let mut arena = KvArena::new(format, kv_heads, head_dim, 3).unwrap();
            let row = kv_heads * head_dim;
            // Multiples of 1/8 below 16 are exact in f16.
            let mut values = |count: usize| -> Vec<f32> {
                let mut next = || {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as f32 / 8.0 - 16.0
                };
                (0..count).map(|_| next()).collect()
            };
            let (k, v) = (values(BLOCK * row), values(BLOCK * row));
            for slot in 0..BLOCK {
                let at = slot * row..(slot + 1) * row;
                arena.write(PageId(1), slot, &k[at.clone()], &v[at]);
            }
            arena.copy_page(PageId(1), PageId(2));
            for page in 0..3 {
                for kv_head in 0..kv_heads {
                    let block = arena.block(PageId(page), kv_head);
                    for slot in 0..BLOCK {
                        let read = arena.read(PageId(page), slot, kv_head);
                        assert_eq!((read.0.len(), read.1.len()), (head_dim, head_dim));
                        for d in 0..head_dim {
                            let at = slot * row + kv_head * head_dim + d;
                            let want = if page == 0 { (0.0, 0.0) } else { (k[at], v[at]) };
                            assert_eq!(element(&block, head_dim, slot, d), want);
                            assert_eq!((read.0[d], read.1[d]), want);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn f16_pages_saturate() {
    let mut arena = KvArena::new(KvFormat::F16, 1, 16, 1).unwrap();
    arena.write(PageId(0), 5, &[1e9; 16], &[f32::NEG_INFINITY; 16]);
    let block = arena.block(PageId(0), 0);
    assert_eq!(element(&block, 16, 5, 3), (65504.0, -65504.0));
}

#[test]
fn page_bytes_are_what_the_plan_expects() {
    // 35B: 2 kv heads of 256 in f16, 10 full layers: 20,480 bytes a token.
    assert_eq!(10 * page_bytes(KvFormat::F16, 2, 256) / BLOCK, 20_480);
}

#[test]
fn slots_are_disjoint_and_copied() {
    let mut arena = RecurrentArena::new(37, 4).unwrap();
    for i in 0..4 {
        arena.slot_mut(SlotId(i)).fill(i as f32);
    }
    arena.slot_mut(SlotId(1))[36] = 7.0;
    arena.copy(SlotId(1), SlotId(0));
    arena.copy(SlotId(0), SlotId(0));
    assert_eq!(arena.slot(SlotId(0))[35..], [1.0, 7.0]);
    assert_eq!(arena.slot(SlotId(2)), [2.0; 37]);
    assert_eq!(arena.slot(SlotId(3)), [3.0; 37]);
    assert_eq!(arena.slot_ptr(SlotId(2)).addr() % 64, 0);
}

#[test]
fn sizes_that_cannot_be_are_refused_without_overflow() {
    let huge = [usize::MAX, usize::MAX - 1, usize::MAX - 15, usize::MAX - 16, usize::MAX / 64 + 1];
    for size in huge {
        for format in [KvFormat::F16, KvFormat::F32] {
            assert!(KvArena::new(format, 1, size, 1).is_err());
            assert!(KvArena::new(format, size, 256, 2).is_err());
            assert!(KvArena::new(format, 2, 64, size).is_err());
            assert!(KvArena::new(format, size, size, size).is_err());
        }
        assert!(RecurrentArena::new(size, 1).is_err());
        assert!(RecurrentArena::new(8, size).is_err());
        assert!(RecurrentArena::new(size, size).is_err());
    }
}

#[test]
fn threads_write_disjoint_slots_of_one_page() {
    let arena = KvArena::new(KvFormat::F16, 1, 64, 1).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let arena = &arena;
            scope.spawn(move || {
                for slot in (thread..BLOCK).step_by(4) {
                    let row = [slot as f32; 64];
                    // SAFETY: each slot has one writer, and blocks are taken after the scope.
                    unsafe { arena.write_shared(PageId(0), slot, &row, &row) }
                }
            });
        }
    });
    let block = arena.block(PageId(0), 0);
    for slot in 0..BLOCK {
        assert_eq!(element(&block, 64, slot, 63), (slot as f32, slot as f32));
    }
}

#[test]
fn row_views_address_their_columns() {
    let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let rows = Rows::new(&data, 8, 8).columns(2..5);
    assert_eq!(rows.row(2), [18.0, 19.0, 20.0]);
    let mut out = data.clone();
    let mut view = RowsMut::new(&mut out[2..21], 8, 3);
    assert_eq!((view.count(), view.width()), (3, 3));
    view.row(2)[1] = -1.0;
    assert_eq!(out[19], -1.0);
}
