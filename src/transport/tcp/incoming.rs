//! [`IncomingMessages`]: long messages that come from one peer, in chunks over any rail, before or
//! after their receives.

use crate::config::RAILS_MAX;
use crate::kernel;
use crate::limits::MESSAGES_PER_PEER;
use crate::memory::View;
use crate::transport::TAG_CLASSES;
use crate::transport::buffers::Buffers;
use crate::transport::matching::Posted;
use std::collections::BTreeMap;

/// Long messages of a peer that are not complete: every place of every class, and as many that come
/// before their announcements.
const INCOMING_MAX: usize = 2 * TAG_CLASSES * MESSAGES_PER_PEER as usize;
/// Longest chunk, which one rail sends as a whole. A short frame waits behind it for 0.4 ms at 10
/// Gbit/s. With chunks of 256 KiB a rank changes more often between sending and receiving, and puts
/// of 1 MiB take 1.12 times as long; with 1 MiB, what is summed and sent does not fit the
/// second-level cache.
pub const CHUNK_BYTES_MAX: u32 = 512 * 1024;
/// A chunk that is being staged counts until it has come whole, also where its message has met a
/// receive meanwhile and the sender, who was told so, sends more. Each rail may have one.
const STAGED_SLACK_BYTES: u64 = RAILS_MAX as u64 * CHUNK_BYTES_MAX as u64;

type Checked<T> = Result<T, String>;

/// What becomes of a long message that comes.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// No receive yet.
    Unmatched,
    /// Into this memory; the token and the sender's header.
    Into(View, u64, u64),
    /// No receive wants it (any more).
    Dropped,
}

/// A long message that comes.
#[derive(Debug)]
struct Incoming {
    total: u64,
    /// Chunks on other rails may come before the announcement.
    is_announced: bool,
    is_eager: bool,
    fate: Fate,
    arrived: u64,
    /// What came before there was a place for it.
    staged: Vec<(u64, Vec<u8>)>,
}

impl Incoming {
    /// Whether a frame is of this message: all of a transfer say the same length.
    fn check_total(&self, transfer: u64, total: u64) -> Checked<()> {
        match self.total == total {
            true => Ok(()),
            false => Err(format!(
                "it says that transfer {transfer} has {total} bytes and that it has {}",
                self.total
            )),
        }
    }

    fn is_whole(&self) -> bool {
        self.is_announced && self.arrived == self.total
    }
}

/// An announced message that has met its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    pub total: u64,
    /// It comes without being asked for.
    pub is_eager: bool,
    /// It is as long as the receive at most.
    pub fits: bool,
}

/// A message that is complete: token and header of its receive, and its length.
pub type Whole = (u64, u64, u64);

/// See the module.
#[derive(Debug, Default)]
pub struct IncomingMessages {
    messages: BTreeMap<u64, Incoming>,
    /// Bytes kept that came before their receives.
    staged_bytes: u64,
}

impl IncomingMessages {
    /// The record of a message, made when the first frame of it comes.
    fn record(&mut self, transfer: u64, total: u64) -> Checked<&mut Incoming> {
        if self.messages.len() >= INCOMING_MAX && !self.messages.contains_key(&transfer) {
            return Err(format!(
                "it has more than {INCOMING_MAX} long messages under way"
            ));
        }
        let incoming = self.messages.entry(transfer).or_insert(Incoming {
            total,
            is_announced: false,
            is_eager: true,
            fate: Fate::Unmatched,
            arrived: 0,
            staged: Vec::new(),
        });
        incoming.check_total(transfer, total)?;
        Ok(incoming)
    }

    /// A message is announced.
    pub fn announce(&mut self, transfer: u64, total: u64, is_eager: bool) -> Checked<()> {
        let incoming = self.record(transfer, total)?;
        if std::mem::replace(&mut incoming.is_announced, true) {
            return Err(format!("it announced transfer {transfer} twice"));
        }
        incoming.is_eager = is_eager;
        Ok(())
    }

    /// An announced message meets its receive: what had come of it goes there.
    pub fn meet(
        &mut self,
        transfer: u64,
        posted: &Posted,
        header: u64,
        staging: &mut Buffers,
    ) -> Met {
        let incoming = (self.messages.get_mut(&transfer)).expect("announced, and not over");
        let total = incoming.total;
        let fits = total <= posted.destination.len_bytes() as u64;
        let staged = std::mem::take(&mut incoming.staged);
        self.staged_bytes -= staged.iter().map(|(_, b)| b.len() as u64).sum::<u64>();
        incoming.fate = Fate::Dropped;
        if fits {
            let place = posted.destination.part(0, total as usize);
            for (offset, bytes) in &staged {
                kernel::write(place, *offset as usize, bytes);
            }
            incoming.fate = Fate::Into(place, posted.token, header);
        }
        for (_, bytes) in staged {
            staging.give(bytes);
        }
        Met {
            total,
            is_eager: incoming.is_eager,
            fits,
        }
    }

    /// A message is not wanted.
    pub fn forget(&mut self, transfer: u64) {
        self.messages.remove(&transfer);
    }

    /// The receive with this token ends before its message, and its memory may end now: what is
    /// still to come goes nowhere. False: there is none.
    pub fn cancel(&mut self, token: u64) -> bool {
        let is_it = |i: &&mut Incoming| matches!(i.fate, Fate::Into(_, of, _) if of == token);
        let found = self.messages.values_mut().find(is_it);
        found
            .map(|incoming| incoming.fate = Fate::Dropped)
            .is_some()
    }

    /// Where the bytes of a message belong, if they belong anywhere. A peer may end a transfer
    /// while a chunk of it comes, and begin another of its number: see
    /// [`IncomingMessages::note_chunk`].
    #[inline]
    pub fn place(&self, transfer: u64, total: u64) -> Option<View> {
        match self.messages.get(&transfer)? {
            incoming if incoming.total != total => None,
            Incoming {
                fate: Fate::Into(view, ..),
                ..
            } => Some(*view),
            _ => None,
        }
    }

    /// Whether the bytes of some message are on their way to its receive.
    pub fn are_coming(&self) -> bool {
        let mut messages = self.messages.values();
        messages.any(|incoming| matches!(incoming.fate, Fate::Into(..)))
    }

    /// Whether no receive is known of a message.
    pub fn is_unmatched(&self, transfer: u64) -> bool {
        let fate = self.messages.get(&transfer).map(|incoming| incoming.fate);
        matches!(fate, None | Some(Fate::Unmatched))
    }

    /// A chunk of this many bytes begins. True: there is no receive, so that it is to be staged, of
    /// which a peer may have `staged_bytes_max` and a slack.
    pub fn begin_chunk(
        &mut self,
        (transfer, total): (u64, u64),
        bytes: u64,
        staged_bytes_max: u64,
    ) -> Checked<bool> {
        let incoming = self.record(transfer, total)?;
        if !matches!(incoming.fate, Fate::Unmatched) {
            return Ok(false);
        }
        self.staged_bytes += bytes;
        if self.staged_bytes > staged_bytes_max + STAGED_SLACK_BYTES {
            return Err(format!(
                "it sent {} bytes without a receive, {staged_bytes_max} at most",
                self.staged_bytes
            ));
        }
        Ok(true)
    }

    /// A chunk that was being staged will not end.
    pub fn drop_staged(&mut self, staged: Vec<u8>, staging: &mut Buffers) {
        self.staged_bytes -= staged.len() as u64;
        staging.give(staged);
    }

    /// A chunk has come whole; `staged` are its bytes, if they are not in their place.
    pub fn note_chunk(
        &mut self,
        (transfer, total): (u64, u64),
        (offset, bytes): (u64, u64),
        staged: Option<Vec<u8>>,
        staging: &mut Buffers,
    ) -> Checked<()> {
        let Some(incoming) = self.messages.get_mut(&transfer) else {
            if let Some(staged) = staged {
                self.drop_staged(staged, staging);
            }
            return Ok(());
        };
        incoming.check_total(transfer, total)?;
        incoming.arrived += bytes;
        if incoming.arrived > incoming.total {
            return Err(format!("it sent parts of transfer {transfer} twice"));
        }
        match (staged, incoming.fate) {
            (None, _) => {}
            (Some(staged), Fate::Unmatched) => incoming.staged.push((offset, staged)),
            (Some(staged), fate) => {
                if let Fate::Into(view, ..) = fate {
                    kernel::write(view, offset as usize, &staged);
                }
                self.drop_staged(staged, staging);
            }
        }
        Ok(())
    }

    /// Takes a message out if all of it has come and its receive is known; the receive, unless it
    /// has ended.
    pub fn take_whole(&mut self, transfer: u64) -> Option<Whole> {
        let incoming = self.messages.get(&transfer)?;
        if !incoming.is_whole() || matches!(incoming.fate, Fate::Unmatched) {
            return None;
        }
        let incoming = self.messages.remove(&transfer)?;
        match incoming.fate {
            Fate::Into(_, token, header) => Some((token, header, incoming.total)),
            _ => None,
        }
    }

    /// The peer is gone: the tokens of the receives. What has come whole stays.
    pub fn flush(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        self.messages.retain(|_, incoming| match incoming.fate {
            Fate::Unmatched => incoming.is_whole(),
            Fate::Into(_, token, _) => {
                tokens.push(token);
                false
            }
            Fate::Dropped => false,
        });
        tokens
    }

    /// Whether something of a message is here.
    pub fn is_known(&self, transfer: u64) -> bool {
        self.messages.contains_key(&transfer)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.messages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    fn posted(region: &Region, bytes: usize) -> Posted {
        Posted {
            tag: 0,
            destination: region.view().part(0, bytes),
            token: 3,
        }
    }

    #[test]
    fn chunks_before_and_after_the_receive_make_one_message() {
        let region = Region::private(8).unwrap();
        let (mut messages, mut staging) = (IncomingMessages::default(), Buffers::default());
        assert_eq!(messages.begin_chunk((1, 8), 4, 100), Ok(true));
        let early = Some(vec![1; 4]);
        messages
            .note_chunk((1, 8), (0, 4), early, &mut staging)
            .unwrap();
        messages.announce(1, 8, true).unwrap();
        assert!(messages.announce(1, 8, true).is_err(), "twice");
        assert!(messages.announce(1, 9, true).is_err(), "another length");
        assert!(messages.is_unmatched(1) && messages.place(1, 8).is_none());
        let met = messages.meet(1, &posted(&region, 8), 9, &mut staging);
        let expected = Met {
            total: 8,
            is_eager: true,
            fits: true,
        };
        assert_eq!((met, messages.staged_bytes), (expected, 0));
        assert_eq!(messages.begin_chunk((1, 8), 4, 100), Ok(false));
        assert_eq!(messages.take_whole(1), None);
        messages
            .note_chunk((1, 8), (4, 4), None, &mut staging)
            .unwrap();
        assert_eq!(messages.take_whole(1), Some((3, 9, 8)));
        assert!(!messages.is_known(1));
        assert_eq!(kernel::load::<u32>(region.view(), 0), 0x0101_0101);
    }

    #[test]
    fn a_message_that_is_too_long_or_whose_receive_is_cancelled_goes_nowhere() {
        let region = Region::private(8).unwrap();
        let (mut messages, mut staging) = (IncomingMessages::default(), Buffers::default());
        for (transfer, bytes) in [(1, 4), (2, 8)] {
            messages.announce(transfer, 8, true).unwrap();
            let met = messages.meet(transfer, &posted(&region, bytes), 0, &mut staging);
            assert_eq!(met.fits, bytes == 8);
        }
        assert_eq!([messages.cancel(3), messages.cancel(3)], [true, false]);
        for transfer in [1, 2] {
            assert!(messages.place(transfer, 8).is_none());
            messages
                .note_chunk((transfer, 8), (0, 8), None, &mut staging)
                .unwrap();
            assert_eq!(messages.take_whole(transfer), None);
            assert!(!messages.is_known(transfer));
        }
    }

    #[test]
    fn a_peer_whose_rails_all_stand_in_a_chunk_may_use_its_share_again_once_its_message_has_met() {
        let region = Region::private(8).unwrap();
        let (mut messages, mut staging) = (IncomingMessages::default(), Buffers::default());
        let (chunk, share) = (u64::from(CHUNK_BYTES_MAX), STAGED_SLACK_BYTES);
        messages.announce(1, share, true).unwrap();
        for _ in 0..RAILS_MAX {
            assert_eq!(messages.begin_chunk((1, share), chunk, share), Ok(true));
        }
        messages.meet(1, &posted(&region, 8), 0, &mut staging);
        for _ in 0..RAILS_MAX {
            assert_eq!(messages.begin_chunk((2, share), chunk, share), Ok(true));
        }
        assert!(messages.begin_chunk((2, share), 1, share).is_err());
    }

    #[test]
    fn what_is_staged_is_bounded_and_what_is_whole_outlives_the_peer() {
        let (mut messages, mut staging) = (IncomingMessages::default(), Buffers::default());
        messages.announce(1, 4, true).unwrap();
        messages.begin_chunk((1, 4), 4, 0).unwrap();
        messages
            .note_chunk((1, 4), (0, 4), Some(vec![0; 4]), &mut staging)
            .unwrap();
        let text = messages.begin_chunk((2, 1 << 30), STAGED_SLACK_BYTES, 0);
        assert!(text.unwrap_err().contains("without a receive"));
        assert_eq!(messages.flush(), [0; 0]);
        assert_eq!([1, 2].map(|t| messages.is_known(t)), [true, false]);
    }
}
