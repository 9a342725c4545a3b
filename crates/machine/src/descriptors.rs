//! How many files and connections this program may have open.
//!
//! Systems give a program few of them unless it requests more: 1,024 on most Linux systems, 256 on macOS.

use crate::system;

/// Files and connections that may be open, after `wanted` of them have been requested; `None` where there is no limit.
/// It is never less than before, and less than `wanted` where the system grants no more.
pub fn ask_for(wanted: u64) -> Option<u64> {
    let now = system::open_file_limit()?;
    let most = system::most_open_files()?;
    if now < wanted && now < most {
        system::set_open_file_limit(wanted.min(most));
    }
    system::open_file_limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_grants_is_taken() {
        let Some(before) = system::open_file_limit() else { return };
        assert_eq!(ask_for(1), Some(before));
        let most = system::most_open_files().unwrap();
        let wanted = (before + 1).min(most);
        assert!(ask_for(wanted).unwrap() >= wanted);
    }
}
