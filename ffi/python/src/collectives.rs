//! Collectives on the memory of arguments.
#![allow(unsafe_code)]

use crate::communicator::Communicator;
use crate::errors::{OrRaise, invalid};
use crate::memory::{Keep, Memory};
use crate::operation::{Operation, sweep};
use crate::waiting;
use linerate::{Buffer, Collective, DataType, ReduceOp, Tagged};
use pyo3::prelude::*;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::Duration;

/// The memory of a collective.
pub struct Arguments {
    collective: Collective,
    input: Option<Memory>,
    output: Option<Memory>,
    /// Both are one.
    in_place: bool,
}

impl Arguments {
    pub fn new(collective: Collective) -> Arguments {
        Arguments {
            collective,
            input: None,
            output: None,
            in_place: false,
        }
    }

    /// Memory that is read, and memory that is written; the same without the latter.
    pub fn inout(
        mut self,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arguments> {
        match output {
            Some(output) => self.input(input)?.output(output),
            None => {
                self.output = Some(Memory::of("data", input, true)?);
                self.in_place = true;
                Ok(self)
            }
        }
    }

    pub fn input(mut self, input: &Bound<'_, PyAny>) -> PyResult<Arguments> {
        self.input = Some(Memory::of("input", input, false)?);
        Ok(self)
    }

    pub fn output(mut self, output: &Bound<'_, PyAny>) -> PyResult<Arguments> {
        self.output = Some(Memory::of("output", output, true)?);
        Ok(self)
    }

    pub fn maybe_input(self, input: Option<&Bound<'_, PyAny>>) -> PyResult<Arguments> {
        match input {
            Some(input) => self.input(input),
            None => Ok(self),
        }
    }

    pub fn maybe_output(self, output: Option<&Bound<'_, PyAny>>) -> PyResult<Arguments> {
        match output {
            Some(output) => self.output(output),
            None => Ok(self),
        }
    }
}

/// What all calls take.
pub struct Options {
    op: ReduceOp,
    root: u32,
    algorithm: Option<String>,
    timeout: Option<Duration>,
    is_started: bool,
    send_counts: Vec<u64>,
    receive_counts: Vec<u64>,
}

impl Options {
    pub fn new(
        py: Python<'_>,
        algorithm: Option<&str>,
        timeout: Option<f64>,
        is_started: bool,
    ) -> PyResult<Options> {
        Ok(Options {
            op: ReduceOp::Sum,
            root: 0,
            algorithm: algorithm.map(str::to_owned),
            timeout: waiting::seconds(py, "timeout", timeout)?,
            is_started,
            send_counts: Vec::new(),
            receive_counts: Vec::new(),
        })
    }

    pub fn with_op(mut self, py: Python<'_>, op: &str) -> PyResult<Options> {
        self.op = op.parse::<ReduceOp>().or_raise(py)?;
        Ok(self)
    }

    pub fn with_root(mut self, root: u32) -> Options {
        self.root = root;
        self
    }

    pub fn with_counts(mut self, send: Vec<u64>, receive: Vec<u64>) -> Options {
        (self.send_counts, self.receive_counts) = (send, receive);
        self
    }

    /// Runs a collective, or starts it.
    pub fn run(
        self,
        communicator: &Bound<'_, Communicator>,
        arguments: Arguments,
    ) -> PyResult<Option<Operation>> {
        let py = communicator.py();
        sweep();
        let comm = communicator.get().get(py)?;
        let (collective, of) = (arguments.collective, &arguments);
        let both = [of.input.as_ref(), of.output.as_ref()];
        let dtype = match both {
            [Some(input), Some(output)] if input.dtype != output.dtype => {
                return Err(invalid(
                    py,
                    format!(
                        "the input of {collective} has elements of {}, and the output of {}: give one type",
                        input.dtype, output.dtype
                    ),
                ));
            }
            [Some(one), _] | [None, Some(one)] => one.dtype,
            _ => DataType::U8,
        };
        let count = self.count(py, comm.ranks(), of)?;
        self.check(py, (comm.rank(), comm.ranks()), count, of)?;
        let mut built = comm
            .collective(collective, dtype, count)
            .op(self.op)
            .root(self.root);
        if !self.send_counts.is_empty() {
            built = built.send_counts(&self.send_counts);
        }
        if !self.receive_counts.is_empty() {
            built = built.receive_counts(&self.receive_counts);
        }
        if let Some(algorithm) = &self.algorithm {
            built = built.algorithm(algorithm);
        }
        if let Some(timeout) = self.timeout {
            built = built.timeout(timeout);
        }
        let address = |memory: Option<&Memory>| match memory {
            Some(memory) => with_exposed_provenance_mut::<u8>(memory.address),
            None => null_mut(),
        };
        let output = address(both[1]);
        let input = if of.in_place {
            output
        } else {
            address(both[0])
        };
        // SAFETY: the memory is as long as the collective says, which was checked, and is kept by
        // the operation until that has ended. That nothing else uses it meanwhile is the caller's
        // to see to, as with any array that threads share.
        let built = unsafe { built.at(input, output) }.or_raise(py)?;
        let started = match self.is_started {
            true => Some(built.start()),
            false => py.detach(|| built.run_within(waiting::SLICE)).transpose(),
        };
        let Some(started) = started.transpose().or_raise(py)? else {
            return Ok(None);
        };
        let keep = [arguments.input, arguments.output];
        let keep = keep.into_iter().flatten().map(|memory| memory.keep);
        self.finish(communicator, started, keep.collect())
    }

    /// Elements per rank.
    fn count(&self, py: Python<'_>, ranks: u32, of: &Arguments) -> PyResult<u64> {
        use Collective::{AllToAll, Barrier, ReduceScatter, Scatter};
        let of_input = of
            .input
            .as_ref()
            .or(of.output.as_ref())
            .map_or(0, |it| it.count);
        let of_output = of.output.as_ref().map_or(0, |it| it.count);
        Ok(match of.collective {
            Barrier => 0,
            ReduceScatter | Scatter => of_output,
            AllToAll if !of_input.is_multiple_of(u64::from(ranks)) => {
                return Err(invalid(
                    py,
                    format!("all_to_all: {of_input} elements are no multiple of {ranks} ranks"),
                ));
            }
            AllToAll => of_input / u64::from(ranks),
            _ => of_input,
        })
    }

    /// Whether input and output are as long as they must be.
    fn check(
        &self,
        py: Python<'_>,
        (rank, ranks): (u32, u32),
        count: u64,
        of: &Arguments,
    ) -> PyResult<()> {
        use Collective as C;
        let (all, sum) = (
            count.saturating_mul(u64::from(ranks)),
            |counts: &[u64]| {
                counts
                    .iter()
                    .fold(0u64, |sum, &count| sum.saturating_add(count))
            },
        );
        let received = sum(&self.receive_counts);
        let own = self.receive_counts.get(rank as usize).copied().unwrap_or(0);
        let wanted = match of.collective {
            C::ReduceScatter | C::Scatter => [all, count],
            C::AllGather | C::Gather => [count, all],
            C::AllToAll => [all, all],
            C::AllGatherV => [own, received],
            C::ReduceScatterV => [received, own],
            C::AllToAllV => [sum(&self.send_counts), received],
            _ => [count, count],
        };
        for (name, memory, wanted) in [
            ("input", &of.input, wanted[0]),
            ("output", &of.output, wanted[1]),
        ] {
            if let Some(memory) = memory
                && memory.count != wanted
            {
                return Err(invalid(
                    py,
                    format!(
                        "the {name} of {} has {} elements, and {wanted} are needed on this rank",
                        of.collective, memory.count
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Starts a send or a receive with a tag, and waits for it unless it is only to be started.
    pub fn transfer(
        self,
        communicator: &Bound<'_, Communicator>,
        memory: Memory,
        tag: u32,
        start: impl FnOnce(&Tagged<'_>, &Buffer<u8>) -> linerate::Result<linerate::Operation>,
    ) -> PyResult<Option<Operation>> {
        let py = communicator.py();
        sweep();
        let comm = communicator.get().get(py)?;
        let mut tagged = comm.tagged(tag);
        if let Some(timeout) = self.timeout {
            tagged = tagged.timeout(timeout);
        }
        let bytes = memory.count as usize * memory.dtype.size_bytes();
        // SAFETY: as in `run`.
        let buffer =
            unsafe { comm.adopt(with_exposed_provenance_mut::<u8>(memory.address), bytes) };
        let started = start(&tagged, &buffer.or_raise(py)?).or_raise(py)?;
        self.finish(communicator, started, vec![memory.keep])
    }

    fn finish(
        &self,
        communicator: &Bound<'_, Communicator>,
        started: linerate::Operation,
        keep: Vec<Keep>,
    ) -> PyResult<Option<Operation>> {
        let operation = Operation::new(started, keep, communicator.clone().unbind());
        if self.is_started {
            return Ok(Some(operation));
        }
        communicator.py().check_signals()?;
        operation.wait_for(communicator.py(), None)?;
        Ok(None)
    }
}
