//! Ranks as processes: starting them, where each of them is, how they end.

use linerate::{Communicator, Rank};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Far longer than anything here takes, even on a busy machine: only a hang lasts longer.
const HANG: Duration = Duration::from_secs(60);

/// Processes of one job, and the file in which each rank says where it is: one byte per rank.
pub struct Job {
    children: Vec<Child>,
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
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let number = JOBS.fetch_add(1, Ordering::Relaxed);
        let unique = format!("faults-{}-{number}-z", std::process::id());
        let places = std::env::temp_dir().join(format!("linerate-{unique}"));
        std::fs::write(&places, vec![b'-'; self.ranks as usize]).unwrap();
        let name = self.name.clone().unwrap_or(unique);
        let child = |rank: u32| {
            let mut command = Command::new("sh");
            // A shell's background jobs ignore interruptions, and so does what they start.
            let start = "exec env --default-signal=INT \"$0\" --exact child_entry --nocapture";
            let script = format!("{} {start}", self.shell);
            command
                .args(["-c", &script])
                .arg(std::env::current_exe().unwrap())
                .env("LINERATE_TEST_ROLE", self.role)
                .env("LINERATE_TEST_PLACES", &places)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", self.ranks.to_string())
                .env("LINERATE_JOB", &name)
                .envs(self.environment.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if let Some(user) = self.user {
                command.uid(user).gid(user);
            }
            command.spawn().unwrap()
        };
        Job {
            children: (0..self.ranks).map(child).collect(),
            name,
            places,
        }
    }
}

impl Job {
    pub fn pid(&self, rank: Rank) -> u32 {
        self.children[rank as usize].id()
    }

    /// Sends a signal, by name as `kill` takes it.
    pub fn signal(&self, rank: Rank, name: &str) {
        let pid = rustix::process::Pid::from_child(&self.children[rank as usize]);
        use rustix::process::Signal;
        let signal = match name {
            "KILL" => Signal::KILL,
            "INT" => Signal::INT,
            "STOP" => Signal::STOP,
            "CONT" => Signal::CONT,
            _ => panic!("{name}"),
        };
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Where each rank was when it last said so.
    pub fn places(&self) -> Vec<u8> {
        std::fs::read(&self.places).unwrap()
    }

    /// Waits until `is_there` holds of the places; fails with what the ranks printed if that hangs.
    pub fn wait_for(&mut self, what: &str, is_there: impl Fn(&[u8]) -> bool) {
        let deadline = Instant::now() + HANG;
        while !is_there(&self.places()) {
            if Instant::now() > deadline {
                self.children.iter_mut().for_each(|c| c.kill().unwrap());
                let places = String::from_utf8_lossy(&self.places()).into_owned();
                let texts: Vec<String> = std::mem::take(&mut self.children)
                    .into_iter()
                    .map(|c| text(&c.wait_with_output().unwrap()))
                    .collect();
                panic!("{what} did not happen; places {places}\n{texts:#?}");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn end(self) -> Vec<Output> {
        self.end_with_places().0
    }

    pub fn end_with_places(mut self) -> (Vec<Output>, Vec<u8>) {
        let outputs = self.wait_for_all();
        self.check_nothing_is_left();
        (outputs, self.places())
    }

    /// As [`Self::end`], where another job may have the same name.
    pub fn end_among_others(mut self) -> Vec<Output> {
        self.wait_for_all()
    }

    /// Waits until all have ended; one that hangs is killed, and the test fails.
    fn wait_for_all(&mut self) -> Vec<Output> {
        let deadline = Instant::now() + HANG;
        let mut hung = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
            // A few lines fit the pipe, so nobody waits for a reader.
            while child.try_wait().unwrap().is_none() {
                if Instant::now() > deadline {
                    hung.push(rank);
                    child.kill().unwrap();
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let outputs: Vec<Output> = std::mem::take(&mut self.children)
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        let texts: Vec<String> = outputs.iter().map(text).collect();
        assert!(hung.is_empty(), "ranks {hung:?} hang:\n{texts:#?}");
        outputs
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
        for child in &mut self.children {
            // Those of a test that has failed.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_file(&self.places);
    }
}

pub fn text(output: &Output) -> String {
    format!(
        "{} {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// What follows `key ` in what a rank printed.
pub fn result(output: &Output, key: &str) -> Option<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = stdout
        .lines()
        .find_map(|l| l.split_once(&format!("{key} ")))?;
    Some(line.1.to_string())
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

    /// Waits until the test has set this rank's place.
    pub fn wait_for(&self, place: u8) {
        let mut now = [0];
        while now[0] != place {
            std::thread::sleep(Duration::from_millis(1));
            self.file.read_exact_at(&mut now, self.rank).unwrap();
        }
    }
}

impl Job {
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
