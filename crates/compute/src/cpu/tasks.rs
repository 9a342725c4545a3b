//! How the rows of weights are cut into tasks.
//!
//! A task begins with lines that have not been requested from memory yet, so few and large ones are read faster; the last ones
//! decide how long threads wait for each other. So tasks begin large and end small.

use std::ops::Range;

/// Tasks that each thread would take of what is left, if all were as large as the next one.
const LEFT_FOR_EACH: usize = 4;
/// Work of a task at most, and that below which it is mostly its start.
pub(crate) const LARGEST: usize = 384 << 10;
const SMALLEST: usize = 48 << 10;
/// Work of each of many even tasks.
const EVEN: usize = 800 << 10;
/// Weight rows of a task are a multiple of this, but for the last: their products fill lines of the output, and kernels for
/// narrow rows take so many at a time.
const ROWS: usize = 16;
/// Activation rows whose products take as long as reading the weights does.
const READING_ROWS: usize = 2;

/// Rows of weights that are cut into tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    rows: usize,
    /// A byte that is read for one activation row is one.
    row_work: usize,
    unit: usize,
}

impl Piece {
    /// So many rows that have so many bytes, to be multiplied with some activation rows.
    pub(crate) fn new(rows: usize, bytes: usize, x_rows: usize) -> Piece {
        let row_work = bytes / rows.max(1) * (x_rows + READING_ROWS) / (1 + READING_ROWS);
        Piece { rows, row_work, unit: ROWS }
    }

    /// The same, with tasks that begin at multiples of `unit` rows: those of tiles.
    #[cfg(any(target_arch = "x86_64", test))]
    pub(crate) fn in_units(self, unit: usize) -> Piece {
        Piece { unit, ..self }
    }
}

/// Appends the tasks of `pieces` for so many threads, none with much more work than `largest`: the piece and its rows.
pub(crate) fn cut(
    pieces: &[Piece],
    threads: usize,
    largest: usize,
    tasks: &mut Vec<(usize, Range<usize>)>,
) {
    let mut left: usize = pieces.iter().map(|piece| piece.rows * piece.row_work).sum();
    for (index, &Piece { rows, row_work, unit }) in pieces.iter().enumerate() {
        let mut start = 0;
        while start < rows {
            let work = (left / (LEFT_FOR_EACH * threads)).max(SMALLEST).min(largest);
            let step = (work / row_work.max(1)).max(1).next_multiple_of(unit);
            let end = rows.min(start + step);
            tasks.push((index, start..end));
            left -= (end - start) * row_work;
            start = end;
        }
    }
}

/// The same in tasks of about the same work, a multiple of `threads` in all unless rows do not divide so.
pub(crate) fn cut_evenly(pieces: &[Piece], threads: usize, tasks: &mut Vec<(usize, Range<usize>)>) {
    let all: usize = pieces.iter().map(|piece| piece.rows * piece.row_work).sum();
    let work = all.div_ceil(all.div_ceil(EVEN).max(1).next_multiple_of(threads));
    for (index, &Piece { rows, row_work, unit }) in pieces.iter().enumerate() {
        let count = (rows * row_work).div_ceil(work.max(1)).max(1);
        let step = rows.div_ceil(count).next_multiple_of(unit).max(1);
        tasks.extend((0..rows).step_by(step).map(|start| (index, start..rows.min(start + step))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_task_and_the_last_tasks_are_small() {
        let pieces = [
            Piece::new(4096, 4096 * 1280, 1),
            Piece::new(0, 0, 1),
            Piece::new(515, 515 * 640, 4).in_units(32),
            Piece::new(33, 33 << 20, 1).in_units(2),
        ];
        for threads in [1, 2, 16] {
            let mut tasks = Vec::new();
            cut(&pieces, threads, LARGEST, &mut tasks);
            for (index, piece) in pieces.iter().enumerate() {
                let mut next = 0;
                for (_, range) in tasks.iter().filter(|task| task.0 == index) {
                    assert!(range.start == next && !range.is_empty());
                    assert!(range.start.is_multiple_of(piece.unit));
                    next = range.end;
                }
                assert_eq!(next, piece.rows);
            }
            for (index, range) in &tasks {
                let Piece { row_work, unit, .. } = pieces[*index];
                let rows = (LARGEST / row_work).max(1).next_multiple_of(unit);
                assert!(range.len() <= rows, "{range:?} of {index}");
            }
        }
        let mut tasks = Vec::new();
        cut(&pieces[..1], 2, LARGEST, &mut tasks);
        let sizes: Vec<usize> = tasks.iter().map(|task| task.1.len()).collect();
        assert!(sizes[0] > 6 * sizes[sizes.len() - 2], "{sizes:?}");
        assert!(sizes.windows(2).all(|pair| pair[0] >= pair[1]), "{sizes:?}");
    }

    #[test]
    fn even_tasks_have_every_row_once_and_about_the_same_work() {
        let pieces = [Piece::new(8192, 8192 * 1152, 5), Piece::new(32, 32 * 1152, 5)];
        for threads in [1, 2, 3] {
            let mut tasks = Vec::new();
            cut_evenly(&pieces, threads, &mut tasks);
            for (index, piece) in pieces.iter().enumerate() {
                let own = || tasks.iter().filter(|task| task.0 == index).map(|task| &task.1);
                assert_eq!(own().map(|range| range.len()).sum::<usize>(), piece.rows);
                assert!(own().zip(own().skip(1)).all(|(a, b)| a.end == b.start));
            }
            let large: Vec<usize> = tasks.iter().map(|task| task.1.len()).collect();
            let (largest, least) = (large[0], large[large.len() - 3]);
            assert!(least + 16 >= largest && largest * pieces[0].row_work <= EVEN + (64 << 10));
        }
        let mut tasks = Vec::new();
        cut_evenly(&[Piece::new(0, 0, 3)], 2, &mut tasks);
        assert!(tasks.is_empty());
    }

    #[test]
    fn a_small_weight_is_several_tasks_where_many_rows_are_multiplied() {
        for (x_rows, expect) in [(1, 1), (16, 4)] {
            let mut tasks = Vec::new();
            cut(&[Piece::new(256, 256 * 160, x_rows)], 2, LARGEST, &mut tasks);
            assert_eq!(tasks.len(), expect, "{x_rows} rows");
        }
    }
}
