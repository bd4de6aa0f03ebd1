//! [`Shape`]: how long the buffers of each collective must be. It checks the lengths and makes the
//! [`Call`].

use super::Communicator;
use super::call::Call;
use super::raw::RawBuffer;
use crate::error::{Error, Result};
use crate::memory::Element;
use crate::types::{Collective, Rank, ReduceOp};
use std::marker::PhantomData;

/// One collective of elements of type `T`, as one rank sees it.
///
/// Methods return [`Error::InvalidArgument`] if lengths do not fit.
pub(super) struct Shape<T> {
    collective: Collective,
    rank: Rank,
    ranks: u32,
    op: ReduceOp,
    root: Rank,
    element: PhantomData<T>,
}

impl Communicator {
    pub(super) fn shape<T: Element>(&self, collective: Collective) -> Shape<T> {
        Shape {
            collective,
            rank: self.rank(),
            ranks: self.ranks(),
            op: ReduceOp::Sum,
            root: 0,
            element: PhantomData,
        }
    }
}

impl<T: Element> Shape<T> {
    /// With this operator.
    pub(super) fn by(self, op: ReduceOp) -> Shape<T> {
        Shape { op, ..self }
    }

    /// With this root.
    pub(super) fn at(self, root: Rank) -> Shape<T> {
        Shape { root, ..self }
    }

    /// The call on this memory. In place, both are one buffer, or one is a block of the other. A
    /// buffer that this rank does not need in a rooted collective is ignored.
    pub(super) fn on<'a>(&self, input: &'a RawBuffer, output: &'a RawBuffer) -> Result<Call<'a>> {
        use Collective::{AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        let is_root = self.rank == self.root;
        let input = (is_root || !matches!(self.collective, Broadcast | Scatter)).then_some(input);
        let output = (is_root || !matches!(self.collective, Reduce | Gather)).then_some(output);
        // The buffer that every rank has gives the count. The other one is as long, or has one
        // block for each rank.
        let (one, other, what) = match self.collective {
            Broadcast | Scatter | ReduceScatter => (output, input, "input"),
            _ => (input, output, "output"),
        };
        let elements = one.map_or(0, len::<T>);
        let (count, wanted) = match self.collective {
            AllToAll => (self.block(elements)?, elements),
            Scatter | ReduceScatter | Gather | Collective::AllGather => {
                (elements, self.blocks(elements)?)
            }
            _ => (elements, elements),
        };
        if let Some(other) = other {
            self.check(what, len::<T>(other), wanted)?;
        }
        Ok(Call {
            input,
            output,
            ..self.call(count)
        })
    }

    /// The call of a collective with a length per rank. A buffer that this rank does not need in a
    /// rooted one is ignored.
    pub(super) fn on_counts<'a>(
        &self,
        input: &'a RawBuffer,
        output: &'a RawBuffer,
        counts: &'a [u64],
    ) -> Result<Call<'a>> {
        use Collective::{GatherV, ReduceScatterV, ScatterV};
        let (_, own) = self.own_place(counts)?;
        let is_root = self.rank == self.root;
        let (one, what) = match self.collective {
            ScatterV | ReduceScatterV => (output, "output"),
            _ => (input, "input"),
        };
        self.check(what, len::<T>(one), own)?;
        Ok(Call {
            input: (is_root || self.collective != ScatterV).then_some(input),
            output: (is_root || self.collective != GatherV).then_some(output),
            receive_counts: counts,
            ..self.call(0)
        })
    }

    /// The call of an all-to-allv. `check.rs` checks its lengths.
    pub(super) fn on_both_counts<'a>(
        &self,
        input: &'a RawBuffer,
        send_counts: &'a [u64],
        output: &'a RawBuffer,
        receive_counts: &'a [u64],
    ) -> Call<'a> {
        Call {
            send_counts,
            receive_counts,
            ..self.call(0).with(input, output)
        }
    }

    /// This rank's block of `data`, which has one equally long block for each rank.
    pub(super) fn own_block(&self, data: &RawBuffer) -> Result<RawBuffer> {
        let count = self.block(len::<T>(data))?;
        Ok(part::<T>(data, self.rank as usize * count, count))
    }

    /// This rank's block of `data`, where block r has `counts[r]` elements.
    pub(super) fn own_block_of(&self, data: &RawBuffer, counts: &[u64]) -> Result<RawBuffer> {
        let (start, own) = self.own_place(counts)?;
        match start.checked_add(own) {
            Some(end) if end <= len::<T>(data) => Ok(part::<T>(data, start, own)),
            _ => Err(Error::invalid(format!(
                "rank {}'s block of {} is {own} elements from {start} of {}",
                self.rank,
                self.collective,
                len::<T>(data)
            ))),
        }
    }

    /// A call of `count` elements that borrows its memory.
    fn call(&self, count: usize) -> Call<'static> {
        Call {
            op: self.op,
            root: self.root,
            borrows: true,
            ..Call::new(self.collective, T::DTYPE, count as u64)
        }
    }

    /// How many elements all ranks have together, with `count` elements each.
    fn blocks(&self, count: usize) -> Result<usize> {
        count.checked_mul(self.ranks as usize).ok_or_else(|| {
            Error::invalid(format!(
                "{} of {count} elements on {} ranks",
                self.collective, self.ranks
            ))
        })
    }

    /// How many elements each rank's block has, if `elements` are one equal block for each rank.
    fn block(&self, elements: usize) -> Result<usize> {
        let ranks = self.ranks as usize;
        if elements.is_multiple_of(ranks) {
            return Ok(elements / ranks);
        }
        Err(Error::invalid(format!(
            "{elements} elements of {} are not {ranks} equal blocks, one for each rank",
            self.collective
        )))
    }

    /// The first element and the length of this rank's block, where block r has `counts[r]`
    /// elements.
    fn own_place(&self, counts: &[u64]) -> Result<(usize, usize)> {
        let Some(&own) = counts.get(self.rank as usize) else {
            return Err(Error::invalid(format!(
                "{} has {} counts, and none for rank {}: one for each rank",
                self.collective,
                counts.len(),
                self.rank
            )));
        };
        let mut before = counts[..self.rank as usize].iter();
        let start = before.try_fold(0u64, |sum, &count| sum.checked_add(count));
        let place = start.and_then(|start| Some((start.try_into().ok()?, own.try_into().ok()?)));
        place.ok_or_else(|| {
            Error::invalid(format!(
                "the counts of {} are more than 2^64",
                self.collective
            ))
        })
    }

    /// An error unless as many elements are `given` as are `wanted`.
    fn check(&self, what: &str, given: usize, wanted: usize) -> Result<()> {
        if given == wanted {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the {what} of {} has {given} elements, {wanted} are needed",
            self.collective
        )))
    }
}

/// Length in elements.
fn len<T: Element>(memory: &RawBuffer) -> usize {
    memory.len_bytes() / size_of::<T>()
}

/// `count` elements from element `start` on.
fn part<T: Element>(memory: &RawBuffer, start: usize, count: usize) -> RawBuffer {
    memory.part(start * size_of::<T>(), count * size_of::<T>())
}
