//! How large the repository may grow: a clone stays quick, a tree fits where it has to travel, and test models are
//! kept as the seeds they are made from.

use super::Finding;

const MIB: u64 = 1 << 20;

/// Folder, most bytes in it.
const LIMITS: [(&str, u64); 2] = [("", 60 * MIB), ("testdata/models/", 8 * MIB)];

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
                "{name}: {:.1} MiB, more than {} MiB; its largest file is {largest}",
                bytes as f64 / MIB as f64,
                limit / MIB,
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
        check_sizes(&[("a", 59 * MIB), ("testdata/models/b", MIB)], &[]);
        check_sizes(
            &[("a", 40 * MIB), ("b", 21 * MIB)],
            &["the repository: 61.0 MiB, more than 60 MiB; its largest file is a"],
        );
        check_sizes(
            &[("a", 30 * MIB), ("testdata/models/b", 9 * MIB)],
            &["testdata/models/: 9.0 MiB, more than 8 MiB; its largest file is testdata/models/b"],
        );
    }
}
