//! [`CollectiveBuilder`]: a collective whose type is known at run time, or that names its
//! algorithm.

use super::buffer::Buffer;
use super::call::Call;
use super::plans::Explanation;
use super::raw::RawBuffer;
use super::{Communicator, Operation};
use crate::error::{Error, Result};
use crate::memory::Element;
use crate::types::{Collective, DataType, Rank, ReduceOp};

/// A collective with options: an element type that is a value, a named algorithm. See
/// [`Communicator::collective`].
#[derive(Clone, Debug)]
#[must_use = "a collective does nothing until it is run or started"]
pub struct CollectiveBuilder<'a> {
    communicator: &'a Communicator,
    collective: Collective,
    dtype: DataType,
    count: u64,
    op: ReduceOp,
    root: Rank,
    input: Option<(RawBuffer, DataType)>,
    output: Option<(RawBuffer, DataType)>,
    send_counts: Vec<u64>,
    receive_counts: Vec<u64>,
    algorithm: Option<String>,
}

impl Communicator {
    /// A collective of `count` elements of `dtype` for each rank ([`Collective`] says what that is
    /// of each), to be given its buffers and options and then run or started, also more than once.
    /// The buffers have elements of that type, or bytes. Where the type is known, the methods by
    /// name ([`Communicator::all_reduce`], ...) are shorter.
    ///
    /// ```
    /// use linerate::{Collective, Communicator, Config, DataType, ReduceOp};
    /// let communicator = Communicator::join(0, 1, "a job with types", Config::default())?;
    /// let dtype: DataType = "f32".parse().unwrap();
    /// let bytes = communicator.alloc::<u8>(4 * dtype.size_bytes())?;
    /// let sum = communicator.collective(Collective::AllReduce, dtype, 4);
    /// sum.op(ReduceOp::Sum).input(&bytes).output(&bytes).run()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn collective(
        &self,
        collective: Collective,
        dtype: DataType,
        count: u64,
    ) -> CollectiveBuilder<'_> {
        CollectiveBuilder {
            communicator: self,
            collective,
            dtype,
            count,
            op: ReduceOp::Sum,
            root: 0,
            input: None,
            output: None,
            send_counts: Vec::new(),
            receive_counts: Vec::new(),
            algorithm: None,
        }
    }
}

impl CollectiveBuilder<'_> {
    /// The operator of a reducing collective; the others do not look at it. Default: sum.
    pub fn op(mut self, op: ReduceOp) -> Self {
        // Steps that only copy are made of reductions, too, and every type has sums.
        if self.collective.is_reducing() {
            self.op = op;
        }
        self
    }

    /// The root of a rooted collective. Default: rank 0.
    pub fn root(mut self, root: Rank) -> Self {
        self.root = root;
        self
    }

    /// The input; the same as the output for in place. Elements beyond those that are needed stay
    /// as they are.
    pub fn input<T: Element>(mut self, buffer: &Buffer<T>) -> Self {
        self.input = Some((buffer.raw().clone(), T::DTYPE));
        self
    }

    /// The output. Elements beyond those that are needed stay as they are.
    pub fn output<T: Element>(mut self, buffer: &Buffer<T>) -> Self {
        self.output = Some((buffer.raw().clone(), T::DTYPE));
        self
    }

    /// Elements to each rank, of an all-to-allv; they lie one after another in the input.
    pub fn send_counts(mut self, counts: &[u64]) -> Self {
        self.send_counts = counts.to_vec();
        self
    }

    /// Elements from each rank, of an all-gatherv or an all-to-allv; they lie one after another in
    /// the output.
    pub fn receive_counts(mut self, counts: &[u64]) -> Self {
        self.receive_counts = counts.to_vec();
        self
    }

    /// The algorithm by name (`linerate explain` lists them) instead of the cost model's choice.
    /// All ranks name the same.
    pub fn algorithm(mut self, name: &str) -> Self {
        self.algorithm = Some(name.into());
        self
    }

    /// Runs it and waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: arguments that do not fit; [`Error::InUse`]: a buffer that
    /// something else uses; any failure of the communicator.
    pub fn run(&self) -> Result<()> {
        self.communicator.run(&self.call()?)
    }

    /// Starts it and returns at once. Errors: as [`CollectiveBuilder::run`].
    pub fn start(&self) -> Result<Operation> {
        self.communicator.start_and_overlap(&self.call()?)
    }

    /// What would run, if every rank's buffers are registered or not as these are, why, and what
    /// the cost model says of everything that could run. Starts nothing.
    pub fn explain(&self) -> Result<Explanation> {
        self.communicator.explain(&self.call()?)
    }

    fn call(&self) -> Result<Call<'_>> {
        if self.collective == Collective::SendRecv {
            return Err(Error::invalid(
                "sends and receives are no collective with a builder: use Communicator::group",
            ));
        }
        for (what, memory) in [("input", &self.input), ("output", &self.output)] {
            if let Some((_, dtype)) = memory
                && ![self.dtype, DataType::U8].contains(dtype)
            {
                return Err(Error::invalid(format!(
                    "the {what} of {} of {} has elements of {dtype}: give that type or bytes (Buffer::cast)",
                    self.collective, self.dtype
                )));
            }
        }
        Ok(Call {
            op: self.op,
            root: self.root,
            input: self.input.as_ref().map(|(raw, _)| raw),
            output: self.output.as_ref().map(|(raw, _)| raw),
            send_counts: &self.send_counts,
            receive_counts: &self.receive_counts,
            algorithm: self.algorithm.as_deref(),
            borrows: true,
            ..Call::new(self.collective, self.dtype, self.count)
        })
    }
}
