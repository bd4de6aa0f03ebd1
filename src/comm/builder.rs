//! [`CollectiveBuilder`]: a collective whose element type is known only at run time, or that names
//! its algorithm.

use super::buffer::Buffer;
use super::call::{Call, Transfer};
use super::plans::Explanation;
use super::raw::RawBuffer;
use super::{Communicator, Operation};
use crate::config::checked_timeout;
use crate::error::{Error, Result};
use crate::memory::Element;
use crate::types::{Collective, DataType, Rank, ReduceOp};
use std::time::Duration;

/// A collective with options: its element type is a value, and it may name an algorithm. Made by
/// [`Communicator::collective`].
#[derive(Clone, Debug)]
#[must_use = "a collective does nothing until it is run or started"]
pub struct CollectiveBuilder<'a> {
    pub(super) communicator: &'a Communicator,
    collective: Collective,
    pub(super) dtype: DataType,
    count: u64,
    op: ReduceOp,
    root: Rank,
    pub(super) input: Option<(RawBuffer, DataType)>,
    pub(super) output: Option<(RawBuffer, DataType)>,
    timeout: Option<Duration>,
    /// Most calls have none of them, and small builders make short calls faster.
    options: Option<Box<Options>>,
}

/// Options that few collectives have.
#[derive(Clone, Debug)]
struct Options {
    send_counts: Vec<u64>,
    receive_counts: Vec<u64>,
    /// The segments of lists, those of the input first.
    segments: Vec<Transfer>,
    segment_dtypes: [Option<DataType>; 2],
    algorithm: Option<String>,
}

static NO_OPTIONS: Options = Options {
    send_counts: Vec::new(),
    receive_counts: Vec::new(),
    segments: Vec::new(),
    segment_dtypes: [None; 2],
    algorithm: None,
};

impl Communicator {
    /// A collective of `count` elements of `dtype` ([`Collective`] says how many elements input and
    /// output have then). Give it buffers and options, then run or start it, more than once if you
    /// like. The buffers have elements of `dtype`, or bytes. Where the type is known at compile
    /// time, the methods by name ([`Communicator::all_reduce`], ...) are shorter.
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
    #[inline]
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
            timeout: None,
            options: None,
        }
    }
}

impl CollectiveBuilder<'_> {
    /// The operator of a reducing collective; other collectives ignore it. Default: sum.
    #[inline]
    pub fn op(mut self, op: ReduceOp) -> Self {
        // Steps that only copy are made of reductions, too, and every type has sums.
        if self.collective.is_reducing() {
            self.op = op;
        }
        self
    }

    /// The root of a rooted collective. Default: rank 0.
    #[inline]
    pub fn root(mut self, root: Rank) -> Self {
        self.root = root;
        self
    }

    /// The input. Give the same buffer as input and output to run in place. The collective uses the
    /// first elements, as many as it needs.
    pub fn input<T: Element>(mut self, buffer: &Buffer<T>) -> Self {
        self.input = Some((buffer.raw().clone(), T::DTYPE));
        self
    }

    /// The output. The collective writes the first elements, as many as it needs; the others stay
    /// as they are.
    pub fn output<T: Element>(mut self, buffer: &Buffer<T>) -> Self {
        self.output = Some((buffer.raw().clone(), T::DTYPE));
        self
    }

    /// For an all-to-allv: how many elements this rank sends to each rank. They lie one after
    /// another in the input.
    pub fn send_counts(mut self, counts: &[u64]) -> Self {
        self.options().send_counts = counts.to_vec();
        self
    }

    /// For an all-to-allv: how many elements this rank receives from each rank. They lie one after
    /// another in the output. For an all-gatherv, a gatherv, a scatterv and a reduce-scatterv: how
    /// many elements the part of each rank has, equal on all ranks.
    pub fn receive_counts(mut self, counts: &[u64]) -> Self {
        self.options().receive_counts = counts.to_vec();
        self
    }

    /// The input as a list, in place of [`CollectiveBuilder::input`]: segment r is what goes to
    /// rank r, or is reduced for it. For an all-to-allv, a reduce-scatterv, and the root of a
    /// scatterv. The segments are not copied together. Other ranks may give one buffer. If no
    /// counts are given, the lengths of the segments are the counts.
    ///
    /// ```
    /// use linerate::{Collective, Communicator, Config, DataType, ReduceOp};
    /// let comm = Communicator::join(0, 1, "a job with lists", Config::default())?;
    /// let (gradients, sum) = (comm.alloc::<f32>(10)?, comm.alloc::<f32>(10)?);
    /// let scattered = comm.collective(Collective::ReduceScatterV, DataType::F32, 0);
    /// scattered.op(ReduceOp::Sum).inputs(&[gradients]).output(&sum).run()?;
    /// # Ok::<(), linerate::Error>(())
    /// ```
    pub fn inputs<T: Element>(self, segments: &[Buffer<T>]) -> Self {
        self.with_segments(segments, true)
    }

    /// The output as a list, in place of [`CollectiveBuilder::output`]: segment r is what comes
    /// from rank r. For an all-gatherv, an all-to-allv, and the root of a gatherv; otherwise as
    /// [`CollectiveBuilder::inputs`].
    pub fn outputs<T: Element>(self, segments: &[Buffer<T>]) -> Self {
        self.with_segments(segments, false)
    }

    fn with_segments<T: Element>(mut self, segments: &[Buffer<T>], is_send: bool) -> Self {
        let (collective, element) = (self.collective, self.dtype.size_bytes() as u64);
        match is_send {
            true => self.input = None,
            false => self.output = None,
        }
        let options = self.options();
        (options.segments).retain(|segment| segment.is_send != is_send);
        let at = if is_send { 0 } else { options.segments.len() };
        let new = (0..).zip(segments).map(|(peer, segment)| Transfer {
            peer,
            is_send,
            buffer: segment.raw().clone(),
        });
        options.segments.splice(at..at, new);
        let counts = match (collective, is_send) {
            (Collective::AllToAllV, true) => &mut options.send_counts,
            _ => &mut options.receive_counts,
        };
        if counts.is_empty() {
            let lengths = segments
                .iter()
                .map(|s| s.raw().len_bytes() as u64 / element);
            counts.extend(lengths);
        }
        options.segment_dtypes[usize::from(!is_send)] = Some(T::DTYPE);
        self
    }

    /// Names the algorithm (`linerate explain` lists them); otherwise the cost model chooses. All
    /// ranks must name the same one.
    pub fn algorithm(mut self, name: &str) -> Self {
        self.options().algorithm = Some(name.into());
        self
    }

    /// How long this collective may make no progress before the communicator fails, instead of the
    /// communicator's timeout ([`Communicator::set_timeout`]). Each rank goes by its own value.
    #[inline]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs it and waits for its end.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the arguments do not fit; [`Error::InUse`]: something else uses
    /// a buffer; any failure of the communicator.
    pub fn run(&self) -> Result<()> {
        self.communicator.run(&self.call()?)
    }

    /// Runs it and waits for its end, at most for `limit`. What has not ended by then goes on as
    /// the operation that is returned. So a caller can look at something else now and then, such
    /// as signals, and short calls are as fast as by [`CollectiveBuilder::run`].
    ///
    /// ```
    /// use linerate::{Collective, Communicator, Config, DataType};
    /// use std::time::Duration;
    /// let comm = Communicator::join(0, 1, "a job with limits", Config::default())?;
    /// let data = comm.alloc::<f32>(4)?;
    /// let sum = comm.collective(Collective::AllReduce, DataType::F32, 4);
    /// let left = sum.input(&data).output(&data).run_within(Duration::from_millis(50))?;
    /// assert!(left.is_none());
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`CollectiveBuilder::run`].
    pub fn run_within(&self, limit: Duration) -> Result<Option<Operation>> {
        self.communicator.run_within(&self.call()?, limit)
    }

    /// Starts it and returns at once. Errors: as [`CollectiveBuilder::run`].
    pub fn start(&self) -> Result<Operation> {
        self.communicator.start_and_overlap(&self.call()?)
    }

    /// What this collective would run and why, and what the cost model predicts for every algorithm
    /// that could run. It assumes that the buffers of all ranks are registered if those given here
    /// are, and not registered otherwise. Starts nothing.
    pub fn explain(&self) -> Result<Explanation> {
        self.communicator.explain(&self.call()?)
    }

    fn options(&mut self) -> &mut Options {
        (self.options).get_or_insert_with(|| Box::new(NO_OPTIONS.clone()))
    }

    /// Whether it is of this communicator.
    pub(super) fn is_of(&self, comm: &Communicator) -> bool {
        std::sync::Arc::ptr_eq(&self.communicator.inner, &comm.inner)
    }

    #[inline(always)]
    pub(super) fn call(&self) -> Result<Call<'_>> {
        if self.collective == Collective::SendRecv {
            return Err(Error::invalid(
                "sends and receives are no collective with a builder: use Communicator::group",
            ));
        }
        let options = self.options.as_deref().unwrap_or(&NO_OPTIONS);
        let [inputs, outputs] = options.segment_dtypes;
        let of = |memory: &Option<(RawBuffer, DataType)>| memory.as_ref().map(|(_, dtype)| *dtype);
        let is_other = |dtype: &DataType| ![self.dtype, DataType::U8].contains(dtype);
        if let Some(dtype) = of(&self.input).or(inputs).filter(is_other) {
            return Err(self.other_dtype("input", dtype));
        }
        if let Some(dtype) = of(&self.output).or(outputs).filter(is_other) {
            return Err(self.other_dtype("output", dtype));
        }
        let timeout = match self.timeout {
            Some(timeout) => Some(checked_timeout(timeout)?),
            None => None,
        };
        Ok(Call {
            op: self.op,
            root: self.root,
            input: self.input.as_ref().map(|(raw, _)| raw),
            output: self.output.as_ref().map(|(raw, _)| raw),
            send_counts: &options.send_counts,
            receive_counts: &options.receive_counts,
            transfers: &options.segments,
            algorithm: options.algorithm.as_deref(),
            timeout,
            borrows: true,
            ..Call::new(self.collective, self.dtype, self.count)
        })
    }

    #[cold]
    fn other_dtype(&self, what: &str, dtype: DataType) -> Error {
        Error::invalid(format!(
            "the {what} of {} of {} has elements of {dtype}: give that type or bytes (Buffer::cast)",
            self.collective, self.dtype
        ))
    }
}
