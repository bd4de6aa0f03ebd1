//! [`Carrier`]: carries out a machine's requests as operations of a communicator.

use crate::comm::call::{Call, Transfer};
use crate::comm::raw::RawBuffer;
use crate::comm::{Communicator, Operation};
use crate::error::Result;
use crate::kernel;
use crate::memory::View;
use crate::sparse::{Arrived, MESSAGE_ALIGNMENT, Message, Request, Seen, Spare};
use crate::types::{Collective, DataType, Rank, ReduceOp};
use std::sync::Arc;

/// What the request under way will bring.
enum Awaited {
    Nothing,
    /// Messages, each with its offset in the memory for receives and its length in bytes.
    Messages(Vec<(usize, u64)>),
    /// Words of 8 bytes (`is_wide`) or of 4 bytes.
    Words {
        count: usize,
        is_wide: bool,
    },
}

/// Starts one request at a time. It keeps its memory from one request to the next.
pub(super) struct Carrier {
    comm: Communicator,
    sent: RawBuffer,
    received: RawBuffer,
    awaited: Awaited,
    spare: Spare,
}

impl Carrier {
    pub fn new(comm: &Communicator, spare: &Spare) -> Result<Carrier> {
        Ok(Carrier {
            comm: comm.clone(),
            sent: comm.alloc_raw(MESSAGE_ALIGNMENT)?,
            received: comm.alloc_raw(MESSAGE_ALIGNMENT)?,
            awaited: Awaited::Nothing,
            spare: spare.clone(),
        })
    }

    /// Starts a request. Returns `None` if this rank has nothing to send and nothing to receive.
    pub fn start(&mut self, request: Request) -> Result<Option<Operation>> {
        match request {
            Request::Exchange { sends, receives } => self.exchange(sends, &receives),
            Request::Sum { words, is_wide } => {
                self.words(Collective::AllReduce, &words, words.len(), is_wide)
            }
            Request::AllToAll { words, is_wide } => {
                self.words(Collective::AllToAll, &words, words.len(), is_wide)
            }
            Request::GatherWords { words, is_wide } => {
                let all = words.len() * self.comm.ranks() as usize;
                self.words(Collective::AllGather, &words, all, is_wide)
            }
            Request::Gather { own, bytes } => self.gather(own, &bytes),
        }
        .map(Some)
        .or_else(|error| match error {
            Refusal::Empty => Ok(None),
            Refusal::Error(error) => Err(error),
        })
    }

    /// Takes what the request has brought. Its operation has ended.
    pub fn take(&mut self) -> Arrived {
        self.spare.empty_outbox();
        match std::mem::replace(&mut self.awaited, Awaited::Nothing) {
            Awaited::Nothing => Arrived::Messages(Vec::new()),
            Awaited::Messages(places) => {
                let held = Arc::new(self.received.clone());
                let seen = |(offset, bytes): &(usize, u64)| {
                    let view = held.view().part(*offset, *bytes as usize);
                    Message::seen(view, held.clone())
                };
                Arrived::Messages(places.iter().map(seen).collect())
            }
            Awaited::Words { count, is_wide } => {
                let part = |bytes| self.received.part(0, count * bytes);
                Arrived::Words(match is_wide {
                    true => part(8).to_vec::<u64>(),
                    false => part(4).to_vec::<u32>().into_iter().map(u64::from).collect(),
                })
            }
        }
    }

    fn exchange(
        &mut self,
        sends: Vec<(Rank, Message)>,
        receives: &[(Rank, u64)],
    ) -> std::result::Result<Operation, Refusal> {
        let (back, back_bytes) = places(receives.iter().map(|(_, bytes)| *bytes));
        self.awaited = Awaited::Messages(back.clone());
        if sends.is_empty() && receives.is_empty() {
            return Err(Refusal::Empty);
        }
        reserve(&self.comm, &mut self.received, back_bytes)?;
        let (peers, messages): (Vec<Rank>, Vec<Message>) = sends.into_iter().unzip();
        let mut transfers = Vec::with_capacity(peers.len() + receives.len());
        for (peer, buffer) in peers.into_iter().zip(self.put(messages)?) {
            transfers.push(Transfer {
                peer,
                is_send: true,
                buffer,
            });
        }
        for ((peer, _), (offset, bytes)) in receives.iter().zip(back) {
            transfers.push(Transfer {
                peer: *peer,
                is_send: false,
                buffer: self.received.part(offset, bytes as usize),
            });
        }
        let call = Call::send_recv(&transfers);
        Ok(self.comm.start(&call)?)
    }

    /// Puts messages into the memory for sends, and returns where each of them lies. A message that
    /// a machine has written there already stays where it is; the others are copied behind these.
    fn put(&mut self, messages: Vec<Message>) -> Result<Vec<RawBuffer>> {
        let lying = |message: &Message, sent: View| {
            let seen = message.seen.as_ref()?.view();
            let offset = (seen.as_ptr().addr()).checked_sub(sent.as_ptr().addr())?;
            let end = offset + seen.len_bytes();
            (end <= sent.len_bytes()).then_some((offset, end))
        };
        let aligned =
            |message: &Message| (message.bytes as usize).next_multiple_of(MESSAGE_ALIGNMENT);
        let sent = self.sent.view();
        let (there, others): (Vec<&Message>, Vec<&Message>) =
            messages.iter().partition(|m| lying(m, sent).is_some());
        let ends = there.iter().filter_map(|m| lying(m, sent)).map(|l| l.1);
        let mut free = ends.max().unwrap_or(0).next_multiple_of(MESSAGE_ALIGNMENT);
        if free + others.into_iter().map(aligned).sum::<usize>() > sent.len_bytes() {
            // All are copied into new memory. A message keeps the old memory that it lies in alive.
            let bytes = messages.iter().map(aligned).sum::<usize>();
            self.reserve_sent(bytes.max(sent.len_bytes() + 1))?;
            free = 0;
        }
        // No message may be written into memory from which messages are being sent.
        self.spare.close_outbox();
        let (sent, mut at) = (self.sent.view(), free);
        let put = |message: Message| {
            let bytes = message.bytes as usize;
            if let Some((offset, _)) = lying(&message, sent) {
                return self.sent.part(offset, bytes);
            }
            let buffer = self.sent.part(at, bytes);
            at += bytes.next_multiple_of(MESSAGE_ALIGNMENT);
            let target = buffer.view().part(0, message.len_bytes());
            match message.seen {
                Some(seen) => kernel::copy(seen.view(), target),
                None => kernel::write(target, 0, &message.data),
            }
            self.spare.keep_bytes(message.data);
            buffer
        };
        Ok(messages.into_iter().map(put).collect())
    }

    /// Makes the memory for sends large enough. Machines write their messages into it themselves.
    fn reserve_sent(&mut self, bytes: usize) -> Result<()> {
        if self.sent.len_bytes() < bytes {
            reserve(&self.comm, &mut self.sent, bytes)?;
            let held = Arc::new(self.sent.clone());
            self.spare.open_outbox(Seen::new(self.sent.view(), held));
        }
        Ok(())
    }

    fn words(
        &mut self,
        collective: Collective,
        words: &[u64],
        count: usize,
        is_wide: bool,
    ) -> std::result::Result<Operation, Refusal> {
        let bytes = if is_wide { 8 } else { 4 };
        self.reserve_sent(bytes * words.len())?;
        reserve(&self.comm, &mut self.received, bytes * count)?;
        let dtype = match is_wide {
            true => {
                self.sent.write(0, words);
                DataType::U64
            }
            false => {
                let narrow: Vec<u32> = words.iter().map(|word| *word as u32).collect();
                self.sent.write(0, &narrow);
                DataType::U32
            }
        };
        self.awaited = Awaited::Words { count, is_wide };
        let each = match collective {
            // The count is that of the elements for each rank.
            Collective::AllToAll => 1,
            _ => words.len() as u64,
        };
        let call = Call {
            op: ReduceOp::Sum,
            ..Call::new(collective, dtype, each)
        };
        let input = self.sent.part(0, bytes * words.len());
        let output = self.received.part(0, bytes * count);
        Ok(self.comm.start(&call.with(&input, &output))?)
    }

    fn gather(&mut self, own: Message, bytes: &[u64]) -> std::result::Result<Operation, Refusal> {
        let total: u64 = bytes.iter().sum();
        reserve(&self.comm, &mut self.received, total as usize)?;
        let own_bytes = own.bytes;
        let input = self.put(vec![own])?.swap_remove(0);
        let offset = |at: &mut u64, bytes: &u64| {
            let start = *at as usize;
            *at += bytes;
            Some((start, *bytes))
        };
        self.awaited = Awaited::Messages(bytes.iter().scan(0, offset).collect());
        let call = Call {
            receive_counts: bytes,
            ..Call::new(Collective::AllGatherV, DataType::U8, own_bytes)
        };
        let output = self.received.part(0, total as usize);
        Ok(self.comm.start(&call.with(&input, &output))?)
    }
}

/// Why a request has no operation.
enum Refusal {
    /// This rank has nothing to send and nothing to receive.
    Empty,
    Error(crate::error::Error),
}

impl From<crate::error::Error> for Refusal {
    fn from(error: crate::error::Error) -> Refusal {
        Refusal::Error(error)
    }
}

/// Places messages of these lengths one after another. Returns the offset and the length of each,
/// and the bytes of all together.
fn places(bytes: impl Iterator<Item = u64>) -> (Vec<(usize, u64)>, usize) {
    let mut end = 0usize;
    let places = bytes.map(|bytes| {
        let start = end;
        end += (bytes as usize).next_multiple_of(MESSAGE_ALIGNMENT);
        (start, bytes)
    });
    let places = places.collect();
    (places, end)
}

/// Makes a buffer large enough. It allocates a quarter more than is needed, because sizes vary from
/// step to step, and a slightly larger one is not to allocate again.
fn reserve(comm: &Communicator, buffer: &mut RawBuffer, bytes: usize) -> Result<()> {
    if buffer.len_bytes() < bytes {
        *buffer = comm.alloc_raw((bytes + bytes / 4).next_multiple_of(4096))?;
    }
    Ok(())
}
