//! Ranks as processes that join by an exchange of the test's own, a folder.

use super::job::Job;
use super::{check_all_say, check_good};
use linerate::options::Exchange;
use linerate::{Communicator, Config, ReduceOp};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Names the folder of a rank that joins by one.
const FOLDER: &str = "LINERATE_TEST_FOLDER";

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A folder with a file for each key.
struct Folder(PathBuf);

impl Folder {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "%"))
    }
}

impl Exchange for Folder {
    fn put(&self, key: &str, value: &[u8], _: Duration) -> Fallible<()> {
        let beside = self.path(&format!("{key} of {}", std::process::id()));
        std::fs::write(&beside, value)?;
        Ok(std::fs::rename(beside, self.path(key))?)
    }

    fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
        let until = Instant::now() + limit;
        loop {
            match std::fs::read(self.path(key)) {
                Ok(value) => return Ok(Some(value)),
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                Err(_) if Instant::now() >= until => return Ok(None),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// The world of a rank that joins by a folder: made by the folder, and used once, as is a sibling
/// of the ranks with odd numbers.
pub fn joined() -> Option<linerate::Result<Communicator>> {
    let folder = std::env::var_os(FOLDER)?;
    Some(join(&Folder(folder.into())))
}

fn join(folder: &Folder) -> linerate::Result<Communicator> {
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    let (rank, ranks) = (number("RANK"), number("WORLD_SIZE"));
    let world = Communicator::join_by(rank, ranks, "world", folder, Config::from_env()?)?;
    let odd: Vec<u32> = (0..ranks).filter(|member| member % 2 == 1).collect();
    if rank % 2 == 1 {
        let part = world.sibling(&odd, "odd", folder)?;
        let mut data = vec![1.0f32; 100_000];
        part.all_reduce(&mut data, ReduceOp::Sum)?;
        assert_eq!(data, vec![odd.len() as f32; 100_000]);
    }
    Ok(world)
}

fn fresh(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn by(folder: &Path, ranks: u32) -> Job {
    Job::new(ranks).with(FOLDER, folder.to_str().unwrap())
}

#[test]
fn processes_join_by_their_own_exchange_and_make_siblings() {
    for (transport, is_secret) in [("auto", false), ("tcp", false), ("tcp", true)] {
        let folder = fresh("exchange-good");
        let mut job = by(&folder, 7).with("LINERATE_TRANSPORT", transport);
        if is_secret {
            job = job.with("LINERATE_SECRET", "a secret of this test");
        }
        check_good(&job.run());
        let files = std::fs::read_dir(&folder).unwrap();
        let read = |file: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(file.unwrap().path())
        };
        let values: Vec<String> = files.map(|file| read(file).unwrap()).collect();
        assert_eq!(values, ["linerate-1 over"; 2]);
    }
}

#[test]
fn a_process_that_cannot_take_part_is_named_to_all_by_the_exchange() {
    for (name, value) in [
        ("LINERATE_IFNAME", "nowhere"),
        ("LINERATE_TRANSPORT", "pigeon"),
    ] {
        let folder = fresh("exchange-declines");
        let outcomes = by(&folder, 4).with_rank(2, name, value).run();
        check_all_say(&outcomes, &[value]);
    }
}

#[test]
fn a_process_that_never_comes_is_named_to_all() {
    let folder = fresh("exchange-absent");
    let job = by(&folder, 3).without(1).with("LINERATE_TIMEOUT", "2");
    check_all_say(&job.run(), &["ranks [1] did not come in time"]);
    let folder = fresh("exchange-headless");
    let job = by(&folder, 3).without(0).with("LINERATE_TIMEOUT", "2");
    check_all_say(&job.run(), &["is rank 0 of 'world' started"]);
}

#[test]
fn a_process_that_is_killed_while_it_waits_is_named_to_all() {
    let folder = fresh("exchange-killed");
    let mut running = by(&folder, 4).without(3).start();
    running.wait_until_met(2);
    running.kill(2);
    let outcomes = running.end();
    check_all_say(
        &outcomes[..2],
        &["rank 2 failed while others were waited for"],
    );
}

#[test]
fn a_folder_that_is_not_there_is_the_error_of_every_rank() {
    let job = by(Path::new("/nonexistent/folder"), 2).with("LINERATE_TIMEOUT", "2");
    check_all_say(&job.run()[..1], &["rank 0 could not put", "No such file"]);
}
