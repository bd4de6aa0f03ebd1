//! Ends of connections, and processes that have them.
#![allow(dead_code)]

use linerate_verbs_sys::raw::*;
use linerate_verbs_sys::*;
use std::ffi::{CString, OsStr};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

const LIBRARY: &str = concat!(env!("OUT_DIR"), "/libsoft_verbs.so");
/// What a process is to do.
pub const ROLE: &str = "SOFT_VERBS_TEST_ROLE";
/// Memory of an end.
pub const BYTES: usize = 1 << 20;
pub const PORT: u8 = 1;
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The id of receives.
pub const RECEIVE: u64 = 1;
pub const ACCESS: ibv_access_flags = ibv_access_flags(
    ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
);

/// Where an end has its memory: any word, a memfd that peers can map.
pub const MEMFD: &str = "SOFT_VERBS_TEST_MEMFD";
/// The name of that memfd in lists of mapped memory.
pub const MEMFD_NAME: &str = "soft-verbs-test";

/// Memory that only atomics touch.
pub struct Bytes(pub &'static [AtomicU64]);

impl Bytes {
    /// It is never given back.
    fn new() -> Bytes {
        if std::env::var_os(MEMFD).is_none() {
            return Bytes(Vec::leak(
                (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect(),
            ));
        }
        let name = CString::new(MEMFD_NAME).unwrap();
        // SAFETY: a name that ends, a new file of this length, and a new mapping of all of it that
        // stays; zeros are atomics.
        unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(fd, BYTES as i64), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), BYTES, rights, libc::MAP_SHARED, fd, 0);
            assert_ne!(base, libc::MAP_FAILED);
            Bytes(std::slice::from_raw_parts(base.cast(), BYTES / 8))
        }
    }
}

// SAFETY: it never changes its place or length, and is only touched through atomics.
unsafe impl Memory for Bytes {
    fn address(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len_bytes(&self) -> usize {
        self.0.len() * 8
    }
}

/// One end of a connection.
pub struct End {
    pub memory: Arc<Bytes>,
    pub peer: Place,
    pub pair: QueuePair,
    pub queue: Arc<CompletionQueue>,
    pub channel: Arc<CompletionChannel>,
    pub region: Mr,
    pub context: Arc<Context>,
}

/// What the other end has to know of one.
#[derive(Clone, Copy)]
pub struct At {
    gid: u128,
    number: u32,
    place: Place,
}

/// Opens the first device.
pub fn open() -> Result<Arc<Context>> {
    let opened = open_all()?;
    Ok(Arc::clone(opened.first().expect("it has a device")))
}

pub fn open_all() -> Result<Vec<Arc<Context>>> {
    let library = Library::open_as(Some(OsStr::new(LIBRARY)))?;
    let devices = Devices::list(&library)?;
    devices.iter().map(|device| device.open()).collect()
}

impl End {
    /// On this device, with a receive.
    pub fn on(context: &Arc<Context>) -> End {
        End::with(context, ACCESS)
    }

    /// As [`End::on`], with memory that may be used so.
    pub fn with(context: &Arc<Context>, access: ibv_access_flags) -> End {
        let pd = Pd::allocate(context).unwrap();
        let channel = CompletionChannel::create(context).unwrap();
        let queue = CompletionQueue::create(context, 256, Some(&channel), 0, 7).unwrap();
        let memory = Arc::new(Bytes::new());
        let region = Mr::register(&pd, memory.clone() as Arc<dyn Memory>, access).unwrap();
        let options = QueuePairOptions {
            kind: ibv_qp_type::IBV_QPT_RC,
            send_queue: &queue,
            receive_queue: &queue,
            shared_receives: None,
            capacity: ibv_qp_cap {
                max_send_wr: 128,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 32,
            },
            is_all_signaled: true,
        };
        let pair = QueuePair::create(&pd, &options).unwrap();
        pair.to_init(PORT, ACCESS).unwrap();
        pair.post_receive(&[ReceiveRequest {
            id: RECEIVE,
            segments: &[],
        }])
        .unwrap();
        End {
            memory,
            peer: Place { address: 0, key: 0 },
            pair,
            queue,
            channel,
            region,
            context: Arc::clone(context),
        }
    }

    pub fn at(&self) -> At {
        At {
            gid: u128::from_be_bytes(self.context.gid(PORT, 1).unwrap()),
            number: self.pair.number(),
            place: self.region.place(0).unwrap(),
        }
    }

    /// Leads to another end, with packets from the own GID at this place of the table.
    pub fn receive_from(&self, at: &At, own_gid: u8) -> Result<()> {
        let route = Route {
            port: PORT,
            gid: Some((at.gid.to_be_bytes(), own_gid)),
            ..Route::default()
        };
        self.pair.to_receive(&RemoteEnd {
            queue_pair: at.number,
            packet_number: 0,
            mtu: ibv_mtu::IBV_MTU_4096,
            route,
            reads_max: 1,
            no_receive_timer: 12,
        })
    }

    /// Leads to another end.
    pub fn join(&mut self, at: &At) {
        self.receive_from(at, 1).unwrap();
        self.pair
            .to_send(&Sending {
                packet_number: 0,
                reads_max: 1,
                timeout: 10,
                retries: 7,
                no_receive_retries: 7,
            })
            .unwrap();
        self.peer = at.place;
    }

    /// Two ends of this process that lead to each other, on these devices.
    pub fn both(contexts: [&Arc<Context>; 2]) -> [End; 2] {
        End::joined(contexts.map(End::on))
    }

    /// Lets two ends lead to each other.
    pub fn joined(mut ends: [End; 2]) -> [End; 2] {
        let at = ends.each_ref().map(End::at);
        ends[0].join(&at[1]);
        ends[1].join(&at[0]);
        ends
    }

    /// Tells an end in another process about this one over standard output, and reads of it.
    pub fn meet() -> End {
        let mut end = End::on(&open().unwrap());
        let At { gid, number, place } = end.at();
        println!("AT {gid} {number} {} {}", place.address, place.key);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let numbers: Vec<u128> = line
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let [gid, number, address, key] = numbers[..] else {
            panic!("{line:?}")
        };
        let place = Place {
            address: address as u64,
            key: key as u32,
        };
        end.join(&At {
            gid,
            number: number as u32,
            place,
        });
        end
    }

    pub fn post(&self, id: u64, operation: Operation<'_>, local: Local<'_>) {
        self.try_post(id, operation, local).unwrap();
    }

    pub fn try_post(
        &self,
        id: u64,
        operation: Operation<'_>,
        local: Local<'_>,
    ) -> std::result::Result<(), PostError> {
        let request = SendRequest {
            id,
            operation,
            local,
            is_signaled: true,
            is_solicited: false,
            is_fenced: false,
        };
        self.pair.post_send(&[request])
    }

    /// The next completion.
    pub fn next(&self) -> Completion {
        let (begun, mut room) = (Instant::now(), [Completion::default()]);
        while self.queue.poll(&mut room).unwrap() == 0 {
            assert!(begun.elapsed() < PATIENCE, "no completion came");
        }
        room[0]
    }
}

/// Sleeps until a descriptor is readable, or for as long as anything may take.
pub fn wait_readable(fd: BorrowedFd<'_>) {
    let mut wanted = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one structure.
    unsafe { libc::poll(&mut wanted, 1, PATIENCE.as_millis() as libc::c_int) };
}

/// Stays until the test has what it needs.
pub fn rest() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A process with a role, and what it has said.
pub struct Process {
    pub child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub fn start(role: &str, settings: &str) -> Process {
        Process::start_with(role, settings, None)
    }

    /// As [`Process::start`], with a variable of the environment.
    pub fn start_with(role: &str, settings: &str, variable: Option<&str>) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture"])
            .envs(variable.map(|name| (name, "yes")))
            .env(ROLE, role)
            .env("SOFT_VERBS", settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    /// What follows this word in the next line that has it.
    pub fn said(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().into();
            }
            line.clear();
        }
        let mut why = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut errors, &mut why).unwrap();
        panic!("it ended without {word}: {why}")
    }

    pub fn tell(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{text}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two processes that have met, on two hosts of one network.
pub fn pair(roles: [&str; 2], settings: &str) -> [Process; 2] {
    pair_with(roles, settings, None)
}

/// As [`pair`], with a variable of the environment.
pub fn pair_with(roles: [&str; 2], settings: &str, variable: Option<&str>) -> [Process; 2] {
    let hosts = ["a", "b"];
    let mut both = [0, 1].map(|end| {
        let settings = format!("{settings},host={}", hosts[end]);
        Process::start_with(roles[end], settings.trim_start_matches(','), variable)
    });
    let [first, second] = [0, 1].map(|end| both[end].said("AT "));
    both[0].tell(&second);
    both[1].tell(&first);
    both
}
