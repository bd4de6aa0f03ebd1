//! The language of the cases: what each role does, as data.

use linerate::Rank;
use linerate::transport::{Atomic, Outcome};

/// A region number that nobody ever registers: its key exists nowhere.
pub const NOWHERE: u8 = u8::MAX;

/// One step of one role. Steps are taken in order; a post that is answered with WouldBlock is tried
/// again with the next poll. `seed` determines the bytes; tokens are unique within a role.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends pattern `seed`, from registered memory if it is longer than the inline limit.
    Send {
        to: Rank,
        tag: u64,
        header: u64,
        bytes: usize,
        seed: u64,
        token: u64,
    },
    /// Receives into fresh zeroed memory of `bytes` bytes.
    Recv {
        from: Rank,
        tag: u64,
        bytes: usize,
        token: u64,
    },
    /// Waits until it is told that a message with this tag has come and has met no receive.
    Told {
        from: Rank,
        tag: u64,
    },
    Put {
        to: Rank,
        region: u8,
        offset: u64,
        bytes: usize,
        seed: u64,
        token: u64,
    },
    Get {
        from: Rank,
        region: u8,
        offset: u64,
        bytes: usize,
        token: u64,
    },
    /// Changes a word of a region; what was there comes back.
    Change {
        of: Rank,
        region: u8,
        offset: u64,
        what: Atomic,
        token: u64,
    },
    /// Waits for a successful change whose word was one of `least..=most`.
    Changed {
        token: u64,
        least: u64,
        most: u64,
    },
    /// Waits until a word of an own region is this.
    AwaitWord {
        region: u8,
        offset: usize,
        value: u64,
    },
    /// An atomic operation on a word that is none, or with a result of other than 8 bytes, is
    /// refused.
    RefusedChange {
        of: Rank,
        region: u8,
    },
    /// Registers a zeroed region under a number, and exports it and tells its key to a peer.
    Share {
        region: u8,
        bytes: usize,
        to: Rank,
    },
    /// Exports an own region, and tells its key, to a further peer.
    ShareAlso {
        region: u8,
        to: Rank,
    },
    /// Learns the key of the peer's region of that number, and waits until it is usable.
    Learn {
        region: u8,
        from: Rank,
    },
    /// Ends the registration of an own region.
    Deregister {
        region: u8,
    },
    /// Waits for a completion with this outcome.
    Expect {
        token: u64,
        outcome: Outcome,
    },
    /// Waits for a completion with one of two outcomes.
    ExpectEither {
        token: u64,
        outcomes: [Outcome; 2],
    },
    /// Waits for a successful receive and compares length, header and all bytes; the rest is zero.
    Received {
        token: u64,
        header: u64,
        bytes: usize,
        seed: u64,
    },
    /// Waits for a receive that was too short: the sent length is told and nothing is written.
    Truncated {
        token: u64,
        header: u64,
        bytes: usize,
    },
    /// Waits for a successful get and compares all bytes.
    Got {
        token: u64,
        seed: u64,
    },
    /// Compares a piece of an own region with pattern `seed`.
    Check {
        region: u8,
        offset: usize,
        bytes: usize,
        seed: u64,
    },
    /// Compares a piece of an own region of which some bytes, or all, may still be zero.
    CheckPartly {
        region: u8,
        offset: usize,
        bytes: usize,
        seed: u64,
    },
    /// An own region is still zero everywhere.
    Untouched {
        region: u8,
    },
    /// Waits until the first byte of the piece is not zero: a put has arrived.
    Await {
        region: u8,
        offset: usize,
    },
    /// Overwrites the memory that a send or put was given.
    Scribble {
        token: u64,
    },
    /// Polls this often; nothing may be reported.
    Quiet {
        polls: u32,
    },
    /// Does not even poll for this many steps.
    Absent {
        steps: u32,
    },
    /// Sends empty messages with headers 0, 1, ... until full: as many as the capabilities say.
    Fill {
        to: Rank,
        tag: u64,
    },
    /// Sends the message after those of `Fill`, as soon as there is room.
    Overflow {
        to: Rank,
        tag: u64,
    },
    /// Sends messages of this length until one is refused.
    Stuff {
        to: Rank,
        tag: u64,
        bytes: usize,
    },
    /// A send that must be accepted at once.
    SendAtOnce {
        to: Rank,
        tag: u64,
        bytes: usize,
        token: u64,
    },
    /// Receives all messages of `Fill` and `Overflow`, in order.
    Drain {
        from: Rank,
        tag: u64,
    },
    /// A send and a put from unregistered memory of one byte more than the inline limit are
    /// refused.
    RefusedUnregistered {
        to: Rank,
        region: u8,
    },
    /// Cancels a receive.
    Cancel {
        peer: Rank,
        token: u64,
    },
    /// Takes back the memory of sends and puts.
    Withdraw,
    /// A transport that maps this peer's memory tells whether the peer has taken memory back.
    HasWithdrawn {
        peer: Rank,
        is_so: bool,
    },
    /// A receive has ended well, with these bytes, or was cancelled.
    ReceivedOrCancelled {
        token: u64,
        seed: u64,
    },
    /// Disconnects; from now on the peer is silent.
    Disconnect {
        peer: Rank,
    },
    /// Uses the slot of a peer that was disconnected or is lost again, and waits until it is
    /// connected. `address` is that of this role.
    Connect {
        peer: Rank,
        address: usize,
    },
    /// A slot that is in use is not connected.
    RefusedConnect {
        peer: Rank,
    },
    /// Fills an own region with zeros.
    Wipe {
        region: u8,
    },
    /// From now on the peer may fail at any time.
    MayLose {
        peer: Rank,
    },
    /// Waits for the peer's failure and the flushing of everything outstanding; later posts are
    /// refused.
    Failed {
        peer: Rank,
    },
    /// Leaves in good order; the end of a script.
    Leave {
        word: u64,
    },
    /// Waits until the peer has left in good order, with this word.
    Left {
        peer: Rank,
        word: u64,
    },
    /// The process ends without saying anything.
    Exit,
    /// An empty message on a reserved tag, and its counterpart.
    Signal {
        to: Rank,
    },
    Wait {
        from: Rank,
    },
    /// Wakes a peer.
    Notify {
        peer: Rank,
    },
    /// Sleeps on the wait source until woken, at most five seconds. Nothing in virtual time.
    Sleep,
    /// Waits until every post has completed.
    Settle,
    /// The end of every script: what happens now to peers that leave earlier is no fault.
    Finish,
}

/// Which time the polls are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The harness's.
    Real,
    /// Always zero.
    Frozen,
    /// Jumps by hours, also backwards.
    Wild,
}

/// A test: one script per role. Role r is rank r.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub clock: Clock,
    pub roles: Vec<Vec<Step>>,
    /// The last role is another process of this rank.
    pub succeeds: Option<Rank>,
}

impl Case {
    /// A case in which everybody stays to the end: all posts end, everybody meets, nothing more is
    /// heard.
    pub fn orderly(name: &'static str, mut roles: Vec<Vec<Step>>) -> Case {
        let count = roles.len() as Rank;
        for (role, steps) in roles.iter_mut().enumerate() {
            let peers = (0..count).filter(|&peer| peer != role as Rank);
            steps.extend([Step::Settle, Step::Quiet { polls: 50 }, Step::Finish]);
            steps.extend(peers.clone().map(|to| Step::Signal { to }));
            steps.extend(peers.map(|from| Step::Wait { from }));
        }
        Case::abrupt(name, roles)
    }

    /// A case in which somebody leaves early.
    pub fn abrupt(name: &'static str, mut roles: Vec<Vec<Step>>) -> Case {
        for steps in &mut roles {
            steps.extend([Step::Finish, Step::Settle, Step::Quiet { polls: 50 }]);
        }
        Case {
            name,
            clock: Clock::Real,
            roles,
            succeeds: None,
        }
    }

    /// The last role is another process of this rank, whose first one ends.
    pub fn with_successor(self, of: Rank) -> Case {
        Case {
            succeeds: Some(of),
            ..self
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.roles.len() as u32 - u32::from(self.succeeds.is_some())
    }

    /// The rank that a role has.
    pub fn rank_of(&self, role: u32) -> Rank {
        match self.succeeds {
            Some(of) if role == self.ranks() => of,
            _ => role,
        }
    }

    /// This case with another clock.
    pub fn with_clock(self, name: &'static str, clock: Clock) -> Case {
        Case {
            name,
            clock,
            ..self
        }
    }
}
