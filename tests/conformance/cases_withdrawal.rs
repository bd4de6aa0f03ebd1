//! The cases of clause 18: memory that is taken back while messages and puts are under way.

use super::cases::{done, put, received, recv, send};
use super::cases_more::share;
use super::script::Step::*;
use super::script::{Case, Step};
use linerate::transport::Outcome;
use std::ops::Range;

/// Every case of this file.
pub fn all() -> Vec<Case> {
    vec![
        withdrawn_before("clause_18_a_withdrawn_message_comes_as_it_was_or_never"),
        withdrawn("clause_18_a_message_is_withdrawn_while_it_is_read"),
        withdrawn_puts("clause_18_a_withdrawn_put_comes_as_it_was_or_never", 0),
        withdrawn_puts("clause_18_a_put_is_withdrawn_while_it_is_written", 3),
        told_to_readers(),
    ]
}

/// A peer that reads mapped memory looks after its last read whether that still counts.
fn told_to_readers() -> Case {
    let owner = vec![Wait { from: 1 }, Withdraw, Signal { to: 1 }];
    let reader = vec![
        HasWithdrawn {
            peer: 0,
            is_so: false,
        },
        Signal { to: 0 },
        Wait { from: 0 },
        HasWithdrawn {
            peer: 0,
            is_so: true,
        },
    ];
    let name = "clause_18_a_peer_that_maps_memory_is_told_that_it_was_withdrawn";
    Case::orderly(name, vec![owner, reader])
}

/// Messages, or puts. Together they are more than the buffers of a connection hold.
const NUMBERS: Range<u64> = 10..20;

fn bytes_of(number: u64) -> usize {
    100_000 * (1 + number as usize % 7)
}

/// Takes the memory back some polls after it was given, and writes over it at once.
fn take_back(polls: u32) -> Vec<Step> {
    let mut steps = vec![Absent { steps: polls }, Withdraw];
    steps.extend(NUMBERS.map(|token| Scribble { token }));
    steps
}

fn ends() -> impl Iterator<Item = Step> {
    let outcomes = [Outcome::Done, Outcome::Cancelled];
    NUMBERS.map(move |token| ExpectEither { token, outcomes })
}

/// A later message is not concerned.
fn send_later() -> [Step; 4] {
    [
        Signal { to: 1 },
        Wait { from: 1 },
        send(1, 40, 40, 70_000),
        done(40),
    ]
}

fn receive_later() -> [Step; 3] {
    [
        Signal { to: 0 },
        recv(0, 40, 40, 70_000),
        received(40, 70_000),
    ]
}

/// While the receives are posted.
fn withdrawn(name: &'static str) -> Case {
    let (mut sender, mut receiver) = (vec![Wait { from: 1 }], vec![Signal { to: 0 }]);
    sender.extend(sends());
    sender.extend(take_back(3));
    sender.extend(ends());
    receiver.extend(receives());
    receiver.push(Wait { from: 0 });
    receiver.extend(end_receives());
    sender.extend(send_later());
    receiver.extend(receive_later());
    Case::orderly(name, vec![sender, receiver])
}

/// The receives come after the memory was written over.
fn withdrawn_before(name: &'static str) -> Case {
    let mut sender: Vec<Step> = sends().collect();
    sender.extend(take_back(0));
    sender.push(Signal { to: 1 });
    sender.extend(ends());
    let mut receiver = vec![Wait { from: 0 }];
    receiver.extend(receives());
    // Time for whatever still comes.
    for _ in 0..4 {
        sender.extend([Wait { from: 1 }, Signal { to: 1 }]);
        receiver.extend([Signal { to: 0 }, Wait { from: 0 }]);
    }
    receiver.push(Wait { from: 0 });
    receiver.extend(end_receives());
    sender.extend(send_later());
    receiver.extend(receive_later());
    Case::orderly(name, vec![sender, receiver])
}

fn sends() -> impl Iterator<Item = Step> {
    NUMBERS.map(|number| send(1, number, number, bytes_of(number)))
}

fn receives() -> impl Iterator<Item = Step> {
    NUMBERS.map(|number| recv(0, number, number, bytes_of(number)))
}

fn end_receives() -> impl Iterator<Item = Step> {
    NUMBERS.flat_map(|seed| {
        let token = seed + 1_000_000;
        [
            Cancel { peer: 0, token },
            ReceivedOrCancelled { token, seed },
        ]
    })
}

fn withdrawn_puts(name: &'static str, polls: u32) -> Case {
    let mut sender = vec![Learn { region: 1, from: 1 }];
    let mut checks = Vec::new();
    let mut offset = 0;
    for number in NUMBERS {
        let bytes = bytes_of(number);
        sender.push(put(1, 1, offset as u64, number, bytes));
        checks.push(CheckPartly {
            region: 1,
            offset,
            bytes,
            seed: number,
        });
        offset += bytes;
    }
    sender.extend(take_back(polls));
    sender.extend(ends());
    sender.extend(send_later());
    let mut receiver = vec![share(0, 1, offset), Wait { from: 0 }];
    receiver.extend(checks.clone());
    receiver.extend(receive_later());
    // Nothing comes later either.
    receiver.extend(checks);
    Case::orderly(name, vec![sender, receiver])
}
