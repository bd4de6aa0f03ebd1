//! Collectives on the memory of arguments.
#![allow(unsafe_code)]

use crate::communicator::Communicator;
use crate::errors::{OrRaise, invalid};
use crate::memory::{Keep, Memory};
use crate::operation::{Operation, sweep};
use crate::waiting;
use linerate::{Buffer, Collective, DataType, ReduceOp, Tagged};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::Duration;

/// The memory of a collective.
pub struct Arguments {
    collective: Collective,
    input: Option<Memory>,
    output: Option<Memory>,
    /// Lists in place of them: a part of each rank.
    inputs: Vec<Memory>,
    outputs: Vec<Memory>,
    /// Input and output are one.
    in_place: bool,
}

impl Arguments {
    /// Memory that is read, and memory that is written. Either may be a list.
    pub fn of(
        collective: Collective,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arguments> {
        let (input, inputs) = one_or_list("input", input, false)?;
        let (output, outputs) = one_or_list("output", output, true)?;
        Ok(Arguments {
            collective,
            input,
            output,
            inputs,
            outputs,
            in_place: false,
        })
    }

    /// Memory that is read, and memory that is written; the same without the latter.
    pub fn inout(
        collective: Collective,
        input: &Bound<'_, PyAny>,
        output: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arguments> {
        if output.is_some() {
            return Arguments::of(collective, Some(input), output);
        }
        Ok(Arguments {
            output: Some(Memory::of("data", input, true)?),
            in_place: true,
            ..Arguments::of(collective, None, None)?
        })
    }
}

/// The memory of an argument, or that of each segment of a list.
fn one_or_list(
    name: &str,
    argument: Option<&Bound<'_, PyAny>>,
    is_written: bool,
) -> PyResult<(Option<Memory>, Vec<Memory>)> {
    let Some(argument) = argument else {
        return Ok((None, Vec::new()));
    };
    let Ok(list) = argument.cast::<PyList>() else {
        return Ok((Some(Memory::of(name, argument, is_written)?), Vec::new()));
    };
    let name = |number: usize| format!("segment {number} of the {name}");
    let all = list.iter().enumerate();
    let all = all.map(|(number, each)| Memory::of(&name(number), &each, is_written));
    Ok((None, all.collect::<PyResult<_>>()?))
}

/// A segment as memory of a list.
fn adopt(
    py: Python<'_>,
    comm: &linerate::Communicator,
    segment: &Memory,
    dtype: DataType,
) -> PyResult<Buffer<u8>> {
    if segment.dtype != dtype {
        return Err(invalid(
            py,
            format!(
                "a list has segments of {dtype} and of {}: give one type",
                segment.dtype
            ),
        ));
    }
    if segment.count > 0 && !segment.address.is_multiple_of(dtype.size_bytes().min(8)) {
        return Err(invalid(
            py,
            format!(
                "a segment of {dtype} at {:#x} is not aligned",
                segment.address
            ),
        ));
    }
    let bytes = segment.count as usize * dtype.size_bytes();
    // SAFETY: the operation keeps the memory; see `Options::run`.
    unsafe { comm.adopt(with_exposed_provenance_mut::<u8>(segment.address), bytes) }.or_raise(py)
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

    /// `None`: those of lists.
    pub fn with_counts(mut self, send: Option<Vec<u64>>, receive: Option<Vec<u64>>) -> Options {
        self.send_counts = send.unwrap_or_default();
        self.receive_counts = receive.unwrap_or_default();
        self
    }

    /// Runs a collective, or starts it.
    pub fn run(
        mut self,
        communicator: &Bound<'_, Communicator>,
        arguments: Arguments,
    ) -> PyResult<Option<Operation>> {
        let py = communicator.py();
        sweep();
        let comm = communicator.get().get(py)?;
        let (collective, of) = (arguments.collective, &arguments);
        let both = [of.input.as_ref(), of.output.as_ref()];
        let first = |one: Option<&'_ Memory>, list: &[Memory]| {
            one.or(list.first()).map(|memory| memory.dtype)
        };
        let dtype = match [first(both[0], &of.inputs), first(both[1], &of.outputs)] {
            [Some(input), Some(output)] if input != output => {
                return Err(invalid(
                    py,
                    format!(
                        "the input of {collective} has elements of {input}, and the output of {output}: give one type"
                    ),
                ));
            }
            [Some(one), _] | [None, Some(one)] => one,
            _ => DataType::U8,
        };
        self.count_segments(of);
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
        for (list, is_input) in [(&of.inputs, true), (&of.outputs, false)] {
            if list.is_empty() {
                continue;
            }
            let adopted = list.iter().map(|segment| adopt(py, &comm, segment, dtype));
            let adopted = adopted.collect::<PyResult<Vec<_>>>()?;
            built = match is_input {
                true => built.inputs(&adopted),
                false => built.outputs(&adopted),
            };
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
        let keep = arguments.input.into_iter().chain(arguments.output);
        let keep = keep.chain(arguments.inputs).chain(arguments.outputs);
        let keep = keep.map(|memory| memory.keep);
        self.finish(communicator, started, keep.collect())
    }

    /// Takes lengths that were not given from those of lists.
    fn count_segments(&mut self, of: &Arguments) {
        let lengths = |list: &[Memory]| list.iter().map(|segment| segment.count).collect();
        let (sends, receives) = match of.collective {
            Collective::AllToAllV => (&of.inputs, &of.outputs),
            _ if of.inputs.is_empty() => (&of.inputs, &of.outputs),
            _ => (&of.outputs, &of.inputs),
        };
        if self.send_counts.is_empty() && of.collective == Collective::AllToAllV {
            self.send_counts = lengths(sends);
        }
        if self.receive_counts.is_empty() {
            self.receive_counts = lengths(receives);
        }
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
            C::AllGatherV | C::GatherV => [own, received],
            C::ReduceScatterV | C::ScatterV => [received, own],
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
        let buffer = adopt(py, &comm, &memory, memory.dtype)?;
        let started = start(&tagged, &buffer).or_raise(py)?;
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
