//! The cases of clauses 1 to 9: queues, completions, failures, matching, lengths. The rest is in
//! `cases_more.rs`, `cases_withdrawal.rs` and `cases_slots.rs`.

use super::script::Step::*;
use super::script::{Case, Clock, Step};
use linerate::Rank;
use linerate::transport::{CONTROL_BYTES, Outcome, URGENT_CLASS, URGENT_MESSAGES};

/// Lengths around every limit: empty, one, a line, the inline limit and one more, several chunks.
pub const LENGTHS: [usize; 7] = [0, 1, 64, 4096, 4097, 70_000, 300_001];

/// A plain message, told apart by its number: header, bytes and token follow from it.
pub fn send(to: Rank, tag: u64, number: u64, bytes: usize) -> Step {
    Send {
        to,
        tag,
        header: number ^ 0xabcd,
        bytes,
        seed: number,
        token: number,
    }
}

/// A receive for such a message.
pub fn recv(from: Rank, tag: u64, number: u64, bytes: usize) -> Step {
    Recv {
        from,
        tag,
        bytes,
        token: number + 1_000_000,
    }
}

/// It has arrived.
pub fn received(number: u64, bytes: usize) -> Step {
    Received {
        token: number + 1_000_000,
        header: number ^ 0xabcd,
        bytes,
        seed: number,
    }
}

/// A send or put of this number was completed.
pub fn done(number: u64) -> Step {
    Expect {
        token: number,
        outcome: Outcome::Done,
    }
}

/// A put whose bytes are told by its number.
pub fn put(to: Rank, region: u8, offset: u64, number: u64, bytes: usize) -> Step {
    Put {
        to,
        region,
        offset,
        bytes,
        seed: number,
        token: number,
    }
}

/// A get.
pub fn get(from: Rank, region: u8, offset: u64, number: u64, bytes: usize) -> Step {
    Get {
        from,
        region,
        offset,
        bytes,
        token: number,
    }
}

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = vec![
        stalled_peer("clause_01_calls_return_while_the_peer_does_nothing"),
        traffic("traffic").with_clock("clause_02_a_frozen_clock_stops_nothing", Clock::Frozen),
        traffic("traffic").with_clock("clause_02_a_jumping_clock_hurts_nothing", Clock::Wild),
        full_queue(),
        traffic("clause_04_every_kind_of_post_completes_once"),
        failed_peer(
            "clause_05_a_peer_that_exits_flushes_what_was_outstanding",
            false,
        ),
        failed_peer("clause_05_a_peer_that_exits_in_the_middle_of_traffic", true),
        last_message(),
        order_of_a_tag(),
        interleaved_tags(),
        unexpected_messages(),
        told_messages(),
        urgent_messages(),
        late_receive_after_scribbling(),
        put_before_message(),
        put_before_put(),
        wrong_lengths(),
    ];
    cases.extend(super::cases_more::all());
    cases.extend(super::cases_withdrawal::all());
    cases.extend(super::cases_slots::all());
    cases
}

fn stalled_peer(name: &'static str) -> Case {
    let mut busy = vec![
        Learn { region: 1, from: 1 },
        put(1, 1, 0, 1, 100_000),
        get(1, 1, 0, 2, 100_000),
        recv(1, 9, 3, 8),
    ];
    busy.extend((10..20).map(|number| send(1, 4, number, 70_000)));
    let mut stalled = vec![
        Share {
            region: 1,
            bytes: 100_000,
            to: 0,
        },
        Absent { steps: 100 },
    ];
    stalled.extend((10..20).map(|number| recv(0, 4, number, 70_000)));
    stalled.extend((10..20).map(|number| received(number, 70_000)));
    stalled.push(send(0, 9, 3, 8));
    busy.push(received(3, 8));
    Case::orderly(name, vec![busy, stalled])
}

fn full_queue() -> Case {
    let (from, to, tag) = (0, 1, 4);
    Case::orderly(
        "clause_03_a_full_queue_refuses_and_accepts_again_later",
        vec![
            vec![Fill { to, tag }, Signal { to: 2 }, Overflow { to, tag }],
            vec![Wait { from: 2 }, Drain { from, tag }, Quiet { polls: 30 }],
            vec![Wait { from: 0 }, Signal { to: 1 }],
        ],
    )
}

/// Sends, puts, gets, receives, cancelled and truncated ones, in both directions at once.
fn traffic(name: &'static str) -> Case {
    let role = |peer: Rank| {
        let mut steps = vec![
            Share {
                region: 1,
                bytes: 400_000,
                to: peer,
            },
            Learn {
                region: 1,
                from: peer,
            },
        ];
        for (number, &bytes) in (100..).zip(&LENGTHS) {
            steps.extend([
                recv(peer, number % 3, number, bytes + 10),
                send(peer, number % 3, number, bytes),
                put(peer, 1, 7, number + 100, bytes),
                get(peer, 1, 7, number + 200, bytes),
            ]);
        }
        steps.extend([
            recv(peer, 50, 900, 16),
            Step::Cancel {
                peer,
                token: 1_000_900,
            },
        ]);
        steps.extend([recv(peer, 51, 901, 3), send(peer, 51, 901, 5_000)]);
        for (number, &bytes) in (100..).zip(&LENGTHS) {
            steps.extend([
                received(number, bytes),
                done(number),
                done(number + 100),
                done(number + 200),
            ]);
        }
        steps.push(Expect {
            token: 1_000_900,
            outcome: Outcome::Cancelled,
        });
        steps.push(Truncated {
            token: 1_000_901,
            header: 901 ^ 0xabcd,
            bytes: 5_000,
        });
        steps
    };
    Case::orderly(name, vec![role(1), role(0)])
}

fn failed_peer(name: &'static str, is_busy: bool) -> Case {
    let survivor = |other: Rank| {
        let mut steps = vec![
            MayLose { peer: 1 },
            Learn { region: 1, from: 1 },
            recv(1, 4, 1, 100),
            recv(1, 5, 2, 100_000),
            send(1, 6, 3, 100_000),
            send(1, 6, 4, 16),
        ];
        if is_busy {
            steps.extend((20..40).map(|number| recv(1, 7, number, 100_000)));
        }
        steps.push(Signal { to: 1 });
        if is_busy {
            steps.extend((20..30).map(|number| put(1, 1, 0, number, 4_000)));
        }
        steps.extend([
            Failed { peer: 1 },
            send(other, 8, 50, 50_000),
            recv(other, 8, 50, 50_000),
            received(50, 50_000),
        ]);
        steps
    };
    let mut exiting: Vec<Step> = [0, 2]
        .map(|to| Share {
            region: 1,
            bytes: 4_096,
            to,
        })
        .into();
    exiting.extend([Wait { from: 0 }, Wait { from: 2 }]);
    if is_busy {
        exiting.extend((20..40).map(|number| send(0, 7, number, 100_000)));
    }
    exiting.push(Exit);
    let mut case = Case::abrupt(name, vec![survivor(2), exiting, survivor(0)]);
    // The survivors meet before they leave each other.
    for (role, other) in [(0, 2), (2, 0)] {
        let steps = &mut case.roles[role];
        let end = steps.iter().position(|s| matches!(s, Finish)).unwrap();
        steps.splice(end..end, [Settle, Quiet { polls: 20 }]);
        let end = steps.iter().position(|s| matches!(s, Finish)).unwrap() + 1;
        steps.splice(end..end, [Signal { to: other }, Wait { from: other }]);
    }
    case
}

/// What had arrived before its sender failed can be received afterwards.
fn last_message() -> Case {
    let survivor = vec![
        MayLose { peer: 1 },
        Wait { from: 1 },
        Signal { to: 1 },
        Failed { peer: 1 },
        recv(1, 9, 60, 16),
        received(60, 16),
    ];
    let exiting = vec![
        send(0, 9, 60, 16),
        // In virtual time too the message is there when this is over.
        Quiet { polls: 100 },
        Signal { to: 0 },
        Wait { from: 0 },
        Exit,
    ];
    Case::abrupt(
        "clause_05_what_arrived_before_the_failure_can_be_received_after_it",
        vec![survivor, exiting],
    )
}

fn order_of_a_tag() -> Case {
    let lengths = |number: u64| LENGTHS[number as usize % 6];
    let numbers = || 0..60u64;
    let mut receiver: Vec<Step> = (0..30)
        .map(|number| recv(0, 4, number, lengths(number)))
        .collect();
    receiver.extend((0..30).map(|number| received(number, lengths(number))));
    receiver.extend((30..60).map(|number| recv(0, 4, number, lengths(number))));
    receiver.extend((30..60).map(|number| received(number, lengths(number))));
    let sender = numbers()
        .map(|number| send(1, 4, number, lengths(number)))
        .collect();
    Case::orderly(
        "clause_06_messages_of_one_tag_match_in_the_order_sent",
        vec![sender, receiver],
    )
}

fn interleaved_tags() -> Case {
    let bytes = |number: u64| [8, 9_000, 0][number as usize % 3];
    let numbers = 0..45u64;
    let sender = |to| {
        (numbers.clone())
            .map(|number| send(to, number % 5, number, bytes(number)))
            .collect::<Vec<_>>()
    };
    // Two senders use the same tags; the receiver looks at the tags one after the other, backwards.
    let mut receiver = Vec::new();
    for tag in (0..5).rev() {
        for from in [0, 2] {
            for number in numbers.clone().filter(|n| n % 5 == tag) {
                let token = 1_000_000 + number + 500 * u64::from(from);
                receiver.push(Recv {
                    from,
                    tag,
                    bytes: bytes(number),
                    token,
                });
                receiver.push(Received {
                    token,
                    header: number ^ 0xabcd,
                    bytes: bytes(number),
                    seed: number,
                });
            }
        }
    }
    Case::orderly(
        "clause_06_tags_and_peers_do_not_mix",
        vec![sender(1), receiver, sender(1)],
    )
}

fn unexpected_messages() -> Case {
    let bytes = |number: u64| [0, 4_096, 40_000][number as usize % 3];
    let mut sender: Vec<Step> = (0..50)
        .map(|number| send(1, 4, number, bytes(number)))
        .collect();
    sender.extend([send(1, 5, 70, 16), send(1, 6, 71, 60_000)]);
    let mut receiver = vec![recv(0, 5, 70, 16), recv(0, 6, 71, 60_000)];
    receiver.extend([received(70, 16), received(71, 60_000)]);
    receiver.extend((0..50).map(|number| recv(0, 4, number, bytes(number))));
    receiver.extend((0..50).map(|number| received(number, bytes(number))));
    Case::orderly(
        "clause_07_unexpected_messages_hold_no_other_tag_up",
        vec![sender, receiver],
    )
}

/// A message that finds no receive is told, once, whatever its length; one that finds one is not,
/// and neither are those with other tags.
fn told_messages() -> Case {
    let (telling, silent) = (0b111u64 << 61, 0b110u64 << 61);
    let all = || (0..).zip(LENGTHS);
    let mut sender = vec![Absent { steps: 20 }];
    let mut receiver = vec![
        recv(0, telling | 100, 100, 64),
        recv(0, telling | 101, 101, 70_000),
    ];
    sender.extend([
        send(1, telling | 100, 100, 64),
        send(1, telling | 101, 101, 70_000),
    ]);
    receiver.extend([received(100, 64), received(101, 70_000)]);
    for (number, bytes) in all() {
        sender.push(send(1, telling | number, number, bytes));
        sender.push(send(1, silent | number, number + 20, bytes));
        receiver.push(Told {
            from: 0,
            tag: telling | number,
        });
    }
    for (number, bytes) in all() {
        receiver.extend([
            recv(0, telling | number, number, bytes),
            received(number, bytes),
            recv(0, silent | number, number + 20, bytes),
            received(number + 20, bytes),
        ]);
    }
    // To itself, too.
    receiver.extend([
        send(1, telling | 50, 50, 300),
        Told {
            from: 1,
            tag: telling | 50,
        },
        recv(1, telling | 50, 50, 300),
        received(50, 300),
    ]);
    Case::orderly(
        "clause_22_a_message_that_waits_for_its_receive_is_told_once",
        vec![sender, receiver],
    )
}

/// News of a failure must reach a peer that takes nothing, whatever had been sent to it before.
fn urgent_messages() -> Case {
    let tag = (URGENT_CLASS as u64) << 62;
    // Not the class of the actors' own signals, which could not be sent either.
    let mut sender: Vec<Step> = [1u64, 3]
        .into_iter()
        .flat_map(|class| [4096, 64, 0].map(|bytes| (class << 62 | 4, bytes)))
        .map(|(tag, bytes)| Stuff { to: 1, tag, bytes })
        .collect();
    let mut receiver = vec![Absent { steps: 500 }];
    for number in 0..u64::from(URGENT_MESSAGES) {
        sender.push(SendAtOnce {
            to: 1,
            tag,
            bytes: CONTROL_BYTES,
            token: number,
        });
        receiver.push(recv(0, tag, number, CONTROL_BYTES));
        receiver.push(received(number, CONTROL_BYTES));
    }
    Case::orderly(
        "clause_07_urgent_messages_find_room_whatever_else_was_sent",
        vec![sender, receiver],
    )
}

fn late_receive_after_scribbling() -> Case {
    // A large send may complete only with the receive, so the signal cannot wait for it.
    let mut sender: Vec<Step> = Vec::new();
    for (number, &bytes) in (0..).zip(&LENGTHS) {
        sender.push(send(1, 4, number, bytes));
    }
    sender.push(Signal { to: 1 });
    for number in 0..LENGTHS.len() as u64 {
        sender.extend([done(number), Scribble { token: number }]);
    }
    let mut receiver = vec![Wait { from: 0 }, Quiet { polls: 20 }];
    for (number, &bytes) in (0..).zip(&LENGTHS) {
        receiver.push(recv(0, 4, number, bytes));
        receiver.push(received(number, bytes));
    }
    Case::orderly(
        "clause_08_a_completed_send_leaves_its_source_free",
        vec![sender, receiver],
    )
}

fn put_before_message() -> Case {
    let (mut sender, mut receiver) = (
        vec![Learn { region: 1, from: 1 }],
        vec![Share {
            region: 1,
            bytes: 400_000,
            to: 0,
        }],
    );
    for (number, &bytes) in (0..).zip(&LENGTHS) {
        sender.extend([
            put(1, 1, 11, number, bytes),
            done(number),
            Scribble { token: number },
            Signal { to: 1 },
            Wait { from: 1 },
            get(1, 1, 11, number + 50, bytes),
            Got {
                token: number + 50,
                seed: number,
            },
        ]);
        receiver.extend([
            Wait { from: 0 },
            Check {
                region: 1,
                offset: 11,
                bytes,
                seed: number,
            },
            Signal { to: 0 },
        ]);
    }
    Case::orderly(
        "clause_08_a_completed_put_is_visible_before_a_later_message",
        vec![sender, receiver],
    )
}

fn put_before_put() -> Case {
    let mut sender = vec![Learn { region: 1, from: 1 }];
    let mut receiver = vec![Share {
        region: 1,
        bytes: 400_000,
        to: 0,
    }];
    for (round, bytes) in (0..).zip([64, 4_097, 200_000]) {
        let flag = 399_000 + round as usize;
        sender.extend([
            put(1, 1, 100, 10 * round, bytes),
            done(10 * round),
            put(1, 1, flag as u64, 10 * round + 1, 1),
            Wait { from: 1 },
        ]);
        receiver.extend([
            Await {
                region: 1,
                offset: flag,
            },
            Check {
                region: 1,
                offset: 100,
                bytes,
                seed: 10 * round,
            },
            Signal { to: 0 },
        ]);
    }
    Case::orderly(
        "clause_08_a_completed_put_is_visible_before_a_later_put",
        vec![sender, receiver],
    )
}

fn wrong_lengths() -> Case {
    let (mut sender, mut receiver) = (Vec::new(), Vec::new());
    let lengths = [(1, 0), (100, 99), (4_096, 10), (5_000, 4_999), (90_000, 1)];
    for (number, (sent, room)) in (0..).zip(lengths) {
        receiver.push(recv(0, 4, number, room));
        receiver.push(Truncated {
            token: number + 1_000_000,
            header: number ^ 0xabcd,
            bytes: sent,
        });
        // The message after it is not disturbed, and may be shorter than its receive.
        receiver.push(recv(0, 4, number + 100, sent + 50));
        receiver.push(received(number + 100, sent));
        sender.push(send(1, 4, number, sent));
        sender.push(send(1, 4, number + 100, sent));
    }
    sender.extend((0..5).map(done));
    Case::orderly(
        "clause_09_a_message_too_long_writes_nothing_and_tells_its_length",
        vec![sender, receiver],
    )
}
