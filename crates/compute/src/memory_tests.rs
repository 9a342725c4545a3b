//! What is written to slots is read back, and sizes from a bad config are errors.

use super::*;

#[test]
fn slots_are_disjoint_and_copied() {
    let mut arena = SlotMemory::new(37, 4).unwrap();
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
fn slots_that_cannot_be_are_refused_without_overflow() {
    for size in [usize::MAX, usize::MAX - 1, usize::MAX - 16, usize::MAX / 64 + 1] {
        assert!(SlotMemory::new(size, 1).is_err());
        assert!(SlotMemory::new(8, size).is_err());
        assert!(SlotMemory::new(size, size).is_err());
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
