//! Ranks as processes: starting them, where each of them is, how they end.

use linerate::{Communicator, Rank};
use linerate_children::{Child, HANG, end, fresh_job, rank, within};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Processes of one job, and the file in which each rank says where it is: one byte per rank.
pub struct Job {
    children: Vec<Child>,
    /// Those whose rank another process has now.
    replaced: Vec<Child>,
    pub name: String,
    places: PathBuf,
}

/// How to start a job.
pub struct Start<'a> {
    pub role: &'a str,
    pub ranks: u32,
    pub environment: &'a [(&'a str, String)],
    /// Of the shell that becomes a rank, such as `ulimit -n 20;`.
    pub shell: &'a str,
    pub user: Option<u32>,
    pub name: Option<String>,
}

impl Start<'_> {
    pub fn new(role: &str, ranks: u32) -> Start<'_> {
        Start {
            role,
            ranks,
            environment: &[],
            shell: "",
            user: None,
            name: None,
        }
    }

    pub fn spawn(&self) -> Job {
        let unique = fresh_job();
        let places = std::env::temp_dir().join(format!("linerate-{unique}"));
        std::fs::write(&places, vec![b'-'; self.ranks as usize]).unwrap();
        let name = self.name.clone().unwrap_or(unique);
        let mut job = Job {
            children: Vec::new(),
            replaced: Vec::new(),
            name,
            places,
        };
        job.children = (0..self.ranks).map(|rank| self.child(rank, &job)).collect();
        job
    }

    /// Starts a process in place of one of a job, which has been told to end.
    pub fn spawn_instead(&self, job: &mut Job, rank: Rank) {
        let child = self.child(rank, job);
        let old = std::mem::replace(&mut job.children[rank as usize], child);
        job.replaced.push(old);
    }

    fn child(&self, index: Rank, job: &Job) -> Child {
        // A shell's background jobs ignore interruptions, and so does what they start.
        let start = "exec env --default-signal=INT \"$0\" \"$@\"";
        let script = format!("{} {start}", self.shell);
        let mut command = within(&["sh", "-c", &script], &rank(self.role, index, self.ranks));
        command
            .env("LINERATE_TEST_PLACES", &job.places)
            .env("LINERATE_JOB", &job.name)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        Child::start(&mut command)
    }
}

impl Job {
    pub fn pid(&self, rank: Rank) -> u32 {
        self.children[rank as usize].id()
    }

    pub fn signal(&self, rank: Rank, signal: Signal) {
        self.children[rank as usize].signal(signal);
    }

    /// Where each rank was when it last said so.
    pub fn places(&self) -> Vec<u8> {
        std::fs::read(&self.places).unwrap()
    }

    /// Waits until `is_there` holds of the places; fails with what the ranks printed if that hangs.
    pub fn wait_for(&self, what: &str, is_there: impl Fn(&[u8]) -> bool) {
        let until = Instant::now() + HANG;
        while !is_there(&self.places()) {
            if Instant::now() > until {
                let places = String::from_utf8_lossy(&self.places()).into_owned();
                let told: Vec<String> = self.children.iter().map(Child::told).collect();
                panic!("{what} did not happen; places {places}\n{told:#?}");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until each of these ranks has said this.
    pub fn wait_for_said(&mut self, ranks: &[Rank], word: &str) {
        for &rank in ranks {
            self.children[rank as usize].wait_line(word);
        }
    }

    pub fn end(self) -> Vec<Output> {
        self.end_with_places().0
    }

    pub fn end_with_places(mut self) -> (Vec<Output>, Vec<u8>) {
        let outputs = end(std::mem::take(&mut self.children));
        end(std::mem::take(&mut self.replaced));
        self.check_nothing_is_left();
        (outputs, self.places())
    }

    /// As [`Self::end`], where another job may have the same name.
    pub fn end_among_others(mut self) -> Vec<Output> {
        end(std::mem::take(&mut self.children))
    }

    fn check_nothing_is_left(&self) {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        assert!(
            !sockets.contains(&self.name),
            "a socket of {} is left",
            self.name
        );
        let files = std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten();
        let left: Vec<_> = files
            .map(|file| file.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("linerate"))
            .collect();
        assert!(left.is_empty(), "{left:?} in /dev/shm");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.places);
        let _ = std::fs::remove_file(self.note());
    }
}

/// In a rank: joins with the environment's settings.
pub fn join() -> linerate::Result<Communicator> {
    Communicator::from_env()
}

/// In a rank: says where it is.
pub struct Place {
    file: File,
    rank: u64,
}

impl Place {
    pub fn open() -> Place {
        let path = std::env::var("LINERATE_TEST_PLACES").unwrap();
        Place {
            file: File::options().write(true).read(true).open(path).unwrap(),
            rank: std::env::var("RANK").unwrap().parse().unwrap(),
        }
    }

    pub fn set(&self, place: u8) {
        self.file.write_all_at(&[place], self.rank).unwrap();
    }

    /// Whether this rank's place is this one.
    pub fn is(&self, place: u8) -> bool {
        let mut now = [0];
        self.file.read_exact_at(&mut now, self.rank).unwrap();
        now[0] == place
    }

    /// [`Job::note`], in a rank.
    pub fn note() -> PathBuf {
        PathBuf::from(std::env::var("LINERATE_TEST_PLACES").unwrap()).with_extension("note")
    }

    /// Waits until the test has set this rank's place.
    pub fn wait_for(&self, place: u8) {
        while !self.is(place) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Job {
    /// A file for what ranks tell each other.
    pub fn note(&self) -> PathBuf {
        self.places.with_extension("note")
    }

    /// Sets the place of a rank, for one that waits for it.
    pub fn set_place(&self, rank: Rank, place: u8) {
        let file = File::options().write(true).open(&self.places).unwrap();
        file.write_all_at(&[place], u64::from(rank)).unwrap();
    }
}

/// Microseconds since 1970: comparable between processes.
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_micros() as u64
}

/// Descriptors of this process, and its mappings of memfds.
pub fn holdings() -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (
        open,
        maps.lines().filter(|line| line.contains("memfd:")).count(),
    )
}

/// The seed of a test, printed; `LINERATE_TEST_SEED` repeats one.
pub fn seed() -> u64 {
    let given = std::env::var("LINERATE_TEST_SEED").ok();
    let seed = given.map_or_else(now_us, |text| text.parse().unwrap());
    println!("LINERATE_TEST_SEED={seed}");
    seed
}
