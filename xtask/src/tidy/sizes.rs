//! How large the repository may grow: a clone stays quick, and test models stay tiny.

use super::Finding;

const MEGABYTE: u64 = 1_000_000;

/// Folder, most bytes in it.
const LIMITS: [(&str, u64); 2] = [("", 100 * MEGABYTE), ("testdata/models/", 40 * MEGABYTE)];

/// Checks paths and sizes in bytes.
pub(super) fn check(files: &[(&str, u64)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, limit) in LIMITS {
        let inside = || files.iter().filter(|(path, _)| path.starts_with(folder));
        let bytes: u64 = inside().map(|(_, size)| size).sum();
        if bytes > limit {
            let name = if folder.is_empty() { "the repository" } else { folder };
            let largest = inside().max_by_key(|(_, size)| size).map_or("", |(path, _)| path);
            findings.push(Finding::Error(format!(
                "{name}: {:.1} MB, more than {} MB; its largest file is {largest}",
                bytes as f64 / MEGABYTE as f64,
                limit / MEGABYTE,
            )));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_sizes(files: &[(&str, u64)], expect: &[&str]) {
        let expect: Vec<Finding> =
            expect.iter().map(|text| Finding::Error((*text).to_owned())).collect();
        assert_eq!(check(files), expect);
    }

    #[test]
    fn each_limit_bites_on_its_own() {
        check_sizes(&[("a", 99 * MEGABYTE), ("testdata/models/b", MEGABYTE)], &[]);
        check_sizes(
            &[("a", 60 * MEGABYTE), ("b", 41 * MEGABYTE)],
            &["the repository: 101.0 MB, more than 100 MB; its largest file is a"],
        );
        check_sizes(
            &[("a", 30 * MEGABYTE), ("testdata/models/b", 41 * MEGABYTE)],
            &["testdata/models/: 41.0 MB, more than 40 MB; its largest file is testdata/models/b"],
        );
    }
}
