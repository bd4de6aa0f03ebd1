//! Runs a case with one process per role: the test binary starts itself again, once per role, as
//! its own test `child_entry`.
//!
//! A child writes `@address HEX`, reads one line with all addresses, plays its role, and writes
//! `@ok`, `@exiting` or `@failed TEXT`. Everything has a deadline of [`DEADLINE`].

use super::actor::{Actor, Progress};
use super::cases;
use super::mutants::{Fault, Mutant, Surroundings};
use linerate::options::TcpSettings;
use linerate::sim::{SimOptions, World};
use linerate::transport::{self, Address, Options, Time, Transport};
use linerate_children::Child;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// Providers that connect processes. Add one here and to [`open`], and every case runs on it. Those
/// of large jobs connect at the first use.
const PROVIDERS: &[&str] = &[
    "shm",
    // Messages of memory that is not registered are read out of the sender's process.
    "shm fetching",
    "tcp",
    "tcp encrypted",
    "tcp large",
    "router",
    // These need a device.
    "verbs",
    "verbs large",
    "router:verbs",
    // These need libfabric.
    "ofi:shm",
    "ofi:tcp;ofi_rxm",
    "ofi:udp;ofi_rxd",
    EFA,
];

/// The one whose libfabric is built here (`efa/fabric.c`).
const EFA: &str = "ofi:efa";

/// Only where it is named: it waits longer and longer for packets that a busy machine has lost, and
/// cases have deadlines.
const PATIENT: &str = "ofi:udp;ofi_rxd";

/// What providers cannot keep to, and why.
const UNKEPT: [(&str, &str, &str); 2] = [
    (
        "ofi:shm",
        "clause_05_a_peer_that_exits_in_the_middle_of_traffic",
        "libfabric 1.17 completes nothing any more when something to a dead peer is under way",
    ),
    (
        "ofi:shm",
        "clause_23_what_was_under_way_neither_arrives_nor_changes_memory",
        "libfabric 1.17 completes nothing any more when something to a dead key is under way",
    ),
];

/// Whether a case is run on a provider; says once why not.
pub fn is_kept(provider: &str, case: &str) -> bool {
    let mut unkept = UNKEPT.iter();
    let found = unkept.find(|(of, what, _)| (*of, *what) == (provider, case));
    if let Some((.., why)) = found {
        println!("skipped: {case} on {provider}: {why}");
    }
    found.is_none()
}

/// Ranks of a large job that take no part in a case.
const OTHERS: u32 = 20;

/// Names the one provider to run on, and nothing else: where a device is, the machine may be slow.
pub const ONLY_VARIABLE: &str = "LINERATE_CONFORMANCE_ONLY";

/// Multiplies deadlines, on slow machines.
const SCALE_VARIABLE: &str = "LINERATE_TEST_SCALE";

/// Those that can be had here, or the one that was asked for.
pub fn providers() -> Vec<&'static str> {
    let only = std::env::var(ONLY_VARIABLE).unwrap_or_default();
    assert!(
        only.is_empty() || PROVIDERS.contains(&only.as_str()),
        "{ONLY_VARIABLE} is '{only}': one of {PROVIDERS:?}"
    );
    let is_meant = |provider: &&str| match only.as_str() {
        "" if *provider == EFA => has_efa(),
        "" if provider.contains("verbs") => is_here("verbs"),
        "" if *provider == PATIENT => false,
        "" if provider.starts_with("ofi") => is_here(provider),
        "" => true,
        only => *provider == only,
    };
    PROVIDERS.iter().copied().filter(is_meant).collect()
}

/// Whether there is what a provider needs; says once why not.
fn is_here(provider: &str) -> bool {
    static ANSWERS: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());
    let mut answers = ANSWERS.lock().unwrap();
    *(answers.entry(provider.into())).or_insert_with(|| {
        let opened = open(provider, 0, 1, new_nonce());
        if let Err(reason) = &opened {
            println!("skipped: {provider}: {reason}");
        }
        opened.is_ok()
    })
}

/// Whether its libfabric can be built; says once why not.
fn has_efa() -> bool {
    static ANSWER: LazyLock<bool> = LazyLock::new(|| {
        let library = super::build::library();
        if let Err(reason) = library {
            println!("skipped: {EFA}: {reason}");
        }
        library.is_ok()
    });
    *ANSWER
}

fn deadline() -> Duration {
    let scale = std::env::var(SCALE_VARIABLE).ok();
    DEADLINE * scale.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A world of one rank: no processes can meet in it, but it shows that this harness works.
pub const ALONE: &str = "sim";

/// Shared memory with faults that show only between processes: their name, what they are of, and
/// the fault.
pub const FAULTY: [(&str, &str, Fault); 3] = [
    ("shm-notifies-nobody", "shm", Fault::NotifiesNobody),
    ("shm-sleeps-unseen", "shm", Fault::SleepsUnseen),
    (
        "shm-withdraws-in-word",
        "shm fetching",
        Fault::WithdrawsInWord,
    ),
];

/// Faults that every provider may have, as `PROVIDER with FAULT`, and how they are found.
pub const FAULTY_SLOTS: [(Fault, &str); 3] = [
    (Fault::DeliversOld, "the header is"),
    (Fault::CompletesOld, "connected before post"),
    (Fault::RefusesUsed, "of a job of"),
];

/// `provider/case/role/ranks/nonce`, for children.
const ROLE_VARIABLE: &str = "LINERATE_CONFORMANCE_ROLE";

/// Jobs that this process has started; with its id and the rank it makes the nonces of transports.
static JOBS: AtomicU64 = AtomicU64::new(0);

/// Time for one case, and for one call: a call that takes this long blocks (clause 1).
const DEADLINE: Duration = Duration::from_secs(20);
const CALL_MAX: Duration = Duration::from_secs(8);

fn new_nonce() -> u64 {
    u64::from(std::process::id()) << 32 | JOBS.fetch_add(1, Ordering::Relaxed) << 8
}

/// Whether this host lets a process read the memory of another one, as `shm fetching` does.
pub fn may_read_others() -> bool {
    let nonce = new_nonce();
    let mut both = [0, 1].map(|rank| open("shm fetching", rank, 2, nonce).unwrap().transport);
    let addresses = both.each_ref().map(|transport| transport.local_address());
    for (rank, transport) in both.iter_mut().enumerate() {
        let peer = 1 - rank;
        transport.connect(peer as u32, &addresses[peer]).unwrap();
    }
    let start = Instant::now();
    while !both[0].fetches(1, usize::MAX) && start.elapsed() < Duration::from_secs(2) {
        for transport in &mut both {
            transport.poll_slow(Time(0), &mut Vec::new());
        }
    }
    both[0].fetches(1, usize::MAX)
}

/// A transport, and what makes its time go on if nobody else does.
struct Opened {
    transport: Box<dyn Transport>,
    advance: Box<dyn FnMut()>,
}

/// Makes the transport of one role. `nonce` belongs to the job, and what follows it by less than
/// 256 too.
fn open(provider: &str, rank: u32, ranks: u32, nonce: u64) -> Result<Opened, String> {
    let known = FAULTY.iter().find(|(name, ..)| *name == provider);
    let faulty = known.map(|&(_, of, fault)| (of, fault)).or_else(|| {
        let (of, name) = provider.split_once(" with ")?;
        let mut faults = FAULTY_SLOTS.iter().map(|&(fault, _)| fault);
        Some((of, faults.find(|fault| format!("{fault:?}") == name)?))
    });
    if let Some((of, fault)) = faulty {
        let Opened { transport, advance } = open(of, rank, ranks, nonce)?;
        let surroundings = Surroundings {
            rank,
            advance: Box::new(|| {}),
        };
        let transport = Box::new(Mutant::new(transport, fault, surroundings));
        return Ok(Opened { transport, advance });
    }
    match provider {
        "shm" | "shm fetching" | "tcp" | "tcp encrypted" | "tcp large" | "verbs"
        | "verbs large" | "ofi:shm" | "ofi:tcp;ofi_rxm" | "ofi:udp;ofi_rxd" | EFA => {
            let ranks = match provider.ends_with("large") {
                true => ranks + OTHERS,
                false => ranks,
            };
            let options = Options {
                fetches: provider == "shm fetching",
                tcp: TcpSettings {
                    has_tls: provider == "tcp encrypted",
                    secret: Some(b"a secret for cases".to_vec()),
                    ..TcpSettings::default()
                },
                ..Options::default()
            };
            let name = provider.split(' ').next().unwrap_or_default();
            let nonce = nonce + u64::from(rank);
            Ok(Opened {
                transport: transport::open(name, rank, ranks, nonce, &options)
                    .map_err(|e| e.to_string())?,
                advance: Box::new(|| {}),
            })
        }
        // Ranks 0 and 1 are on one host, others on another.
        "router" | "router:verbs" => {
            let options = Options {
                host: u64::from(rank / 2),
                ..Options::default()
            };
            let nonce = nonce + u64::from(rank);
            Ok(Opened {
                transport: transport::open(provider, rank, ranks, nonce, &options)
                    .map_err(|e| e.to_string())?,
                advance: Box::new(|| {}),
            })
        }
        ALONE => {
            let world = World::new(SimOptions::new(ranks, nonce));
            Ok(Opened {
                transport: Box::new(world.transport(rank)),
                advance: Box::new(move || {
                    world.advance();
                }),
            })
        }
        _ => Err(format!("no provider is called {provider}")),
    }
}

/// Plays a role if this process was started for one. Called by the test `child_entry`.
pub fn play_role() {
    let Ok(text) = std::env::var(ROLE_VARIABLE) else {
        return;
    };
    match play(&text) {
        Ok(Progress::Exit) => {
            println!("\n@exiting");
            let _ = std::io::stdout().flush();
            // Without destructors: as if it had been killed.
            std::process::abort();
        }
        Ok(_) => println!("\n@ok"),
        Err(text) => println!("\n@failed {}", text.replace('\n', " ")),
    }
}

fn play(text: &str) -> Result<Progress, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let [provider, name, role, ranks, nonce] = parts[..] else {
        return Err(format!("{ROLE_VARIABLE}={text}: five parts are needed"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
    let (role, ranks) = (number(role)? as u32, number(ranks)? as u32);
    let case = (cases::all().into_iter().find(|case| case.name == name))
        .ok_or_else(|| format!("no case is called {name}"))?;
    // A successor's nonce is its own, as those of ranks are.
    let nonce = number(nonce)? + u64::from(role - case.rank_of(role));
    let mut opened = open(provider, case.rank_of(role), ranks, nonce)?;
    println!("\n@address {}", to_hex(&opened.transport.local_address()));
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|e| e.to_string())?;
    let addresses = line.split_whitespace().map(from_hex).collect();
    let mut actor = Actor::new(&case, role, addresses);
    let result = step_to_end(&mut opened, &mut actor);
    if result == Ok(Progress::Exit) {
        // Its memory must not be given back before the process is gone.
        std::mem::forget((opened, actor));
    } else {
        // The transport goes before the memory that the actor lent it: what has arrived is still
        // delivered there.
        drop(opened);
    }
    result
}

fn step_to_end(opened: &mut Opened, actor: &mut Actor) -> Result<Progress, String> {
    let begin = Instant::now();
    let deadline = deadline();
    while begin.elapsed() < deadline {
        let now = Instant::now();
        let time = Time(1 + begin.elapsed().as_nanos() as u64);
        let progress = actor.step(opened.transport.as_mut(), time)?;
        if now.elapsed() > CALL_MAX {
            return Err(format!("{}: took {:?}", actor.place(), now.elapsed()));
        }
        match progress {
            Progress::Done | Progress::Exit | Progress::Left => return Ok(progress),
            Progress::Moved => {}
            Progress::Waiting | Progress::Counting => std::thread::sleep(Duration::from_micros(20)),
        }
        (opened.advance)();
    }
    Err(format!("{}: still there after {deadline:?}", actor.place()))
}

/// Runs a case on a provider; the error has the text of every role that failed.
pub fn run(provider: &str, name: &str) -> Result<(), String> {
    let case = (cases::all().into_iter().find(|case| case.name == name))
        .ok_or_else(|| format!("no case is called {name}"))?;
    let ranks = case.ranks();
    let nonce = new_nonce();
    let mut roles = Vec::new();
    for role in 0..case.roles.len() {
        let mut child = role_command(&format!("{provider}/{name}/{role}/{ranks}/{nonce}"));
        roles.push(Child::start(&mut child));
    }
    let end = Instant::now() + deadline() + Duration::from_secs(5);
    let mut addresses = Vec::new();
    for role in &mut roles {
        match answer(role, end)? {
            Answer::Address(address) => addresses.push(address),
            other => {
                return Err(format!(
                    "{name} on {provider}: {other:?} instead of an address"
                ));
            }
        }
    }
    let line = addresses.join(" ");
    for role in &mut roles {
        role.write_line(&line).map_err(|e| e.to_string())?;
    }
    let mut failures = Vec::new();
    for (number, role) in roles.iter_mut().enumerate() {
        match answer(role, end) {
            Ok(Answer::Ended) => {}
            Ok(Answer::Address(_)) => failures.push(format!("role {number}: a second address")),
            Ok(Answer::Failed(text)) | Err(text) => failures.push(format!("role {number}: {text}")),
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("{name} on {provider}: {}", failures.join("\n")))
}

#[derive(Debug)]
enum Answer {
    Address(String),
    Ended,
    Failed(String),
}

fn role_command(role: &str) -> Command {
    let mut command = linerate_children::role("conformance");
    command.arg("--test-threads=1").env(ROLE_VARIABLE, role);
    if let (true, Ok(library)) = (role.starts_with(EFA), super::build::library()) {
        command.env("LINERATE_FABRIC_LIB", library);
    }
    command
}

/// The next answer of a child; an error if it ends or the time does.
fn answer(role: &mut Child, end: Instant) -> Result<Answer, String> {
    loop {
        let Some(line) = role.next_line(end) else {
            return Err(format!(
                "no answer (it ended, or the time did): {}",
                role.told()
            ));
        };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "@address" => return Ok(Answer::Address(rest.to_string())),
            "@ok" | "@exiting" => return Ok(Answer::Ended),
            "@failed" => return Ok(Answer::Failed(rest.to_string())),
            _ => {}
        }
    }
}

/// An address as one word; `-` is the empty one.
fn to_hex(address: &Address) -> String {
    let digits: String = address.0.iter().map(|byte| format!("{byte:02x}")).collect();
    if digits.is_empty() {
        "-".into()
    } else {
        digits
    }
}

fn from_hex(word: &str) -> Address {
    let pairs = word.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    Address(pairs.filter_map(byte).collect())
}
