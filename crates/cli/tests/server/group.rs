//! A control group with a memory limit, of version 1 or 2, whichever is mounted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A group that is removed when it is dropped. What runs in it must have ended by then.
pub(crate) struct Group {
    folder: PathBuf,
    is_v1: bool,
}

impl Group {
    /// A new group with this limit; without root or a memory controller, says so.
    pub(crate) fn new(limit_bytes: u64) -> Option<Group> {
        let made = Group::make(limit_bytes);
        if let Err(reason) = &made {
            println!("skipped: no memory limit can be set here: {reason}");
        }
        made.ok()
    }

    fn make(limit_bytes: u64) -> Result<Group, String> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let mounts =
            std::fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let (mount, is_v1) =
            mounts.lines().find_map(controller).ok_or("no memory controller is mounted")?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let folder = mount.join(format!("millstream-test-{}-{number}", std::process::id()));
        let said = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir(&folder).map_err(said)?;
        let group = Group { folder: folder.clone(), is_v1 };
        let file = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        std::fs::write(folder.join(file), limit_bytes.to_string()).map_err(said)?;
        Ok(group)
    }

    /// The same command, inside: it joins before it becomes the program.
    pub(crate) fn wrap(&self, program: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.folder.join("cgroup.procs")).arg(program);
        command
    }

    /// The most memory that it ever had, file cache and kernel's included.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let file = if self.is_v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        // Older kernels do not report it.
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// How often the kernel has ended a process for memory.
    pub(crate) fn kills(&self) -> u64 {
        let file = if self.is_v1 { "memory.oom_control" } else { "memory.events" };
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process takes a moment to be gone.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        println!("{} could not be removed", self.folder.display());
    }
}

/// Where the memory controller is mounted, by a line of `mountinfo`; and whether it is of version 1.
fn controller(line: &str) -> Option<(PathBuf, bool)> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let mount = Path::new(before.split(' ').nth(4)?);
    let is_listed = || {
        let listed = std::fs::read_to_string(mount.join("cgroup.subtree_control"));
        listed.is_ok_and(|list| list.split_whitespace().any(|name| name == "memory"))
    };
    match kind {
        "cgroup" if options.split(',').any(|option| option == "memory") => {
            Some((mount.to_owned(), true))
        }
        "cgroup2" if is_listed() => Some((mount.to_owned(), false)),
        _ => None,
    }
}
