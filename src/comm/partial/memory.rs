//! [`Memory`]: the snapshots, the results and the gathered headers of a partial allreduce. All are
//! allocated when it is made.

use crate::comm::Communicator;
use crate::comm::call::{Call, OwnedCall};
use crate::comm::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::kernel;
use crate::memory::View;
use crate::partial::{HEADER_BYTES, Header, PartialOptions, RoundReport};
use crate::types::{Collective, Combine, DataType, Finish, Rank};

/// Offset in bytes of a snapshot's elements, so that they are aligned. The header is right before
/// them.
const DATA_START: usize = 64;

/// Longest vector that travels with the headers. A round is then one operation, which gathers all
/// vectors on every rank, and every rank adds them up: one latency less, for P times the bytes.
const SMALL_BYTES_MAX: usize = 1024;

/// Most bytes of the headers and small vectors of all ranks together.
const SMALL_GATHER_BYTES_MAX: usize = 64 << 10;

/// The rank that gathers the headers for all. It is always the same, because each root would need
/// a schedule of its own on every rank.
const COLLECTOR: Rank = 0;

const HEADER_WORDS: usize = HEADER_BYTES / 8;

/// See the module.
pub struct Memory {
    dtype: DataType,
    count: u64,
    /// Headers with their elements; the index is the round modulo the number of snapshots.
    snapshots: Vec<RawBuffer>,
    /// The index is the machine's place.
    results: Vec<RawBuffer>,
    /// Headers of all ranks, each followed by the rank's vector if that is small. The index is the
    /// round modulo the rounds in flight.
    gathered: Vec<RawBuffer>,
    /// The contribution of a rank that has nothing to contribute. `None` if vectors are small.
    neutral: Option<RawBuffer>,
    /// Bytes that each rank contributes to the gathering.
    piece_bytes: usize,
    /// Whether one rank gathers the headers for all.
    is_star: bool,
}

impl Memory {
    pub fn new(
        comm: &Communicator,
        (dtype, count): (DataType, u64),
        options: &PartialOptions,
        snapshots_count: usize,
    ) -> Result<Memory> {
        let ranks = comm.ranks() as usize;
        let bytes = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(dtype.size_bytes()))
            .filter(|&bytes| bytes > 0 && bytes <= isize::MAX as usize / 2)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "a partial allreduce of {count} elements of {dtype}: from 1 to what an address space holds"
                ))
            })?;
        let small_bytes = HEADER_BYTES + bytes.next_multiple_of(8);
        let is_small = bytes <= SMALL_BYTES_MAX && ranks * small_bytes <= SMALL_GATHER_BYTES_MAX;
        let piece_bytes = if is_small { small_bytes } else { HEADER_BYTES };
        let alloc = |number: usize, bytes: usize| {
            let all = (0..number).map(|_| comm.alloc_raw(bytes));
            all.collect::<Result<Vec<RawBuffer>>>()
        };
        let neutral = match is_small {
            true => None,
            false => {
                let buffer = comm.alloc_raw(bytes)?;
                fill_neutral(dtype, buffer.view());
                Some(buffer)
            }
        };
        Ok(Memory {
            dtype,
            count,
            snapshots: alloc(snapshots_count, DATA_START + bytes.next_multiple_of(8))?,
            results: (alloc(options.results_max(), bytes.next_multiple_of(8))?.iter())
                .map(|buffer| buffer.part(0, bytes))
                .collect(),
            gathered: alloc(options.rounds_in_flight as usize, ranks * piece_bytes)?,
            neutral,
            piece_bytes,
            is_star: comm.driving()?.engine().plans.is_crowded_host(),
        })
    }

    /// Whether the others need nothing more of this rank once it has begun a round. That is so for
    /// small vectors if another rank gathers them for all.
    pub fn is_done_by_beginning(&self, rank: Rank) -> bool {
        self.is_star && self.is_small() && rank != COLLECTOR
    }

    /// Whether the vectors travel with the headers, so that a round is one operation.
    pub fn is_small(&self) -> bool {
        self.neutral.is_none()
    }

    pub fn bytes(&self) -> usize {
        self.count as usize * self.dtype.size_bytes()
    }

    /// The elements of a round's snapshot.
    pub fn snapshot(&self, round: u64) -> RawBuffer {
        let index = (round % self.snapshots.len() as u64) as usize;
        self.snapshots[index].part(DATA_START, self.bytes())
    }

    /// The broadcast of a result in place. The caller sets the root.
    pub fn fetch_call(&self, place: usize) -> Call<'_> {
        let result = self.result(place);
        Call::new(Collective::Broadcast, self.dtype, self.count).with(result, result)
    }

    pub fn result(&self, place: usize) -> &RawBuffer {
        &self.results[place]
    }

    /// Adds the elements of `later` to those of `to`.
    pub fn add(&self, later: View, to: View) {
        let (combine, finish) = (Combine::Sum, Finish::None);
        kernel::reduce(self.dtype, combine, finish, &[to, later], &[to]);
    }

    /// Writes the header of a round, and returns the allgather of the headers of this many ranks.
    /// Where ranks share cores, one rank gathers them for all, and is woken once for all of them.
    /// Elsewhere the allgather's algorithm is chosen as for any other call.
    pub fn gather_call(&self, header: &Header, ranks: usize) -> OwnedCall {
        let index = (header.round % self.snapshots.len() as u64) as usize;
        let piece = self.snapshots[index].part(DATA_START - HEADER_BYTES, self.piece_bytes);
        for (index, word) in header.emit().into_iter().enumerate() {
            kernel::store(piece.view(), index, word);
        }
        let words = (self.piece_bytes / 8) as u64;
        let gathered = self.gathered_of(header.round);
        OwnedCall {
            call: Call {
                algorithm: self.is_star.then_some("star"),
                root: COLLECTOR,
                ..Call::new(Collective::AllGather, DataType::U64, words)
            },
            output: gathered.part(0, ranks * self.piece_bytes),
            input: piece,
        }
    }

    /// The allreduce that sums the snapshots of a round. `None` if vectors are small, since they
    /// are then gathered.
    pub fn sum_call(&self, header: &Header, place: usize) -> Option<OwnedCall> {
        let neutral = self.neutral.as_ref()?;
        Some(OwnedCall {
            call: Call::new(Collective::AllReduce, self.dtype, self.count),
            input: match header.is_included() {
                true => self.snapshot(header.round),
                false => neutral.clone(),
            },
            output: self.results[place].clone(),
        })
    }

    /// The gathered headers of this many ranks, in the order of the ranks.
    pub fn headers(&self, round: u64, ranks: usize) -> Vec<Header> {
        let gathered = self.gathered_of(round).view();
        let header = |rank: usize| {
            let start = rank * self.piece_bytes / 8;
            let words: [u64; HEADER_WORDS] =
                std::array::from_fn(|i| kernel::load(gathered, start + i));
            Header::parse(words)
        };
        (0..ranks).map(header).collect()
    }

    /// Makes the result of a round from the contributions of these living ranks: the sum over the
    /// included ones, in the order of the ranks, divided once.
    pub fn conclude(&self, report: &RoundReport, live: &[Rank], place: usize) {
        let result = self.results[place].view();
        if report.included.count() == 0 {
            // A sum of neutral elements is -0 for floats, but the sum of nothing is to be 0.
            return kernel::fill(result, 0);
        }
        let finish = match report.divisor {
            1 => Finish::None,
            divisor => Finish::Divide(u32::try_from(divisor).unwrap_or(u32::MAX)),
        };
        if self.neutral.is_some() {
            if finish != Finish::None {
                kernel::reduce(self.dtype, Combine::Sum, finish, &[result], &[result]);
            }
            return;
        }
        let gathered = self.gathered_of(report.round).view();
        let piece = |(index, _)| {
            let start = index * self.piece_bytes + HEADER_BYTES;
            gathered.part(start, self.bytes())
        };
        let is_included = |(_, rank): &(usize, &Rank)| report.included.contains(**rank);
        let sources: Vec<View> = (live.iter().enumerate())
            .filter(is_included)
            .map(piece)
            .collect();
        kernel::reduce(self.dtype, Combine::Sum, finish, &sources, &[result]);
    }

    fn gathered_of(&self, round: u64) -> &RawBuffer {
        &self.gathered[(round % self.gathered.len() as u64) as usize]
    }
}

/// Fills a view with the element that changes no sum. For floats that is -0, because adding 0
/// would turn -0 into 0; for complex numbers both parts are -0.
fn fill_neutral(dtype: DataType, view: View) {
    let dtype = dtype.part();
    if !dtype.is_float() {
        return kernel::fill(view, 0);
    }
    let elements = view.len_bytes() / dtype.size_bytes();
    for index in 0..elements {
        match dtype.size_bytes() {
            8 => kernel::store(view, index, 1u64 << 63),
            4 => kernel::store(view, index, 1u32 << 31),
            2 => kernel::store(view, index, 1u16 << 15),
            _ => kernel::store(view, index, 1u8 << 7),
        }
    }
}
