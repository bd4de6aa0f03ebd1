//! What ends a process: rules that are broken by the calls that fabric-sys lets through, and
//! (`wrong.c`) by those that it does not.

use super::rig::{ALL_ACCESS, Bytes, CAPS, MODE, MR_MODE};
use super::{build, library, role};
use linerate_children::{Child, text};
use linerate_fabric_sys::*;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Until a rule that must be broken is.
const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 16;
const WRITES: u32 = 24;

struct End {
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    region: Arc<Mr>,
    memory: Arc<Bytes>,
}

impl End {
    fn new(entries: usize) -> End {
        let library = Library::open(4).unwrap();
        let hints = Hints {
            provider: Some("efa"),
            fabric: Some("efa-direct"),
            caps: CAPS,
            mode: MODE,
            mr_mode: MR_MODE,
            ..Hints::default()
        };
        let info = Info::query(&library, &hints).unwrap().remove(0);
        let domain = Domain::open(&Fabric::open(&info).unwrap(), &info).unwrap();
        let queue = CompletionQueue::open(&domain, entries, 256, Wait::Poll).unwrap();
        let addresses = AddressVector::open(&domain, 4).unwrap();
        let options = EndpointOptions {
            transmit_queue: &queue,
            receive_queue: &queue,
            addresses: &addresses,
            is_cuda_permitted: Some(false),
        };
        let endpoint = Endpoint::open(&domain, &options).unwrap();
        let memory = Bytes::new(BYTES);
        let owner = Arc::clone(&memory) as Arc<dyn Memory>;
        let region = Mr::register(&domain, owner, ALL_ACCESS, None).unwrap();
        End {
            endpoint,
            queue,
            region,
            memory,
        }
    }

    fn peer(&self, other: &End) -> Arc<Peer> {
        let name = other.endpoint.name().unwrap();
        self.endpoint.insert(&name).unwrap()
    }

    fn receive(&self) {
        until(|| self.endpoint.post_receive(0).unwrap() == Posted::Started);
    }

    /// A write with a number, to the place of that number.
    fn write_of<'a>(
        &'a self,
        number: u32,
        (peer, to): (&'a Arc<Peer>, &End),
        bytes: usize,
    ) -> Write<'a> {
        let offset = number as usize * bytes;
        Write {
            id: number.into(),
            source: self.region.segment(offset, bytes).unwrap(),
            peer,
            place: to.region.place(offset).unwrap(),
            data: Some(number),
            is_more: false,
        }
    }

    fn write(&self, peer: (&Arc<Peer>, &End)) {
        let write = Write {
            data: None,
            ..self.write_of(0, peer, 8)
        };
        until(|| self.endpoint.post_write(&write).unwrap() == Posted::Started);
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

/// Writes numbers, whose bytes are there when they come, and not one after the other.
fn find_no_order([from, to]: &[End; 2], peer: &Arc<Peer>) {
    let _back = to.peer(from);
    from.memory.fill(0..BYTES, 7);
    (0..WRITES).for_each(|_| to.receive());
    let mut ended = Vec::new();
    let mut come = Vec::new();
    let poll = |queue: &CompletionQueue, found: &mut Vec<Completion>| {
        let mut room = [Completion::default(); 4];
        let count = queue.poll(&mut room).unwrap();
        found.extend(&room[..count]);
    };
    for number in 0..WRITES {
        let write = from.write_of(number, (peer, to), BYTES / WRITES as usize);
        until(|| {
            poll(&from.queue, &mut ended);
            from.endpoint.post_write(&write).unwrap() == Posted::Started
        });
    }
    until(|| {
        poll(&from.queue, &mut ended);
        poll(&to.queue, &mut come);
        ended.len() == WRITES as usize && come.len() == WRITES as usize
    });
    let numbers: Vec<u64> = come
        .iter()
        .filter_map(|one| one.data())
        .map(u64::from)
        .collect();
    let ids: Vec<u64> = ended.iter().filter_map(Completion::id).collect();
    assert_eq!(
        (numbers.len(), ids.len()),
        (WRITES as usize, WRITES as usize)
    );
    assert!(
        !numbers.is_sorted() && !ids.is_sorted(),
        "{numbers:?} {ids:?}"
    );
    let copied = to.memory.copy(0..BYTES / WRITES as usize * WRITES as usize);
    let right = (0..)
        .zip(&copied)
        .all(|(index, byte)| *byte == super::rig::pattern(index, 7));
    assert!(right);
}

/// Breaks a rule, and waits to be ended.
pub fn run(name: &str) {
    let entries = if name == "overrun" { 4 } else { 64 };
    let ends = [End::new(entries), End::new(64)];
    let there = ends[0].peer(&ends[1]);
    match name {
        "overrun" => {
            let _back = ends[1].peer(&ends[0]);
            (0..5).for_each(|_| ends[0].write((&there, &ends[1])));
        }
        "unknown" => ends[0].write((&there, &ends[1])),
        "receives" => (0..129).for_each(|_| ends[0].receive()),
        "order" => return find_no_order(&ends, &there),
        other => panic!("no role {other}"),
    }
    std::thread::sleep(PATIENCE);
}

/// What breaks a rule: calls of `run` and of `wrong.c`, with a part of the sentence.
const OF_FABRIC_SYS: [(&str, &str); 3] = [
    ("overrun", "a completion queue of 4 entries overruns"),
    ("unknown", "was never inserted in this address vector"),
    ("receives", "more than 128 receives are posted"),
];
const OF_C: [(&str, &str); 12] = [
    ("no descriptor", "no descriptor of a region of its domain"),
    ("unregistered", "memory outside of the region that it names"),
    (
        "behind the end",
        "memory outside of the region that it names",
    ),
    ("too long", "a post of 65536 bytes, at most 32768"),
    ("no peer", "a post to a peer that is not in the vector"),
    ("context twice", "a context is used twice"),
    ("context changed", "a context was changed"),
    ("region in use", "a region is closed while 1 others need it"),
    ("peer in use", "a peer is closed while 1 others need it"),
    ("queue in use", "a completion queue is closed while"),
    ("domain in use", "a domain is closed while"),
    ("cancel", "nothing can be cancelled"),
];

fn check(command: &mut Command, (rule, sentence): (&str, &str)) {
    let output = Child::start(command).end();
    let told = text(&output);
    let is_told = told.contains("efa rules: ") && told.contains(sentence);
    assert!(!output.status.success() && is_told, "{rule}: {told}");
}

#[test]
fn broken_rules_end_the_process_with_their_sentence() {
    let Some(library) = library() else { return };
    for rule in OF_FABRIC_SYS {
        check(&mut role(rule.0, library), rule);
    }
    let sources = [&["wrong.c"][..], &build::SOURCES].concat();
    let program = build::build("efa-wrong", &sources, &[]).unwrap();
    let wrong = |rule: &str| {
        let mut command = Command::new(&program);
        command.arg(rule).env("EFA_RULES_BYTES_MAX", "32768");
        command
    };
    for rule in OF_C {
        check(&mut wrong(rule.0), rule);
    }
    let right = Child::start(&mut wrong("none")).end();
    assert!(right.status.success(), "{}", text(&right));
}

/// Of 24 writes some come out of order: all orders are as likely.
#[test]
fn writes_and_their_completions_come_in_no_order() {
    let Some(library) = library() else { return };
    let output = Child::start(&mut role("order", library)).end();
    assert!(output.status.success(), "{}", text(&output));
}
