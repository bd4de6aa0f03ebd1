//! The cases of clause 23: slots that are connected again, to the peer that was there or to another
//! process.

use super::cases::{done, put, received, recv, send};
use super::cases_more::{bad_key, share};
use super::script::Step::*;
use super::script::{Case, Step};
use linerate::Rank;
use linerate::transport::Outcome;

/// Every case of this file.
pub fn all() -> Vec<Case> {
    vec![
        again(),
        ten_times(),
        under_way(),
        successor("clause_23_another_takes_the_slot_of_one_that_left", true),
        successor("clause_23_another_takes_the_slot_of_one_that_died", false),
        undisturbed(),
        oneself(),
    ]
}

/// Messages of every kind in both directions, numbered from `first` on: both sides do this.
fn exchange(peer: Rank, first: u64) -> Vec<Step> {
    let numbered = || (first..).zip([0, 64, 4_096, 70_000]);
    let mut steps = Vec::new();
    for (number, bytes) in numbered() {
        steps.extend([recv(peer, 4, number, bytes), send(peer, 4, number, bytes)]);
    }
    for (number, bytes) in numbered() {
        steps.extend([received(number, bytes), done(number)]);
    }
    steps
}

/// Connects again to the peer that was there.
fn connect(peer: Rank) -> Step {
    Connect {
        peer,
        address: peer as usize,
    }
}

fn flushed(number: u64) -> Step {
    Expect {
        token: number + 1_000_000,
        outcome: Outcome::Flushed,
    }
}

fn either(token: u64) -> Step {
    ExpectEither {
        token,
        outcomes: [Outcome::Done, Outcome::Flushed],
    }
}

/// The end: nothing is outstanding, and these peers meet once more.
fn meet(peers: &[Rank]) -> Vec<Step> {
    let mut steps = vec![Settle, Quiet { polls: 30 }, Finish];
    steps.extend(peers.iter().map(|&to| Signal { to }));
    steps.extend(peers.iter().map(|&from| Wait { from }));
    steps
}

/// One side disconnects, and the other one hears of it.
fn again() -> Case {
    let mut first = exchange(1, 100);
    first.extend([
        RefusedConnect { peer: 1 },
        recv(1, 7, 1, 100),
        send(1, 8, 2, 64),
        send(1, 8, 3, 70_000),
        Wait { from: 1 },
        Disconnect { peer: 1 },
        connect(1),
        flushed(1),
        either(2),
        either(3),
        send(1, 8, 210, 64),
        recv(1, 7, 211, 16),
    ]);
    first.extend(exchange(1, 200));
    first.extend([received(211, 16), RefusedConnect { peer: 1 }]);
    first.extend(meet(&[1]));
    let mut second = exchange(0, 100);
    second.extend([
        recv(0, 9, 5, 64),
        MayLose { peer: 0 },
        Signal { to: 0 },
        Failed { peer: 0 },
        flushed(5),
        connect(0),
        // These meet no message of before.
        recv(0, 8, 210, 64),
        send(0, 7, 211, 16),
    ]);
    second.extend(exchange(0, 200));
    second.push(received(210, 64));
    second.extend(meet(&[0]));
    Case::abrupt(
        "clause_23_a_peer_is_connected_again_and_nothing_of_before_comes",
        vec![first, second],
    )
}

/// In turn, each side disconnects.
fn ten_times() -> Case {
    let role = |own: Rank| {
        let peer = 1 - own;
        let mut steps = Vec::new();
        for epoch in 0..10 {
            steps.extend(exchange(peer, 100 * epoch));
            // No receive waits for this, in this epoch or a later one.
            steps.push(send(peer, 5, 100 * epoch + 50, 64));
            if epoch % 2 == u64::from(own) {
                steps.extend([Wait { from: peer }, Disconnect { peer }]);
            } else {
                steps.extend([MayLose { peer }, Signal { to: peer }, Failed { peer }]);
                steps.extend((epoch % 3 == 0).then_some(Disconnect { peer }));
            }
            steps.push(connect(peer));
        }
        steps.extend([send(peer, 5, 2_000, 64), recv(peer, 5, 2_000, 64)]);
        steps.push(received(2_000, 64));
        steps.extend(meet(&[peer]));
        steps
    };
    Case::abrupt("clause_23_a_slot_is_used_ten_times", vec![role(0), role(1)])
}

/// Puts and messages are on their way when the slot is used again; the peer is busy elsewhere.
fn under_way() -> Case {
    let puts = || (10..18).zip((0..).step_by(60_000));
    let mut poster = vec![Learn { region: 1, from: 1 }];
    poster.extend(puts().map(|(number, offset)| put(1, 1, offset, number, 60_000)));
    poster.extend((20..24).map(|number| send(1, 6, number, 60_000)));
    poster.extend((24..28).map(|number| send(1, 6, number, 64)));
    poster.extend([Disconnect { peer: 1 }, connect(1)]);
    poster.extend(puts().map(|(number, _)| either(number)));
    poster.extend((20..28).map(either));
    poster.extend([
        Learn { region: 1, from: 1 },
        put(1, 1, 0, 40, 48),
        done(40),
        send(1, 6, 41, 64),
    ]);
    poster.extend(meet(&[1]));
    let mut owner = vec![share(0, 1, 480_000), MayLose { peer: 0 }];
    owner.push(Absent { steps: 60 });
    // Into the void, as far as the peer has gone.
    owner.extend((50..60).map(|number| send(0, 6, number, 64)));
    owner.extend([
        Failed { peer: 0 },
        connect(0),
        Wipe { region: 1 },
        recv(0, 6, 41, 64),
        Quiet { polls: 60 },
        Untouched { region: 1 },
        ShareAlso { region: 1, to: 0 },
        received(41, 64),
        Check {
            region: 1,
            offset: 0,
            bytes: 48,
            seed: 40,
        },
        Wipe { region: 1 },
    ]);
    owner.extend(meet(&[0]));
    owner.extend([Quiet { polls: 60 }, Untouched { region: 1 }]);
    Case::abrupt(
        "clause_23_what_was_under_way_neither_arrives_nor_changes_memory",
        vec![poster, owner],
    )
}

/// A process leaves or dies, and another one takes its slot with two survivors, who go on with each
/// other meanwhile.
fn successor(name: &'static str, is_orderly: bool) -> Case {
    let mut old = exchange(0, 100);
    old.extend(exchange(2, 150));
    for region in [1, 2] {
        old.extend([share(0, region, 64), ShareAlso { region, to: 2 }]);
    }
    old.extend([MayLose { peer: 0 }, MayLose { peer: 2 }]);
    old.extend([Wait { from: 0 }, Wait { from: 2 }]);
    for to in [0, 2] {
        let number = 10 * u64::from(to);
        old.push(send(to, 8, number, 64));
        // A rank does not leave before a long one has met its receive.
        old.extend((!is_orderly).then_some(send(to, 8, number + 1, 70_000)));
    }
    old.push(match is_orderly {
        true => Leave { word: 5 },
        false => Exit,
    });
    let mut new = Vec::new();
    for to in [0, 2] {
        new.push(send(to, 8, 1_000 + u64::from(to), 64));
        new.extend(exchange(to, 200 + 25 * u64::from(to)));
    }
    new.extend([share(0, 3, 64), ShareAlso { region: 3, to: 2 }]);
    new.extend([Wait { from: 0 }, Wait { from: 2 }]);
    for own in [0, 2] {
        new.push(Check {
            region: 3,
            offset: 8 * own,
            bytes: 8,
            seed: 31 + own as u64,
        });
    }
    new.extend(meet(&[0, 2]));
    let roles = vec![survivor(0, is_orderly), old, survivor(2, is_orderly), new];
    Case::abrupt(name, roles).with_successor(1)
}

fn survivor(own: Rank, is_orderly: bool) -> Vec<Step> {
    let (other, number) = (2 - own, u64::from(own));
    let mut steps = exchange(1, 100 + 25 * number);
    steps.extend([
        Learn { region: 1, from: 1 },
        Learn { region: 2, from: 1 },
        recv(1, 7, 1, 100),
        recv(1, 7, 2, 70_000),
        send(other, 9, 3, 70_000),
        recv(other, 9, 3, 70_000),
        MayLose { peer: 1 },
        Signal { to: 1 },
        match is_orderly {
            true => Left { peer: 1, word: 5 },
            false => Failed { peer: 1 },
        },
    ]);
    // What had come before the end can be received until the slot is used again.
    steps.extend((own == 0).then_some(Disconnect { peer: 1 }));
    steps.extend([
        Connect {
            peer: 1,
            address: 3,
        },
        flushed(1),
        flushed(2),
        recv(1, 8, 1_000 + number, 64),
        // The key that the old process had given to its last region.
        put(1, 2, 0, 30, 48),
        bad_key(30),
    ]);
    steps.extend(exchange(1, 200 + 25 * number));
    steps.extend([
        received(1_000 + number, 64),
        Learn { region: 3, from: 1 },
        put(1, 3, 8 * number, 31 + number, 8),
        done(31 + number),
        Signal { to: 1 },
        received(3, 70_000),
        done(3),
    ]);
    steps.extend(meet(&[1, other]));
    steps
}

/// A third rank exchanges messages with both of two ranks that end and begin their connection.
fn undisturbed() -> Case {
    let numbers = |of: Rank| 1_000 + 100 * u64::from(of)..1_020 + 100 * u64::from(of);
    let bytes = |number: u64| [8, 4_096, 0, 70_000][number as usize % 4];
    let posts = |peer: Rank, of: Rank| {
        let both = move |number| {
            [
                recv(peer, 4, number, bytes(number)),
                send(peer, 4, number, bytes(number)),
            ]
        };
        numbers(of).flat_map(both)
    };
    let ends = |of: Rank| numbers(of).flat_map(move |n| [received(n, bytes(n)), done(n)]);
    let role = |own: Rank| {
        let peer = 1 - own;
        let mut steps: Vec<Step> = posts(2, own).collect();
        for epoch in 0..3 {
            steps.extend(exchange(peer, 100 * epoch));
            match own {
                0 => steps.extend([Wait { from: 1 }, Disconnect { peer: 1 }]),
                _ => steps.extend([MayLose { peer: 0 }, Signal { to: 0 }, Failed { peer: 0 }]),
            }
            steps.push(connect(peer));
        }
        steps.extend(ends(own));
        steps.extend(meet(&[peer, 2]));
        steps
    };
    let mut third: Vec<Step> = posts(0, 0).chain(posts(1, 1)).collect();
    third.extend(ends(0).chain(ends(1)));
    third.extend(meet(&[0, 1]));
    Case::abrupt(
        "clause_23_connections_to_other_peers_go_on",
        vec![role(0), role(1), third],
    )
}

fn oneself() -> Case {
    let mut steps = Vec::new();
    for epoch in 0..3 {
        let first = 100 * epoch;
        steps.extend([
            send(0, 4, first, 64),
            recv(0, 4, first, 64),
            received(first, 64),
            send(0, 5, first + 1, 64),
            send(0, 5, first + 2, 70_000),
            recv(0, 6, first + 3, 64),
            Disconnect { peer: 0 },
            connect(0),
            either(first + 1),
            either(first + 2),
            flushed(first + 3),
        ]);
    }
    steps.extend([send(0, 5, 900, 64), recv(0, 5, 900, 64), received(900, 64)]);
    Case::orderly("clause_23_a_rank_connects_to_itself_again", vec![steps])
}
