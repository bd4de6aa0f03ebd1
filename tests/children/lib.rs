//! Child processes of the tests: how they are started, what they write, how they end.
//!
//! Two threads read what a [`Child`] writes, so that it never waits for a reader. A child that is
//! dropped is killed. Whatever waits for a child fails after [`HANG`], with what the child has
//! written.
//!
//! A test that needs ranks starts its own program again, once per rank ([`rank`]): the child runs
//! the test `child_entry` alone, which does what `LINERATE_TEST_ROLE` says.

pub mod hosts;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Far longer than anything takes, also on a busy machine: only a hang lasts longer.
pub const HANG: Duration = Duration::from_secs(300);

/// Between two looks at a state that cannot be waited for.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What launchers and users set for a job or a rank.
const JOB_VARIABLES: [&str; 9] = [
    "LINERATE_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "MASTER_",
    "TORCHELASTIC_",
    "LOCAL_",
    "RANK",
    "WORLD_SIZE",
];

/// What was written to a pipe so far.
#[derive(Clone, Default)]
struct Stream(Arc<(Mutex<Written>, Condvar)>);

#[derive(Default)]
struct Written {
    bytes: Vec<u8>,
    has_ended: bool,
}

impl Stream {
    fn of(source: impl Read + Send + 'static) -> Stream {
        let stream = Stream::default();
        let own = stream.clone();
        std::thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut has_ended = false;
            while !has_ended {
                let mut line = Vec::new();
                has_ended = source.read_until(b'\n', &mut line).unwrap_or(0) == 0;
                let (written, changed) = &*own.0;
                let mut written = written.lock().unwrap();
                written.bytes.append(&mut line);
                written.has_ended = has_ended;
                changed.notify_all();
            }
        });
        stream
    }

    /// Waits until something is found in what was written, or nothing more can come.
    fn wait<T>(&self, until: Instant, find: impl Fn(&Written) -> Option<T>) -> Option<T> {
        let (written, changed) = &*self.0;
        let mut written = written.lock().unwrap();
        loop {
            let found = find(&written);
            let left = until.saturating_duration_since(Instant::now());
            if found.is_some() || written.has_ended || left.is_zero() {
                return found;
            }
            written = changed.wait_timeout(written, left).unwrap().0;
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().unwrap().bytes.clone()
    }
}

/// A process that a test has started. It is killed when it is dropped.
pub struct Child {
    process: std::process::Child,
    stdout: Stream,
    stderr: Stream,
    /// Of standard output, what [`Child::next_line`] has given.
    read_bytes: usize,
}

impl Child {
    /// Starts a command with pipes for its input and both outputs.
    pub fn start(command: &mut Command) -> Child {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let spawned = piped.stderr(Stdio::piped()).spawn();
        let mut process = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Child {
            stdout: Stream::of(process.stdout.take().expect("a pipe")),
            stderr: Stream::of(process.stderr.take().expect("a pipe")),
            process,
            read_bytes: 0,
        }
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Writes a line to its standard input.
    pub fn write_line(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.process.stdin.as_mut().expect("a pipe"), "{line}")
    }

    /// The next line of its standard output; `None` if it ends or the time is over.
    pub fn next_line(&mut self, until: Instant) -> Option<String> {
        let start = self.read_bytes;
        let line = self.stdout.wait(until, |written| {
            let rest = written.bytes.get(start..).unwrap_or_default();
            let end = rest.iter().position(|&byte| byte == b'\n');
            let last = (written.has_ended && !rest.is_empty()).then_some(rest.len());
            Some(rest[..end.or(last)?].to_vec())
        })?;
        self.read_bytes += line.len() + 1;
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// Waits for a line of its standard output that has this in it, and gives that line.
    pub fn wait_line(&mut self, word: &str) -> String {
        let until = Instant::now() + HANG;
        while let Some(line) = self.next_line(until) {
            if line.contains(word) {
                return line;
            }
        }
        panic!("a process never said '{word}':\n{}", self.told());
    }

    /// Waits for a line of its standard error that has this in it.
    pub fn wait_error(&self, word: &str) {
        let is_said = |written: &Written| {
            let text = String::from_utf8_lossy(&written.bytes);
            text.contains(word).then_some(())
        };
        let said = self.stderr.wait(Instant::now() + HANG, is_said);
        assert!(said.is_some(), "never '{word}':\n{}", self.told());
    }

    /// What it has written so far.
    pub fn told(&self) -> String {
        let both = [self.stdout.bytes(), self.stderr.bytes()].concat();
        String::from_utf8_lossy(&both).into_owned()
    }

    /// Ends it.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Waits until it has ended, and gives how and what it wrote.
    pub fn end(self) -> Output {
        end(vec![self]).remove(0)
    }

    fn wait(&mut self, until: Instant) -> Option<ExitStatus> {
        self.stdout.wait(until, |_| None::<()>);
        self.stderr.wait(until, |_| None::<()>);
        loop {
            let status = self.process.try_wait().unwrap();
            if status.is_some() || Instant::now() > until {
                return status;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both do nothing where it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until all have ended, and gives how and what they wrote. If one hangs all are killed, and
/// this fails.
pub fn end(mut children: Vec<Child>) -> Vec<Output> {
    let until = Instant::now() + HANG;
    let ended: Vec<Option<ExitStatus>> = children.iter_mut().map(|c| c.wait(until)).collect();
    if ended.iter().any(Option::is_none) {
        let told: Vec<String> = children.iter().map(Child::told).collect();
        panic!("processes hang: {ended:?}\n{told:#?}");
    }
    let output = |(child, status): (&Child, Option<ExitStatus>)| Output {
        status: status.expect("it has ended"),
        stdout: child.stdout.bytes(),
        stderr: child.stderr.bytes(),
    };
    children.iter().zip(ended).map(output).collect()
}

/// Waits for a state that somebody else brings about.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + HANG;
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether a process of any parent runs. A zombie does not.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
}

/// Why this program cannot be started as another user, if so.
pub fn no_other_user() -> Option<&'static str> {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        return Some("only root can start a process as another user");
    }
    let program = std::env::current_exe().unwrap();
    let is_closed = |path: &Path| path.metadata().unwrap().permissions().mode() & 1 == 0;
    let is_hidden = program.ancestors().any(is_closed);
    is_hidden.then_some("no other user may enter the folder of the tests")
}

/// This program again, in a role.
pub fn role(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child_entry", "--nocapture"])
        .env("LINERATE_TEST_ROLE", role);
    command
}

/// This program again, as a rank of a job.
pub fn rank(name: &str, rank: u32, ranks: u32) -> Command {
    let mut command = role(name);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string());
    command
}

/// A name of a job that no other job on this host has.
pub fn fresh_job() -> String {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let index = JOBS.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{index}-z", std::process::id())
}

/// Starts the ranks of a job, with these variables.
pub fn start(role: &str, ranks: u32, extra: &[(&str, &str)]) -> Vec<Child> {
    start_each(role, &vec![Vec::new(); ranks as usize], extra)
}

/// Starts a rank for each of `own`, with these variables and with those that all have.
pub fn start_each(role: &str, own: &[Vec<(&str, &str)>], all: &[(&str, &str)]) -> Vec<Child> {
    let (job, ranks) = (fresh_job(), own.len() as u32);
    let start = |(index, own): (u32, &Vec<(&str, &str)>)| {
        let mut command = rank(role, index, ranks);
        let variables = all.iter().chain(own).copied();
        Child::start(command.env("LINERATE_JOB", &job).envs(variables))
    };
    (0..).zip(own).map(start).collect()
}

/// Starts the ranks of a job and waits for them.
pub fn spawn(role: &str, ranks: u32, extra: &[(&str, &str)]) -> Vec<Output> {
    end(start(role, ranks, extra))
}

/// Starts the ranks of a job, of which one waits ([`wait_for_word`]) until each of these others has
/// said something, and waits for all of them.
pub fn spawn_late(
    (role, ranks): (&str, u32),
    (late, others, word): (usize, &[usize], &str),
    extra: &[(&str, &str)],
) -> Vec<Output> {
    let mut children = start(role, ranks, extra);
    for &other in others {
        children[other].wait_line(word);
    }
    // It may have ended, which its output shows.
    let _ = children[late].write_line("go on");
    end(children)
}

/// In a child: waits until its test lets it go on.
pub fn wait_for_word() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A command that starts another one by this one, which is a program and its first arguments. What
/// was set in the environment of the inner one is set for both.
pub fn within(outer: &[&str], inner: &Command) -> Command {
    let mut command = Command::new(outer[0]);
    command
        .args(&outer[1..])
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The library of RDMA devices, which belongs to the machine and to no job.
const DEVICE_LIBRARY: &str = "LINERATE_IBVERBS_LIB";

/// Removes what launchers and users have set, but not what was set for this command.
pub fn without_job(command: &mut Command) -> &mut Command {
    let set: Vec<_> = command
        .get_envs()
        .map(|(name, _)| name.to_owned())
        .collect();
    for (name, _) in std::env::vars_os() {
        let is_of_job = JOB_VARIABLES
            .iter()
            .any(|prefix| name.to_string_lossy().starts_with(prefix));
        if is_of_job && name != DEVICE_LIBRARY && !set.contains(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// How a process ended, and all that it wrote.
pub fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|t| String::from_utf8_lossy(t));
    format!("{}\n{out}{err}", output.status)
}

/// What follows `key ` in the lines of a process's standard output that have it.
pub fn marked(output: &Output, key: &str) -> Vec<String> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let key = format!("{key} ");
    let found = stdout.lines().filter_map(|line| line.split_once(&key));
    found.map(|(_, rest)| rest.to_string()).collect()
}

/// The first of them.
pub fn result(output: &Output, key: &str) -> Option<String> {
    marked(output, key).into_iter().next()
}

/// What follows `RESULT ` in the lines of each rank; fails if one did not end well.
pub fn results(outputs: &[Output]) -> Vec<String> {
    let result = |(rank, output): (usize, &Output)| {
        assert!(output.status.success(), "rank {rank}: {}", text(output));
        marked(output, "RESULT").join("\n")
    };
    outputs.iter().enumerate().map(result).collect()
}

/// An address of loopback at which nobody listens.
pub fn free_address() -> std::net::SocketAddr {
    let port = linerate::unstable::bootstrap::free_port().unwrap();
    (std::net::Ipv4Addr::LOCALHOST, port).into()
}
