//! Jobs of ranks as processes with an environment of their own.

use linerate_children::{Child, end, free_address, rank, wait_for, without_job};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Output;

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
pub struct Running(Vec<(u32, Child)>);

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
        let mut running = Running(Vec::new());
        self.started
            .iter()
            .for_each(|&rank| running.add(self, rank));
        running
    }

    pub fn start_ranks(&self, ranks: std::ops::Range<u32>) -> Running {
        let mut running = Running(Vec::new());
        ranks.for_each(|rank| running.add(self, rank));
        running
    }
}

impl Running {
    pub fn add(&mut self, job: &Job, index: u32) {
        let mut command = rank("rank", index, job.ranks);
        without_job(&mut command).env("LINERATE_TIMEOUT", "30");
        if job.nobody == Some(index) {
            command.uid(65534).gid(65534);
        }
        let is_for = |of: &Option<u32>| of.is_none_or(|of| of == index);
        for (_, name, value) in job.environment.iter().filter(|(of, _, _)| is_for(of)) {
            command.env(name, value);
        }
        self.0.push((index, Child::start(&mut command)));
    }

    pub fn kill(&mut self, rank: u32) {
        let (_, child) = self.0.iter_mut().find(|(of, _)| *of == rank).unwrap();
        child.kill();
    }

    /// Waits until a rank that is not rank 0 has had a connection for a while: it has said who it
    /// is.
    pub fn wait_until_met(&mut self, rank: u32) {
        let (_, child) = self.0.iter().find(|(of, _)| *of == rank).unwrap();
        let mut seen = 0;
        wait_for("a connection", || {
            seen = if has_connection(child.id()) {
                seen + 1
            } else {
                0
            };
            seen == 500
        });
    }

    /// Waits for all.
    pub fn end(self) -> Vec<Outcome> {
        let children = self.0.into_iter().map(|(_, child)| child).collect();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let outcome = |output: Output| Outcome {
            stdout: said(&output.stdout),
            stderr: said(&output.stderr),
        };
        end(children).into_iter().map(outcome).collect()
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

/// A port at which nobody listens.
pub fn free_port() -> u16 {
    free_address().port()
}

/// An address of this host that is not loopback's.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}
