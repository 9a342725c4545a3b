//! Asking memory for what will be wanted soon. Hardware guesses what follows in memory; what a thread does next is often
//! elsewhere: the state of another sequence, another page.

/// Bytes of a cache line, or half of one.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the cache line of an address, which may be any.
#[inline(always)]
pub(crate) fn line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect but speed, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same for `count` values.
#[inline(always)]
pub(crate) fn lines<T>(at: *const T, count: usize) {
    let step = const { LINE_BYTES / size_of::<T>() };
    for first in (0..count).step_by(step) {
        line(at.wrapping_add(first));
    }
}
