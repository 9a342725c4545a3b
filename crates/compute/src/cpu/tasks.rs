//! How the rows of weights are cut into tasks.
//!
//! A task begins with lines that nobody has asked memory for yet, so few and large ones are read faster; the last ones
//! decide how long threads wait for each other. So tasks begin large and end small.

use std::ops::Range;

/// Tasks that each thread would take of what is left, if all were as large as the next one.
const LEFT_FOR_EACH: usize = 4;
/// Below this a task is mostly its start.
const SMALLEST_BYTES: usize = 48 << 10;

/// Rows that are cut into tasks, which begin at multiples of `unit` rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
    pub(crate) unit: usize,
}

/// Appends the tasks of `pieces` for so many threads, none with more than about `largest` bytes: the piece and its rows.
pub(crate) fn cut(
    pieces: &[Piece],
    threads: usize,
    largest: usize,
    tasks: &mut Vec<(usize, Range<usize>)>,
) {
    let mut left: usize = pieces.iter().map(|piece| piece.rows * piece.row_bytes).sum();
    for (index, &Piece { rows, row_bytes, unit }) in pieces.iter().enumerate() {
        let mut start = 0;
        while start < rows {
            let bytes = (left / (LEFT_FOR_EACH * threads)).max(SMALLEST_BYTES).min(largest);
            let step = (bytes / row_bytes.max(1)).max(1).next_multiple_of(unit);
            let end = rows.min(start + step);
            tasks.push((index, start..end));
            left -= (end - start) * row_bytes;
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_task_and_the_last_tasks_are_small() {
        let pieces = [
            Piece { rows: 4096, row_bytes: 1280, unit: 1 },
            Piece { rows: 0, row_bytes: 1280, unit: 1 },
            Piece { rows: 515, row_bytes: 640, unit: 32 },
            Piece { rows: 3, row_bytes: 1 << 20, unit: 2 },
        ];
        for threads in [1, 2, 16] {
            let mut tasks = Vec::new();
            cut(&pieces, threads, 384 << 10, &mut tasks);
            for (index, piece) in pieces.iter().enumerate() {
                let mut next = 0;
                for (_, range) in tasks.iter().filter(|task| task.0 == index) {
                    assert!(range.start == next && !range.is_empty());
                    assert!(range.start.is_multiple_of(piece.unit));
                    next = range.end;
                }
                assert_eq!(next, piece.rows);
            }
            let bytes = |task: &(usize, Range<usize>)| task.1.len() * pieces[task.0].row_bytes;
            assert!(tasks[..tasks.len() - 2].iter().all(|task| bytes(task) <= 384 << 10));
        }
        let mut tasks = Vec::new();
        cut(&pieces[..1], 2, 384 << 10, &mut tasks);
        let sizes: Vec<usize> = tasks.iter().map(|task| task.1.len()).collect();
        assert!(sizes[0] > 6 * sizes[sizes.len() - 2], "{sizes:?}");
        assert!(sizes.windows(2).all(|pair| pair[0] >= pair[1]), "{sizes:?}");
    }
}
