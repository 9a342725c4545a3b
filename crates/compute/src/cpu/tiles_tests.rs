//! Tests of `tiles.rs`: each unit against the scalar row kernel, to the bit.

use super::super::dot::tests::{Random, encodings, least_cols, random_weight};
use super::super::dot::{Rows, multiply_rows as by_rows};
use super::super::quantize::Forms;
use super::*;

/// Products in tiles of `unit`, which needs `isa`.
#[track_caller]
fn check(unit: Unit, isa: Isa) {
    if !machine::cpu::supports(isa) {
        println!("skipped: tiles of {unit:?} need {isa}, which this machine lacks");
        return;
    }
    let mut random = Random(11);
    for encoding in encodings().into_iter().filter(|e| e.is_integer()) {
        let least = least_cols(encoding);
        for (rows, cols, x_rows) in [
            (32, 512, 16),
            (70, 1152 / least * least, 21),
            (5, least.max(128), 3),
            (33, 2048, 40),
            // The last round of lanes has one unit, or lacks one.
            (9, 512 + least, 17),
            (3, 1024 - least, 2),
        ] {
            let w = random_weight(rows, cols, encoding, random.next());
            let mut a = Activations::default();
            a.resize(isa, x_rows, cols, Forms::ALL);
            for r in 0..x_rows {
                let x: Vec<f32> = (0..cols).map(|_| random.float()).collect();
                a.fill(isa, r, &x);
            }
            let order = Order::of(encoding);
            let outputs: Vec<u32> = (0..x_rows as u32).rev().collect();
            let packed = |rows: &[u32]| {
                let mut tile = Tile::default();
                tile.pack(&a, rows, order, true);
                tile
            };
            let tiles: Vec<Tile> = outputs.chunks(TOKENS).map(packed).collect();
            let (mut want, mut got) = (vec![0.0; rows * x_rows], vec![f32::NAN; rows * x_rows]);
            let target = |start| Target { start, stride: rows, column: 0 };
            let both = Rows { inputs: &outputs, outputs: &outputs };
            // SAFETY: both outputs have room for every row.
            unsafe {
                by_rows(Isa::Scalar, &w.view(), 0..rows, &a, both, target(want.as_mut_ptr()));
                let to = target(got.as_mut_ptr());
                multiply_rows(unit, &w.view(), 0..rows, &tiles, &outputs, to);
            }
            let same = want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{unit:?}: {encoding:?} [{rows}, {cols}] × {x_rows}");
        }
    }
}

#[test]
fn amx_tiles_equal_rows_to_the_bit() {
    check(Unit::Amx, Isa::Amx);
}

#[test]
fn vnni_tiles_equal_rows_to_the_bit() {
    check(Unit::Vnni, Isa::Avx512);
}
