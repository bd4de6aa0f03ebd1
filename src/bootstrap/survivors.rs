//! What the survivors of a failed communicator say to each other while they make a new one, and
//! what a process that comes later says to those that let it in.
//!
//! One of them leads: the lowest rank that lives. It listens (`reunion.rs`), and the others
//! connect. A frame has a kind, a round, and what belongs to it; numbers are little-endian and have
//! 32 bits. Who decides what when is in `comm/rebuild`.

use super::busy::BusyClock;
use super::contact::CONTACT_BYTES_MAX;
use super::link::{Frames, Lost};
use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::types::Rank;
use crate::wait::Clock;
use crate::wire::Tls;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The longest frame is a table of all contacts.
pub(super) const FRAME_BYTES_MAX: usize = 64 + RANKS_MAX as usize * (4 + CONTACT_BYTES_MAX);

/// Kind and round.
const HEADER_BYTES: usize = 8;

/// A survivor reads all the time; one that is stopped is waited for no longer than this.
const SEND_TIME: Duration = Duration::from_secs(2);

/// What survivors say. A message of a round has the round's number, so that one of an earlier round
/// is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Member to leader, first of all: its old rank.
    Come(Rank),
    /// Leader to members: the old ranks that it still waits for.
    Missing(Vec<Rank>),
    /// Leader to members: a round begins; the old ranks that form the new communicator, in order.
    Members(u32, Vec<Rank>),
    /// Member to leader: how its part of the new communicator is reached.
    Contact(u32, Vec<u8>),
    /// Leader to members: the contacts of all, in the order of the members.
    Contacts(u32, Vec<Vec<u8>>),
    /// Member to leader: connected to all.
    Connected(u32),
    /// Member to leader: a rank of this round was lost while connecting.
    Lost(u32),
    /// Leader to members: all are connected; the new communicator may be used.
    Commit(u32),
    /// Leader to members: it gives up, because those that it said to be missing did not come in
    /// time.
    GaveUp,
    /// Either way: the sender cannot take part, and why.
    Refused(String),
    /// Member to leader: all old ranks that it knows to have ended. Ranks of other hosts may only
    /// find them unreachable.
    Ended(Vec<Rank>),
    /// Between a parameter server and a process that comes later: what `comm/server/spoken.rs`
    /// says.
    Parts(u32, Vec<Vec<u8>>),
}

impl Message {
    fn emit(&self) -> Vec<u8> {
        let words = |words: &[u32]| -> Vec<u8> {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            bytes.collect()
        };
        let (kind, round, body) = match self {
            Message::Come(rank) => (1, 0, words(&[*rank])),
            Message::Missing(missing) => (2, 0, words(missing)),
            Message::Members(round, members) => (3, *round, words(members)),
            Message::Contact(round, contact) => (4, *round, contact.clone()),
            Message::Contacts(round, contacts) => (5, *round, emit_parts(contacts)),
            Message::Connected(round) => (6, *round, Vec::new()),
            Message::Lost(round) => (7, *round, Vec::new()),
            Message::Commit(round) => (8, *round, Vec::new()),
            Message::GaveUp => (9, 0, Vec::new()),
            Message::Refused(text) => (10, 0, text.as_bytes().to_vec()),
            Message::Ended(ranks) => (11, 0, words(ranks)),
            Message::Parts(kind, parts) => (12, *kind, emit_parts(parts)),
        };
        let mut frame = words(&[kind, round]);
        frame.extend(body);
        frame
    }

    fn parse(frame: &[u8]) -> Result<Message> {
        let Some((header, body)) = frame.split_at_checked(HEADER_BYTES) else {
            return Err(malformed("no header"));
        };
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let (kind, round) = (word(0), word(4));
        Ok(match kind {
            1 => match parse_ranks(body)?[..] {
                [rank] => Message::Come(rank),
                _ => return Err(malformed("not one rank that comes")),
            },
            2 => Message::Missing(parse_ranks(body)?),
            3 => Message::Members(round, parse_ranks(body)?),
            4 => Message::Contact(round, parse_contact(body)?),
            5 => Message::Contacts(round, parse_contacts(body)?),
            6 => Message::Connected(round),
            7 => Message::Lost(round),
            8 => Message::Commit(round),
            9 => Message::GaveUp,
            10 => Message::Refused(String::from_utf8_lossy(body).into_owned()),
            11 => Message::Ended(parse_ranks(body)?),
            12 => Message::Parts(round, parse_parts(body)?),
            kind => return Err(malformed(&format!("unknown kind {kind}"))),
        })
    }
}

fn malformed(what: &str) -> Error {
    Error::Malformed(format!("a survivor's message: {what}"))
}

fn parse_ranks(body: &[u8]) -> Result<Vec<Rank>> {
    let words = body.chunks_exact(4);
    if !words.remainder().is_empty() {
        return Err(malformed("half a rank"));
    }
    let rank = |word: &[u8]| Rank::from_le_bytes(std::array::from_fn(|i| word[i]));
    Ok(words.map(rank).collect())
}

fn parse_contact(bytes: &[u8]) -> Result<Vec<u8>> {
    if bytes.len() > CONTACT_BYTES_MAX {
        return Err(malformed(&format!("a contact of {} bytes", bytes.len())));
    }
    Ok(bytes.to_vec())
}

fn parse_contacts(body: &[u8]) -> Result<Vec<Vec<u8>>> {
    let parts = parse_parts(body)?;
    parts.iter().map(|part| parse_contact(part)).collect()
}

fn emit_parts(parts: &[Vec<u8>]) -> Vec<u8> {
    let framed = |part: &Vec<u8>| [&(part.len() as u32).to_le_bytes(), part.as_slice()].concat();
    parts.iter().flat_map(framed).collect()
}

fn parse_parts(mut rest: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let (part, behind) = behind
            .split_at_checked(length)
            .ok_or_else(|| malformed("less than a part"))?;
        parts.push(part.to_vec());
        rest = behind;
    }
    match rest.is_empty() {
        true => Ok(parts),
        false => Err(malformed("half a length")),
    }
}

/// One end of a conversation between two survivors.
#[derive(Debug)]
pub struct Conversation {
    frames: Frames,
    clock: Clock,
}

impl Conversation {
    /// A conversation over a connected socket; `None`: it is not connected any more.
    pub(super) fn new(
        stream: OwnedFd,
        tls: Option<Box<Tls>>,
        clock: &Clock,
    ) -> Option<Conversation> {
        Some(Conversation {
            frames: Frames::new(stream, tls, FRAME_BYTES_MAX).ok()?,
            clock: clock.clone(),
        })
    }

    /// Says something. A side that is gone is found by [`Conversation::hear`].
    pub fn say(&mut self, message: &Message) {
        let by = (
            self.clock.now().after(SEND_TIME),
            BusyClock::idle(&self.clock),
        );
        let _ = self.frames.send(&[&message.emit()], by);
    }

    /// The next message that has arrived whole; what was said before the other side left is heard
    /// first.
    pub fn hear(&mut self) -> std::result::Result<Option<Message>, Lost> {
        let Some(frame) = self.frames.receive()? else {
            return Ok(None);
        };
        let message = Message::parse(&frame).map_err(|e| Lost(e.to_string()))?;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Reunion;
    use crate::config::{Config, Secret};
    use rustix::net::{RecvFlags, SendFlags, recv, send};
    use std::net::{IpAddr, Ipv4Addr};

    fn messages() -> Vec<Message> {
        vec![
            Message::Come(3),
            Message::Missing(vec![]),
            Message::Missing(vec![1, 2]),
            Message::Members(1, vec![0, RANKS_MAX - 1]),
            Message::Contact(2, vec![7; 40]),
            Message::Contacts(3, vec![vec![1; 50], vec![], vec![2; CONTACT_BYTES_MAX]]),
            Message::Connected(4),
            Message::Lost(5),
            Message::Commit(u32::MAX),
            Message::GaveUp,
            Message::Refused("no descriptor is left".into()),
            Message::Ended(vec![0, 3]),
            Message::Parts(6, vec![vec![1; 5], vec![]]),
        ]
    }

    #[test]
    fn everything_said_is_heard_in_order_and_the_end_after_it() {
        let identity = u64::from(std::process::id()) << 20;
        let clock = Clock::monotonic();
        let reunion = |own| Reunion::new(identity, own, &Config::default(), &[]).unwrap();
        let mut place = reunion(5).open().unwrap();
        assert!(reunion(7).visit(4, &clock).unwrap().is_none());
        assert!(place.accept(10, &clock).unwrap().is_empty());
        let mut visitor = reunion(7).visit(5, &clock).unwrap().unwrap();
        let mut host = place.accept(10, &clock).unwrap().pop().unwrap();
        assert!(matches!(host.hear(), Ok(None)));
        for message in messages() {
            visitor.say(&message);
        }
        send(&visitor.frames, &[9, 0], SendFlags::NOSIGNAL).unwrap();
        host.say(&Message::Commit(1));
        drop(visitor);
        for message in messages() {
            assert_eq!(host.hear().unwrap(), Some(message));
        }
        assert!(host.hear().is_err());
        assert!(reunion(5).open().is_err());
        drop(place);
        assert!(reunion(5).open().is_ok());
    }

    /// A leader's end and a visitor's, over loopback.
    fn conversations(has_tls: bool) -> [Conversation; 2] {
        let identity = u64::from(std::process::id()) << 28 | u64::from(has_tls);
        let mut config = Config::default();
        config.job.secret = Secret::Text(b"0123456789abcdef".to_vec());
        config.tcp.has_tls = has_tls;
        let places = [IpAddr::from(Ipv4Addr::LOCALHOST); 2];
        let reunion = |own| Reunion::new(identity, own, &config, &places).unwrap();
        let clock = Clock::monotonic();
        let mut place = reunion(0).open().unwrap();
        std::thread::scope(|scope| {
            let visit = scope.spawn(|| reunion(1).visit(0, &clock).unwrap().unwrap());
            let mut came = Vec::new();
            while came.is_empty() {
                came = place.accept(1, &clock).unwrap();
            }
            [came.remove(0), visit.join().unwrap()]
        })
    }

    #[test]
    fn with_tls_nothing_that_survivors_say_can_be_read_on_the_way() {
        let said = b"no descriptor is left";
        for has_tls in [false, true] {
            let [mut leader, mut visitor] = conversations(has_tls);
            visitor.say(&Message::Refused(String::from_utf8_lossy(said).into()));
            let mut raw = [0; 4096];
            let (_, count) = recv(&leader.frames, &mut raw, RecvFlags::PEEK).unwrap();
            let is_readable = raw[..count].windows(said.len()).any(|part| part == said);
            assert_eq!(is_readable, !has_tls);
            leader.hear().unwrap().unwrap();
            for message in messages() {
                visitor.say(&message);
                leader.say(&message);
                for end in [&mut leader, &mut visitor] {
                    let mut heard = None;
                    while heard.is_none() {
                        heard = end.hear().unwrap();
                    }
                    assert_eq!(heard.as_ref(), Some(&message));
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused() {
        let mut prng = crate::prng::Prng::new(3);
        let (mut refused, mut parsed) = (0, 0);
        for turn in 0..20_000 {
            let all = messages();
            let mut frame = all[turn % all.len()].emit();
            frame.truncate(1 + prng.below(80) as usize);
            let at = prng.below(frame.len().min(16) as u64) as usize;
            frame[at] = prng.next_u64() as u8;
            match Message::parse(&frame) {
                Ok(_) => parsed += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 1000 && parsed > 1000, "{refused} {parsed}");
        assert!(Message::parse(&[]).is_err() && Message::parse(&[1; 7]).is_err());
    }
}
