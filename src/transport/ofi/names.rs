//! Names of endpoints in shared memory, which say whose they are, so that what a killed process has
//! left there can be removed.
//!
//! libfabric's `shm` has a file in /dev/shm for each endpoint, which stays when its process is
//! killed. Its own names say the process alone, and those of containers that share /dev/shm meet.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "linerate-ofi";

/// Numbers endpoints of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A process, so that no other one at any time since the boot is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    /// Its PID namespace.
    namespace: u64,
    process: u32,
    /// When it started, in ticks.
    start: u64,
}

/// A name for the next endpoint of this process; none where /proc does not tell what it needs.
pub fn new_name() -> Option<String> {
    let own = own()?;
    // Relaxed: only the number matters.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Some(format!("{}-{number:x}", emit(own)))
}

/// Removes the files of this PID namespace's processes that are gone.
pub fn remove_left() {
    let Some(own) = own() else {
        return;
    };
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(owner) = parse(&name) else {
            continue;
        };
        let is_gone = owner.namespace == own.namespace
            && start_of(&owner.process.to_string()) != Some(owner.start);
        if is_gone {
            // Others' files stay, and another start may have removed it meanwhile.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn own() -> Option<Owner> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let text = link.to_str()?;
    let inode = text.strip_prefix("pid:[")?.strip_suffix(']')?;
    let process = std::process::id();
    Some(Owner {
        namespace: inode.parse().ok()?,
        process,
        start: start_of(&process.to_string())?,
    })
}

/// When a process started; none: there is none, or it has ended and nobody has asked how.
fn start_of(process: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat")).ok()?;
    // The name of the program, in parentheses, may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let is_there = !["Z", "X"].contains(&state);
    fields.nth(18).filter(|_| is_there)?.parse().ok()
}

fn emit(owner: Owner) -> String {
    let Owner {
        namespace,
        process,
        start,
    } = owner;
    format!("{PREFIX}-{namespace:x}-{process:x}-{start:x}")
}

/// Whose file this is; none: not one of ours. libfabric writes numbers of its own behind the name.
fn parse(file: &str) -> Option<Owner> {
    let mut parts = file.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    Some(Owner {
        namespace: number()?,
        process: u32::try_from(number()?).ok()?,
        start: number()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        let own = own().unwrap();
        let (one, two) = (new_name().unwrap(), new_name().unwrap());
        assert_ne!(one, two);
        assert_eq!(parse(&format!("{one}:0:0")), Some(own));
        for other in [
            "1234:0:0",
            "linerate-ofi",
            "linerate-ofi-x-1-1-0",
            "linerate-1-2-3",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn files_of_processes_that_are_gone_are_removed_and_no_others() {
        let own = own().unwrap();
        let file =
            |owner, number: u64| Path::new(FOLDER).join(format!("{}-t{number}:0:0", emit(owner)));
        let other_start = Owner {
            start: own.start + 1,
            ..own
        };
        let other_namespace = Owner {
            namespace: 1,
            ..other_start
        };
        let files = [file(own, 1), file(other_start, 2), file(other_namespace, 3)];
        files
            .iter()
            .for_each(|file| std::fs::write(file, "x").unwrap());
        remove_left();
        let are_left = files.each_ref().map(|file| file.exists());
        files
            .iter()
            .for_each(|file| drop(std::fs::remove_file(file)));
        assert_eq!(are_left, [true, false, true]);
    }
}
