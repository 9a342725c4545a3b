//! Causal depthwise convolution with SiLU: the short filter in front of a gated delta layer.
//!
//! A run of rows of one sequence sees the last `taps - 1` raw rows before it as its state. Channels are
//! independent, so tasks may take any range of them: pass the columns of every view.

use super::lanes::{silu, versions};
use crate::memory::{Rows, RowsMut};

versions! {
    /// `out[r][c] = silu(Σ_j weight[j][c] * u[r - taps + 1 + j][c])`, the sum in tap order.
    ///
    /// `weight` is `[taps][channels]` (transposed at load), `state` the `taps - 1` rows before the run,
    /// oldest first, `u` and `out` one row a token.
    pub(crate) fn conv_silu(u: Rows<'_>, state: Rows<'_>, weight: Rows<'_>, taps: usize, out: &mut RowsMut<'_>)
        = conv_silu_body
}

#[inline(always)]
fn conv_silu_body(
    u: Rows<'_>,
    state: Rows<'_>,
    weight: Rows<'_>,
    taps: usize,
    out: &mut RowsMut<'_>,
) {
    for r in 0..out.count() {
        if taps == 4 {
            filter_row::<4>(u, state, weight, r, out.row(r));
        } else {
            let y = out.row(r);
            y.fill(0.0);
            for j in 0..taps {
                let x = virtual_row(u, state, taps - 1, r + j);
                for ((y, &w), &x) in y.iter_mut().zip(weight.row(j)).zip(x) {
                    *y = w.mul_add(x, *y);
                }
            }
            for y in y {
                *y = silu(*y);
            }
        }
    }
}

/// All taps of one row in one pass.
#[inline(always)]
fn filter_row<const TAPS: usize>(
    u: Rows<'_>,
    state: Rows<'_>,
    weight: Rows<'_>,
    r: usize,
    out: &mut [f32],
) {
    let n = out.len();
    let x: [&[f32]; TAPS] = std::array::from_fn(|j| &virtual_row(u, state, TAPS - 1, r + j)[..n]);
    let w: [&[f32]; TAPS] = std::array::from_fn(|j| &weight.row(j)[..n]);
    for c in 0..n {
        let mut y = 0.0;
        for j in 0..TAPS {
            y = w[j][c].mul_add(x[j][c], y);
        }
        out[c] = silu(y);
    }
}

/// Row `index` of the state followed by the run.
#[inline(always)]
fn virtual_row<'a>(u: Rows<'a>, state: Rows<'a>, state_rows: usize, index: usize) -> &'a [f32] {
    if index < state_rows { state.row(index) } else { u.row(index - state_rows) }
}

/// Writes the state after the first `rows` rows of the run: the last `taps - 1` raw rows seen.
///
/// `from` is the state before the run, `None` if `to` holds it already.
pub(crate) fn advance_conv_state(
    from: Option<Rows<'_>>,
    u: Rows<'_>,
    rows: usize,
    to: &mut RowsMut<'_>,
) {
    let state_rows = to.count();
    // In place, the source lies behind the destination by `rows`, so ascending order reads before it overwrites.
    for i in 0..state_rows {
        let index = rows + i;
        if index >= state_rows {
            to.row(i).copy_from_slice(u.row(index - state_rows));
        } else if let Some(from) = from {
            to.row(i).copy_from_slice(from.row(index));
        } else if rows > 0 {
            to.copy_row(index, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::activation::testing::{Random, assert_close, assert_same_bits, isas};
    use super::*;

    fn reference(u: &[f32], weight: &[f32], channels: usize, taps: usize) -> Vec<f64> {
        // `u` includes the state rows in front.
        let rows = u.len() / channels + 1 - taps;
        let mut out = Vec::new();
        for r in 0..rows {
            for c in 0..channels {
                let y: f64 = (0..taps)
                    .map(|j| {
                        f64::from(weight[j * channels + c]) * f64::from(u[(r + j) * channels + c])
                    })
                    .sum();
                out.push(y / (1.0 + (-y).exp()));
            }
        }
        out
    }

    #[test]
    fn runs_of_any_cut_and_channel_range_give_the_same_bits() {
        let mut random = Random::new(13);
        for (taps, channels) in [(4, 70), (4, 128), (3, 33), (2, 16)] {
            let (rows, before) = (11, taps - 1);
            let all = random.normals((before + rows) * channels);
            let weight = random.normals(taps * channels);
            let want = reference(&all, &weight, channels, taps);
            let mut first = None;
            for isa in isas() {
                for cut in [rows, 1, 2, 3, 5] {
                    let mut out = vec![0.0; rows * channels];
                    let mut state = all[..before * channels].to_vec();
                    for start in (0..rows).step_by(cut) {
                        let count = cut.min(rows - start);
                        let u = Rows::new(&all[(before + start) * channels..], channels, channels);
                        for part in [0..16, 16..channels] {
                            let part_out = &mut out[start * channels + part.start..];
                            let len = (count - 1) * channels + part.len();
                            let mut part_out = RowsMut::new(
                                &mut part_out[..if part.is_empty() { 0 } else { len }],
                                channels,
                                part.len(),
                            );
                            conv_silu(
                                isa,
                                u.columns(part.clone()),
                                Rows::new(&state, channels, channels).columns(part.clone()),
                                Rows::new(&weight, channels, channels).columns(part.clone()),
                                taps,
                                &mut part_out,
                            );
                        }
                        let old = state.clone();
                        let mut to = RowsMut::new(&mut state, channels, channels);
                        // Alternate between in place and from another slot.
                        if start % 2 == 0 {
                            advance_conv_state(None, u, count, &mut to);
                        } else {
                            for i in 0..before {
                                to.row(i).fill(f32::NAN);
                            }
                            let from = Rows::new(&old, channels, channels);
                            advance_conv_state(Some(from), u, count, &mut to);
                        }
                    }
                    assert_eq!(state, all[rows * channels..]);
                    assert_close(&out, &want, 1e-6);
                    assert_same_bits(&out, first.get_or_insert(out.clone()));
                }
            }
        }
    }

    #[test]
    fn no_rows_leave_the_state_alone() {
        let mut state = [1.0, 2.0, 3.0];
        let none = Rows::new(&[], 1, 1);
        advance_conv_state(None, none, 0, &mut RowsMut::new(&mut state, 1, 1));
        assert_eq!(state, [1.0, 2.0, 3.0]);
    }
}
