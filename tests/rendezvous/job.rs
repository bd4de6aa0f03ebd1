//! Jobs of ranks as processes with an environment of their own.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Far longer than anything here takes: only a hang lasts longer.
const HANG: Duration = Duration::from_secs(90);

/// Files for what ranks say so far.
static FILES: AtomicU32 = AtomicU32::new(0);

/// How to start a job.
#[derive(Clone)]
pub struct Job {
    started: Vec<u32>,
    ranks: u32,
    environment: Vec<(Option<u32>, String, String)>,
    /// This rank is started as the user nobody.
    nobody: Option<u32>,
}

/// How a rank ended, and what it said.
#[derive(Debug)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
}

/// A job that runs.
pub struct Running(Vec<(u32, Child)>, Vec<std::path::PathBuf>);

impl Job {
    pub fn new(ranks: u32) -> Job {
        Job {
            started: (0..ranks).collect(),
            ranks,
            environment: Vec::new(),
            nobody: None,
        }
    }

    /// This rank is a process of another user, which takes root.
    pub fn by_nobody(mut self, rank: u32) -> Job {
        self.nobody = Some(rank);
        self
    }

    /// Its ranks believe that there are this many.
    pub fn of(mut self, ranks: u32) -> Job {
        self.ranks = ranks;
        self
    }

    /// This rank is not started.
    pub fn without(mut self, rank: u32) -> Job {
        self.started.retain(|started| *started != rank);
        self
    }

    pub fn with(self, name: &str, value: &str) -> Job {
        self.set(None, name, value)
    }

    /// On one rank only.
    pub fn with_rank(self, rank: u32, name: &str, value: &str) -> Job {
        self.set(Some(rank), name, value)
    }

    fn set(mut self, rank: Option<u32>, name: &str, value: &str) -> Job {
        self.environment.push((rank, name.into(), value.into()));
        self
    }

    pub fn run(&self) -> Vec<Outcome> {
        self.start().end()
    }

    pub fn start(&self) -> Running {
        let mut running = Running(Vec::new(), Vec::new());
        self.started
            .iter()
            .for_each(|&rank| running.add(self, rank));
        running
    }

    pub fn start_ranks(&self, ranks: std::ops::Range<u32>) -> Running {
        let mut running = Running(Vec::new(), Vec::new());
        ranks.for_each(|rank| running.add(self, rank));
        running
    }
}

impl Running {
    pub fn add(&mut self, job: &Job, rank: u32) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for (name, _) in std::env::vars() {
            if [
                "LINERATE_",
                "OMPI_",
                "PMI",
                "SLURM_",
                "MASTER_",
                "TORCHELASTIC_",
            ]
            .iter()
            .any(|p| name.starts_with(p))
            {
                command.env_remove(name);
            }
        }
        let path = std::env::temp_dir().join(format!(
            "linerate-rendezvous-{}-{}",
            std::process::id(),
            FILES.fetch_add(1, Ordering::Relaxed)
        ));
        let said = std::fs::File::create(&path).unwrap();
        command
            .args(["--exact", "child_entry", "--nocapture"])
            .env("LINERATE_TEST_ROLE", "rank")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", job.ranks.to_string())
            .env("LINERATE_TIMEOUT", "30")
            .env_remove("LOCAL_WORLD_SIZE");
        if job.nobody == Some(rank) {
            command.uid(65534).gid(65534);
        }
        let is_for = |of: &Option<u32>| of.is_none_or(|of| of == rank);
        for (_, name, value) in job.environment.iter().filter(|(of, _, _)| is_for(of)) {
            command.env(name, value);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn();
        self.0.push((rank, child.unwrap()));
        self.1.push(path);
    }

    pub fn kill(&mut self, rank: u32) {
        let (_, child) = self.0.iter_mut().find(|(of, _)| *of == rank).unwrap();
        child.kill().unwrap();
    }

    /// Waits until a rank that is not rank 0 has had a connection for a while: it has said who it
    /// is.
    pub fn wait_until_met(&mut self, rank: u32) {
        let (_, child) = self.0.iter().find(|(of, _)| *of == rank).unwrap();
        let deadline = Instant::now() + HANG;
        let mut seen = 0;
        while seen < 50 {
            seen = if has_connection(child.id()) {
                seen + 1
            } else {
                0
            };
            assert!(Instant::now() < deadline, "rank {rank} never connected");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for all; one that hangs is killed, and the test fails.
    pub fn end(self) -> Vec<Outcome> {
        let deadline = Instant::now() + HANG;
        let mut outcomes = Vec::new();
        let mut has_hung = false;
        for ((_, mut child), path) in self.0.into_iter().zip(self.1) {
            while child.try_wait().unwrap().is_none() {
                if Instant::now() > deadline {
                    has_hung = true;
                    child.kill().unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let output = child.wait_with_output().unwrap();
            outcomes.push(Outcome {
                stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                stderr: std::fs::read_to_string(&path).unwrap(),
            });
            std::fs::remove_file(path).unwrap();
        }
        assert!(!has_hung, "ranks hung: {outcomes:#?}");
        outcomes
    }
}

/// Whether a process holds a TCP connection that is established.
fn has_connection(pid: u32) -> bool {
    let folder = format!("/proc/{pid}/fd");
    let links = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let inodes: Vec<String> = names
        .filter_map(|name| {
            Some(
                name.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_string(),
            )
        })
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"01")
            && words
                .get(9)
                .is_some_and(|inode| inodes.iter().any(|own| own == inode))
    })
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// An address of this host that is not loopback's.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}
