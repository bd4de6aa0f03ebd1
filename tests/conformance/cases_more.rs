//! The cases of clauses 10 to 21: memory, headers, cancelling, disconnecting, oneself, empty,
//! wake-ups, injecting, atomic operations, leaving. Clause 18 is in `cases_withdrawal.rs`.

use super::cases::{LENGTHS, done, get, put, received, recv, send};
use super::script::Step::*;
use super::script::{Case, NOWHERE, Step};
use linerate::transport::{Atomic, Outcome};

/// Every case of this file.
pub fn all() -> Vec<Case> {
    vec![
        unregistered_memory(),
        ended_registration(),
        outside_of_a_region(),
        headers(),
        cancelled_receive(),
        cancel_race(),
        disconnected(),
        oneself(),
        empty_everything(),
        woken_by("clause_17_a_notification_wakes", Notify { peer: 0 }),
        woken_by("clause_17_a_message_wakes", send(0, 4, 1, 16)),
        woken_by_put(),
        injected_messages(),
        changed_words(),
        refused_changes(),
        leaving(),
    ]
}

pub fn share(to: u32, region: u8, bytes: usize) -> Step {
    Share { region, bytes, to }
}

pub fn bad_key(token: u64) -> Step {
    Expect {
        token,
        outcome: Outcome::BadKey,
    }
}

fn unregistered_memory() -> Case {
    let sender = vec![
        Learn { region: 1, from: 1 },
        RefusedUnregistered { to: 1, region: 1 },
        // Up to the inline limit the bytes are copied when posted.
        send(1, 4, 1, 64),
        Scribble { token: 1 },
        send(1, 4, 2, 4_096),
        Scribble { token: 2 },
        put(1, 1, 0, 3, 48),
        Scribble { token: 3 },
        done(3),
        Signal { to: 1 },
    ];
    let receiver = vec![
        share(0, 1, 5_000),
        recv(0, 4, 1, 64),
        recv(0, 4, 2, 4_096),
        received(1, 64),
        received(2, 4_096),
        Wait { from: 0 },
        Check {
            region: 1,
            offset: 0,
            bytes: 48,
            seed: 3,
        },
    ];
    Case::orderly(
        "clause_10_only_inline_bytes_may_be_unregistered",
        vec![sender, receiver],
    )
}

fn ended_registration() -> Case {
    let user = vec![
        Learn { region: 1, from: 1 },
        put(1, 1, 0, 1, 5_000),
        done(1),
        Signal { to: 1 },
        Wait { from: 1 },
        put(1, 1, 0, 2, 5_000),
        put(1, 1, 0, 3, 8),
        get(1, 1, 0, 4, 5_000),
        bad_key(2),
        bad_key(3),
        bad_key(4),
        Signal { to: 1 },
        // A new region does not have the old key (the actors check that), and works.
        Learn { region: 1, from: 1 },
        put(1, 1, 0, 5, 5_000),
        done(5),
        Signal { to: 1 },
    ];
    let owner = vec![
        share(0, 1, 5_000),
        Wait { from: 0 },
        Deregister { region: 1 },
        Quiet { polls: 30 },
        Signal { to: 0 },
        Wait { from: 0 },
        Check {
            region: 1,
            offset: 0,
            bytes: 5_000,
            seed: 1,
        },
        share(0, 1, 5_000),
        Wait { from: 0 },
        Check {
            region: 1,
            offset: 0,
            bytes: 5_000,
            seed: 5,
        },
    ];
    Case::orderly(
        "clause_11_an_ended_registration_is_a_bad_key",
        vec![user, owner],
    )
}

fn outside_of_a_region() -> Case {
    let user = vec![
        Learn { region: 1, from: 1 },
        put(1, NOWHERE, 0, 1, 8),
        get(1, NOWHERE, 0, 2, 8),
        put(1, 1, 9_993, 3, 8),
        put(1, 1, u64::MAX - 3, 4, 8),
        get(1, 1, 1, 5, 10_000),
        get(1, 1, 10_001, 6, 0),
        bad_key(1),
        bad_key(2),
        bad_key(3),
        bad_key(4),
        bad_key(5),
        bad_key(6),
        Signal { to: 1 },
        Wait { from: 1 },
        put(1, 1, 9_992, 7, 8),
        get(1, 1, 0, 8, 10_000),
        done(7),
        done(8),
    ];
    let owner = vec![
        share(0, 1, 10_000),
        Wait { from: 0 },
        Untouched { region: 1 },
        Signal { to: 0 },
    ];
    Case::orderly(
        "clause_11_what_is_not_inside_a_region_is_not_touched",
        vec![user, owner],
    )
}

fn headers() -> Case {
    let headers = [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63];
    let (mut sender, mut receiver) = (Vec::new(), Vec::new());
    for (token, (&header, &bytes)) in (0..).zip(headers.iter().cycle().zip(&LENGTHS)) {
        sender.push(Send {
            to: 1,
            tag: u64::MAX >> 4,
            header,
            bytes,
            seed: token,
            token,
        });
        receiver.push(Recv {
            from: 0,
            tag: u64::MAX >> 4,
            bytes,
            token,
        });
    }
    for (token, (&header, &bytes)) in (0..).zip(headers.iter().cycle().zip(&LENGTHS)) {
        receiver.push(Received {
            token,
            header,
            bytes,
            seed: token,
        });
    }
    Case::orderly(
        "clause_12_the_header_arrives_with_its_message",
        vec![sender, receiver],
    )
}

/// Every other one is injected where that can be (`Actor::send`), and its source used again at
/// once.
fn injected_messages() -> Case {
    let lengths = [0, 1, 64, 4_096, 64, 8, 4_096, 0];
    let numbered = || (1..).zip(lengths);
    let sender = numbered().map(|(number, bytes)| send(1, 4, number, bytes));
    let receives = numbered().map(|(number, bytes)| recv(0, 4, number, bytes));
    let ends = numbered().map(|(number, bytes)| received(number, bytes));
    Case::orderly(
        "clause_19_injected_messages_come_as_they_were",
        vec![sender.collect(), receives.chain(ends).collect()],
    )
}

/// Counts of the word that each of three ranks makes.
const CHANGES: u64 = 40;

/// Three ranks, of which one owns the words, add to one and try to be first at another.
fn changed_words() -> Case {
    let change = |offset, what, token| Change {
        of: 0,
        region: 1,
        offset,
        what,
        token,
    };
    let counts = |rank: u64| {
        let swap = Atomic::CompareSwap {
            compare: 0,
            swap: 1 + rank,
        };
        let adds = (1..=CHANGES).map(move |token| change(8, Atomic::FetchAdd(1), token));
        let all = 3 * CHANGES - 1;
        let added = (1..=CHANGES).map(move |token| Changed {
            token,
            least: 0,
            most: all,
        });
        let swaps = [1_001, 1_002].map(|token| change(16, swap, token));
        let swapped = [(1_001, 0), (1_002, 1)].map(|(token, least)| Changed {
            token,
            least,
            most: 3,
        });
        adds.chain(swaps).chain(added).chain(swapped)
    };
    let owner = [share(1, 1, 64), ShareAlso { region: 1, to: 2 }].into_iter();
    let end = AwaitWord {
        region: 1,
        offset: 8,
        value: 3 * CHANGES,
    };
    let other = |rank| {
        let learn = [Learn { region: 1, from: 0 }].into_iter();
        learn.chain(counts(rank)).collect()
    };
    Case::orderly(
        "clause_20_every_change_is_made_once_and_tells_what_was_there",
        vec![
            owner.chain(counts(0)).chain([end]).collect(),
            other(1),
            other(2),
        ],
    )
}

/// One rank leaves right after its last posts, while the other does not even poll.
fn leaving() -> Case {
    let leaver = vec![
        Learn { region: 1, from: 1 },
        send(1, 4, 1, 64),
        send(1, 4, 2, 4_096),
        send(1, 5, 3, 100_000),
        put(1, 1, 0, 4, 48),
        put(1, 1, 1_000, 5, 60_000),
        // The other rank ends after it has heard of the leave, and this rank may still be waiting
        // for the acknowledgements of its kernel then.
        MayLose { peer: 1 },
        Leave { word: 77 },
    ];
    let pattern = |offset, bytes, seed| Check {
        region: 1,
        offset,
        bytes,
        seed,
    };
    let stays = vec![
        share(0, 1, 70_000),
        MayLose { peer: 0 },
        Absent { steps: 60 },
        recv(0, 5, 3, 100_000),
        Left { peer: 0, word: 77 },
        pattern(0, 48, 4),
        pattern(1_000, 60_000, 5),
        received(3, 100_000),
        // Short ones meet receives that are posted afterwards.
        recv(0, 4, 1, 64),
        recv(0, 4, 2, 4_096),
        received(1, 64),
        received(2, 4_096),
        Failed { peer: 0 },
    ];
    Case::abrupt(
        "clause_21_what_was_sent_before_leaving_arrives",
        vec![leaver, stays],
    )
}

fn refused_changes() -> Case {
    let what = Atomic::FetchAdd(1);
    let change = |region, offset, token| Change {
        of: 1,
        region,
        offset,
        what,
        token,
    };
    let poster = vec![
        Learn { region: 1, from: 1 },
        RefusedChange { of: 1, region: 1 },
        // The last word, behind it, and of no region.
        change(1, 56, 1),
        change(1, 64, 2),
        change(NOWHERE, 0, 3),
        Changed {
            token: 1,
            least: 0,
            most: 0,
        },
        bad_key(2),
        bad_key(3),
    ];
    let owner = vec![
        share(0, 1, 64),
        AwaitWord {
            region: 1,
            offset: 56,
            value: 1,
        },
    ];
    Case::orderly(
        "clause_20_words_that_are_none_are_refused",
        vec![poster, owner],
    )
}

fn cancel(number: u64) -> Step {
    Cancel {
        peer: 0,
        token: number + 1_000_000,
    }
}

fn cancelled_receive() -> Case {
    let receiver = vec![
        recv(0, 4, 1, 64),
        recv(0, 4, 2, 64),
        recv(0, 4, 3, 9_000),
        cancel(1),
        // Of nothing, and of something that was cancelled already.
        cancel(77),
        cancel(1),
        Expect {
            token: 1_000_001,
            outcome: Outcome::Cancelled,
        },
        Signal { to: 0 },
        received(2, 64),
        received(3, 9_000),
        // Of something that has ended: nothing happens.
        cancel(2),
        Quiet { polls: 30 },
    ];
    let sender = vec![Wait { from: 1 }, send(1, 4, 2, 64), send(1, 4, 3, 9_000)];
    Case::orderly(
        "clause_13_a_cancelled_receive_ends_once_and_takes_no_message",
        vec![sender, receiver],
    )
}

fn cancel_race() -> Case {
    let outcomes = [Outcome::Done, Outcome::Cancelled];
    let mut receiver = vec![Signal { to: 0 }];
    let mut sender = vec![Wait { from: 1 }];
    for number in 0..20 {
        let bytes = [16, 9_000][number as usize % 2];
        sender.push(send(1, number, number, bytes));
        receiver.push(recv(0, number, number, bytes));
        receiver.push(Absent {
            steps: number as u32,
        });
        receiver.push(cancel(number));
        receiver.push(ExpectEither {
            token: number + 1_000_000,
            outcomes,
        });
    }
    let mut case = Case::orderly(
        "clause_13_cancelling_in_a_race_with_the_message_ends_once",
        vec![sender, receiver],
    );
    // Messages whose receives were cancelled stay unmatched, and large ones of them incomplete.
    case.roles[0].retain(|step| !matches!(step, Settle | Quiet { .. }));
    case
}

fn disconnected() -> Case {
    let leaving = vec![
        recv(1, 4, 1, 100),
        recv(1, 5, 2, 9_000),
        send(1, 6, 3, 9_000),
        Wait { from: 1 },
        MayLose { peer: 1 },
        Disconnect { peer: 1 },
        Settle,
        Expect {
            token: 1_000_001,
            outcome: Outcome::Flushed,
        },
        Expect {
            token: 1_000_002,
            outcome: Outcome::Flushed,
        },
        // A provider may have taken it although nobody receives it.
        ExpectEither {
            token: 3,
            outcomes: [Outcome::Flushed, Outcome::Done],
        },
        Signal { to: 2 },
        Quiet { polls: 100 },
        Signal { to: 2 },
        Wait { from: 2 },
    ];
    let left = vec![
        Signal { to: 0 },
        MayLose { peer: 0 },
        Wait { from: 2 },
        // Into the void: accepted or not, it must not arrive.
        send(0, 4, 10, 100),
        send(0, 5, 11, 9_000),
        Failed { peer: 0 },
        Signal { to: 2 },
        Wait { from: 2 },
    ];
    let third = vec![
        Wait { from: 0 },
        Signal { to: 1 },
        Wait { from: 0 },
        Wait { from: 1 },
        Finish,
        Signal { to: 0 },
        Signal { to: 1 },
    ];
    Case::abrupt(
        "clause_14_after_a_disconnect_nothing_is_reported",
        vec![leaving, left, third],
    )
}

fn oneself() -> Case {
    let mut steps = vec![share(0, 1, 400_000), Learn { region: 1, from: 0 }];
    for (number, &bytes) in (0..).zip(&LENGTHS) {
        steps.extend([
            // The receive first, then the message first.
            recv(0, 4, number, bytes),
            send(0, 4, number, bytes),
            received(number, bytes),
            send(0, 5, number + 100, bytes),
            recv(0, 5, number + 100, bytes),
            received(number + 100, bytes),
            put(0, 1, 3, number + 200, bytes),
            done(number + 200),
            get(0, 1, 3, number + 300, bytes),
            Got {
                token: number + 300,
                seed: number + 200,
            },
        ]);
    }
    Case::orderly("clause_15_a_rank_is_its_own_peer", vec![steps])
}

fn empty_everything() -> Case {
    let role = |peer| {
        vec![
            share(peer, 1, 0),
            Learn {
                region: 1,
                from: peer,
            },
            recv(peer, 4, 1, 0),
            recv(peer, 4, 2, 100),
            send(peer, 4, 1, 0),
            send(peer, 4, 2, 0),
            put(peer, 1, 0, 3, 0),
            get(peer, 1, 0, 4, 0),
            received(1, 0),
            received(2, 0),
            done(1),
            done(2),
            done(3),
            done(4),
        ]
    };
    Case::orderly(
        "clause_16_nothing_can_be_sent_put_and_got",
        vec![role(1), role(0)],
    )
}

fn woken_by(name: &'static str, waker: Step) -> Case {
    let is_message = matches!(waker, Send { .. });
    let mut sleeper = vec![Signal { to: 1 }];
    if is_message {
        sleeper.push(recv(1, 4, 1, 16));
    }
    sleeper.push(Sleep);
    if is_message {
        sleeper.push(received(1, 16));
    }
    // Nothing else is said until it has woken up: that would wake it, too.
    sleeper.push(Signal { to: 1 });
    let waking = vec![
        Wait { from: 0 },
        Absent { steps: 300 },
        waker,
        Wait { from: 0 },
    ];
    Case::orderly(name, vec![sleeper, waking])
}

fn woken_by_put() -> Case {
    let sleeper = vec![
        share(1, 1, 4_096),
        Wait { from: 1 },
        Sleep,
        Await {
            region: 1,
            offset: 0,
        },
        Signal { to: 1 },
    ];
    let waking = vec![
        Learn { region: 1, from: 0 },
        Signal { to: 0 },
        Absent { steps: 300 },
        put(0, 1, 0, 1, 64),
        Wait { from: 0 },
    ];
    Case::orderly("clause_17_a_put_wakes", vec![sleeper, waking])
}
