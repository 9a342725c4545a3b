//! Tests of `moe.rs`: who wants which expert, where rows are drafted. `moe/reference_tests.rs` has what the op
//! computes.

use super::*;

/// Two experts for each of five rows.
const ROUTING: [[u32; 2]; 5] = [[7, 2], [2, 5], [9, 5], [0, 9], [9, 5]];

/// The first and the fourth row are certain; the others are drafted after them.
const DEPTHS: [u8; 5] = [0, 1, 2, 0, 1];

fn routing() -> RoutingTable {
    RoutingTable { ids: ROUTING.concat(), weights: Vec::new() }
}

#[test]
fn an_expert_is_on_trial_if_no_certain_row_wants_it() {
    let mut scratch = Scratch { depths: DEPTHS.to_vec(), ..Scratch::default() };
    group(&mut scratch, &routing().ids, 2);
    let trial = |rows, depth| Trial { rows, depth };
    for (id, expect) in [
        (0, trial(0, 0)),
        (2, trial(0, 0)),
        (5, trial(0b10110, 1)),
        (7, trial(0, 0)),
        (9, trial(0, 0)),
    ] {
        assert_eq!(scratch.trial_of(id, 2), expect, "expert {id}");
    }
    // Rows that failed want nothing.
    mark_lost(&mut scratch, &[failure(3), failure(1)], 5);
    group(&mut scratch, &routing().ids, 2);
    assert_eq!(scratch.trial_of(9, 2), trial(0b10100, 1));
    assert_eq!(scratch.trial_of(5, 2), trial(0b10100, 1));
    assert!(!scratch.wanted.contains(&0));
}

fn failure(row: usize) -> RowFailure {
    let source = Box::new(std::io::Error::other("gone"));
    RowFailure { row, error: Arc::new(Error::Expert { layer: 0, expert: 0, source }) }
}

#[test]
fn guesses_for_certain_rows_come_first() {
    #[track_caller]
    fn check(depths: &[u8], expect: &[u32]) {
        let mut scratch = Scratch { depths: depths.to_vec(), ..Scratch::default() };
        assert_eq!(most_wanted(&mut scratch, &routing(), 2), expect, "{depths:?}");
    }
    check(&[], &[5, 9, 2, 0, 7]);
    check(&[0; 5], &[5, 9, 2, 0, 7]);
    check(&DEPTHS, &[9, 2, 0, 7, 5]);
    check(&[0, 1, 2, 3, 4], &[2, 7, 5, 9, 0]);
    // A guess for some of the rows does not say which they are.
    check(&[0, 1, 2, 3, 4, 5], &[5, 9, 2, 0, 7]);
}
