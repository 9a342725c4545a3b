//! The boundary around the `tokenizers` crate: a panic in there is an error out here, and prints nothing.
//!
//! The crate answers some files with a panic where it means an error, at load or when a certain text comes.
//! What a panic leaves behind in its caches is whole: they are filled under locks that it only tries.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside the boundary.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// What `work` gives, or the words of its panic.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            // A thread that ends has no cells any more, and is not inside.
            if !INSIDE.try_with(Cell::get).unwrap_or(false) {
                others(panic);
            }
        }));
    });
    let was_inside = INSIDE.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(was_inside);
    outcome.map_err(|payload| {
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| payload.downcast_ref::<&str>().copied());
        words.unwrap_or("it gave up without a word").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_words() {
        assert_eq!(guarded(|| 3), Ok(3));
        assert_eq!(guarded(|| panic!("a word")), Err::<(), _>("a word".to_owned()));
        let number = 7;
        assert_eq!(guarded(|| panic!("{number}")), Err::<(), _>("7".to_owned()));
        assert!(!INSIDE.get());
        // A boundary within one does not end it.
        let inner = guarded(|| {
            let words = guarded(|| panic!("inner"));
            (words, INSIDE.get())
        });
        assert_eq!(inner, Ok((Err::<(), _>("inner".to_owned()), true)));
    }
}
