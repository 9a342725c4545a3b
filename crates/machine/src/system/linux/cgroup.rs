//! Memory limits of control groups, versions 1 and 2.
//!
//! A process lives in one group of each hierarchy, and every group above it may have a limit too, so all
//! levels that this process can see are read. Which folder is ours comes from `/proc/self/cgroup` (our path
//! in the hierarchy) and `/proc/self/mountinfo` (which part of the hierarchy is mounted where); inside a
//! container those two may not fit together, and then the mount point itself is the closest known group.
//! This module only reads. It does not look at swap limits: swapped weights are as slow as weights on disk.

use std::path::{Path, PathBuf};

use super::procfs::{self, Mount};
use crate::memory::{Limit, LimitSource};

/// Version 1 writes "no limit" as the largest whole page below 2⁶³; no real limit comes near this.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Every memory limit on the way from this process's groups up to the visible root, as seen below `root`.
pub(super) fn limits(root: &Path) -> Vec<Limit> {
    let memberships = procfs::read(root, "/proc/self/cgroup").unwrap_or_default();
    let mounts = procfs::mounts(root);
    let mut limits = Vec::new();
    for membership in memberships.lines() {
        let Some((version, path)) = parse_membership(membership) else { continue };
        let mounted: Vec<_> =
            mounts.iter().filter(|mount| is_memory_hierarchy(mount, version)).collect();
        for folder in levels(root, &mounted, path) {
            limits.extend(match version {
                LimitSource::CgroupV1 => read_v1(&folder),
                _ => read_v2(&folder),
            });
        }
    }
    limits
}

/// `4:memory:/path` (version 1) or `0::/path` (version 2); other controllers are not our concern.
fn parse_membership(line: &str) -> Option<(LimitSource, &Path)> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if controllers.split(',').any(|controller| controller == "memory") {
        Some((LimitSource::CgroupV1, Path::new(path)))
    } else if id == "0" && controllers.is_empty() {
        Some((LimitSource::CgroupV2, Path::new(path)))
    } else {
        None
    }
}

fn is_memory_hierarchy(mount: &Mount, version: LimitSource) -> bool {
    match version {
        LimitSource::CgroupV1 => {
            mount.filesystem == "cgroup"
                && mount.super_options.split(',').any(|option| option == "memory")
        }
        _ => mount.filesystem == "cgroup2",
    }
}

/// The folders of our group and of all groups above it, innermost first.
fn levels(root: &Path, mounts: &[&Mount], group: &Path) -> Vec<PathBuf> {
    // A mount shows our group when its root is that group or one above. Of several such views the widest one
    // sees the most levels.
    let visible = mounts
        .iter()
        .filter_map(|mount| Some((mount, group.strip_prefix(&mount.root).ok()?)))
        // A path that climbs out of the namespace (`/../..`) names nothing we can open.
        .filter(|(_, relative)| !relative.components().any(|part| part.as_os_str() == ".."))
        .max_by_key(|(_, relative)| relative.components().count());
    let (mount, relative) = match visible {
        Some((mount, relative)) => (mount, relative),
        None => match mounts.first() {
            Some(mount) => (mount, Path::new("")),
            None => return Vec::new(),
        },
    };
    let top = procfs::below(root, &mount.mount_point);
    relative.ancestors().map(|level| top.join(level)).filter(|folder| folder.is_dir()).collect()
}

fn read_v2(folder: &Path) -> Option<Limit> {
    // Past `memory.high` the kernel slows the group to a crawl instead of killing it: a limit all the same.
    let bytes = ["memory.max", "memory.high"]
        .into_iter()
        .filter_map(|file| read_number(&folder.join(file)))
        .min()?;
    let charged_bytes = read_number(&folder.join("memory.current")).unwrap_or(0);
    let statistics = procfs::read_trimmed(&folder.join("memory.stat")).unwrap_or_default();
    let reclaimable = ["active_file", "inactive_file", "slab_reclaimable"];
    let used_bytes = unreclaimable(charged_bytes, &statistics, reclaimable);
    let file_bytes = procfs::number_line(&statistics, "file").unwrap_or(0);
    let (source, path) = (LimitSource::CgroupV2, folder.to_owned());
    Some(Limit { bytes, used_bytes, file_bytes, source, path })
}

fn read_v1(folder: &Path) -> Option<Limit> {
    let statistics = procfs::read_trimmed(&folder.join("memory.stat")).unwrap_or_default();
    // The second number covers groups above us that a container does not show.
    let bytes = [
        read_number(&folder.join("memory.limit_in_bytes")),
        procfs::number_line(&statistics, "hierarchical_memory_limit"),
    ];
    let bytes = bytes.into_iter().flatten().filter(|&bytes| bytes < UNLIMITED_BYTES).min()?;
    let charged_bytes = read_number(&folder.join("memory.usage_in_bytes")).unwrap_or(0);
    let reclaimable = ["total_active_file", "total_inactive_file"];
    let used_bytes = unreclaimable(charged_bytes, &statistics, reclaimable);
    let file_bytes = procfs::number_line(&statistics, "total_cache").unwrap_or(0);
    let (source, path) = (LimitSource::CgroupV1, folder.to_owned());
    Some(Limit { bytes, used_bytes, file_bytes, source, path })
}

/// The number in a one-line file; `None` for `max` or a missing file (a root group has none).
fn read_number(path: &Path) -> Option<u64> {
    procfs::read_trimmed(path)?.parse().ok()
}

fn unreclaimable<const N: usize>(charged: u64, statistics: &str, reclaimable: [&str; N]) -> u64 {
    let reclaimable = reclaimable.iter().filter_map(|key| procfs::number_line(statistics, key));
    charged.saturating_sub(reclaimable.sum())
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
