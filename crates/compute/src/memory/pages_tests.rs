//! What is written to pages is read back, from any thread, and sizes from a bad config are errors.

use super::*;

fn plane(heads: usize, width: usize, order: PlaneOrder, format: KvFormat) -> Plane {
    Plane { heads, width, order, format }
}

/// Keys and values of the same heads.
fn pair(format: KvFormat, heads: usize, width: usize) -> PageShape {
    let plane = |order| plane(heads, width, order, format);
    PageShape::new(vec![plane(PlaneOrder::Columns), plane(PlaneOrder::Panels)])
}

fn pages_of(shape: PageShape, count: usize) -> Result<PageMemory> {
    PageMemory::new(&ArenaShape::of(shape), count)
}

/// Element (slot, column), by the definition of the orders.
fn element(block: PlaneBlock<'_>, plane: Plane, slot: usize, column: usize) -> f32 {
    let panel = column / PANEL * PANEL;
    let width = (plane.width - panel).min(PANEL).next_multiple_of(16);
    let at = match plane.order {
        PlaneOrder::Columns => column * BLOCK + slot,
        PlaneOrder::Panels => panel * BLOCK + slot * width + column - panel,
    };
    match block {
        PlaneBlock::F16(bits) => f16::from_bits(bits[at]).to_f32(),
        PlaneBlock::F32(values) => values[at],
    }
}

#[track_caller]
fn check_round_trip(shape: &PageShape) {
    let mut seed = 11u32;
    let mut memory = pages_of(shape.clone(), 3).unwrap();
    let arena = memory.shaped_mut(0);
    // Multiples of 1/8 below 16 are exact in f16.
    let mut values = |count: usize| -> Vec<f32> {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as f32 / 8.0 - 16.0
        };
        (0..count).map(|_| next()).collect()
    };
    let row = |plane: &Plane| plane.heads * plane.width;
    let written: Vec<Vec<f32>> =
        shape.planes().iter().map(|plane| values(BLOCK * row(plane))).collect();
    for slot in 0..BLOCK {
        let rows = shape.planes().iter().zip(&written);
        let rows: Vec<&[f32]> =
            rows.map(|(plane, values)| &values[slot * row(plane)..][..row(plane)]).collect();
        arena.write(PageId(1), slot, &rows);
    }
    arena.copy_page(PageId(1), PageId(2));
    for page in (0..3).map(PageId) {
        for (index, (&plane, written)) in shape.planes().iter().zip(&written).enumerate() {
            for head in 0..plane.heads {
                let block = arena.block(page, index, head);
                for slot in 0..BLOCK {
                    let read = arena.read(page, slot, index, head);
                    assert_eq!(read.len(), plane.width);
                    for column in 0..plane.width {
                        let at = slot * row(&plane) + head * plane.width + column;
                        let want = if page.0 == 0 { 0.0 } else { written[at] };
                        assert_eq!(element(block, plane, slot, column), want);
                        assert_eq!(read[column], want);
                    }
                }
            }
        }
    }
}

#[test]
fn written_positions_are_read_back_and_neighbours_keep_theirs() {
    for format in [KvFormat::F16, KvFormat::F32] {
        for width in [8, 16, 40, 64, 80, 128, 256] {
            check_round_trip(&pair(format, 2, width));
        }
    }
}

#[test]
fn planes_of_a_layer_may_differ_in_heads_width_order_and_format() {
    use PlaneOrder::{Columns, Panels};
    let keys = plane(2, 24, Columns, KvFormat::F16);
    let values = plane(2, 40, Panels, KvFormat::F32);
    let index = plane(1, 8, Columns, KvFormat::F32);
    check_round_trip(&PageShape::new(vec![keys, values, index]));
    check_round_trip(&PageShape::new(vec![plane(1, 576, Columns, KvFormat::F16), index]));
}

#[test]
fn f16_pages_saturate() {
    let mut memory = pages_of(pair(KvFormat::F16, 1, 16), 1).unwrap();
    let arena = memory.shaped_mut(0);
    arena.write(PageId(0), 5, &[&[1e9; 16], &[f32::NEG_INFINITY; 16]]);
    let read = |plane: usize| arena.read(PageId(0), 5, plane, 0)[3];
    assert_eq!((read(0), read(1)), (65504.0, -65504.0));
}

#[test]
fn page_bytes_are_what_the_plan_expects() {
    // 35B: 2 kv heads of 256 in f16, 10 full layers: 20,480 bytes a token.
    assert_eq!(10 * pair(KvFormat::F16, 2, 256).bytes() / BLOCK, 20_480);
}

#[test]
fn sizes_that_cannot_be_are_refused_without_overflow() {
    let huge = [usize::MAX, usize::MAX - 1, usize::MAX - 15, usize::MAX - 16, usize::MAX / 64 + 1];
    for size in huge {
        for format in [KvFormat::F16, KvFormat::F32] {
            assert!(pages_of(pair(format, 1, size), 1).is_err());
            assert!(pages_of(pair(format, size, 256), 2).is_err());
            assert!(pages_of(pair(format, 2, 64), size).is_err());
            assert!(pages_of(pair(format, size, size), size).is_err());
        }
    }
}

#[test]
fn threads_write_disjoint_slots_of_one_page() {
    let shape = pair(KvFormat::F16, 1, 64);
    let memory = pages_of(shape.clone(), 1).unwrap();
    let arena = memory.shaped(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for slot in (thread..BLOCK).step_by(4) {
                    let row = [slot as f32; 64];
                    for plane in 0..2 {
                        // SAFETY: each slot has one writer, and blocks are taken after the scope.
                        unsafe { arena.write_shared(PageId(0), slot, plane, &row) }
                    }
                }
            });
        }
    });
    for (index, &plane) in shape.planes().iter().enumerate() {
        for slot in 0..BLOCK {
            let block = arena.block(PageId(0), index, 0);
            assert_eq!(element(block, plane, slot, 63), slot as f32);
        }
    }
}

#[test]
fn shapes_share_an_arena_chunk_by_chunk() {
    let narrow = PageShape::new(vec![plane(1, 8, PlaneOrder::Columns, KvFormat::F16)]);
    let wide = PageShape::new(vec![plane(3, 16, PlaneOrder::Columns, KvFormat::F32)]);
    let shape = ArenaShape::mixed(vec![wide.clone(), narrow.clone()]);
    assert_eq!(shape.shapes(), [wide.clone(), narrow.clone()]);
    // Twelve narrow pages are as large as a wide one.
    assert_eq!((shape.chunk_pages(0), shape.chunk_pages(1)), (1, 12));
    let mut memory = PageMemory::new(&shape, 3).unwrap();
    // The first and the last chunk hold wide pages, the one between them narrow ones.
    for page in [0, 2].map(PageId) {
        memory.shaped_mut(0).write(page, 7, &[&[page.0 as f32 + 1.0; 48]]);
    }
    for page in (12..24).map(PageId) {
        memory.shaped_mut(1).write(page, 7, &[&[page.0 as f32; 8]]);
    }
    memory.shaped_mut(1).copy_page(PageId(23), PageId(12));
    let wide = [0, 2].map(|page| memory.shaped(0).read(PageId(page), 7, 0, 2)[15]);
    assert_eq!(wide, [1.0, 3.0]);
    let narrow = |page| memory.shaped(1).read(PageId(page), 7, 0, 0)[7];
    assert_eq!([12, 13, 22, 23].map(narrow), [23.0, 13.0, 22.0, 23.0]);
}

#[test]
fn chunks_leave_little_over() {
    let bytes = |heads| plane(heads, 16, PlaneOrder::Columns, KvFormat::F16);
    for (large, small) in [(16, 9), (16, 5), (31, 17), (8, 8), (33, 1)] {
        let shapes = [large, small].map(|heads| PageShape::new(vec![bytes(heads)]));
        let shape = ArenaShape::mixed(shapes.to_vec());
        for (index, page) in shapes.iter().enumerate() {
            let used = shape.chunk_pages(index) * page.bytes();
            assert!(used * 10 >= shape.chunk_bytes() * 9, "{large} and {small}");
        }
    }
}
