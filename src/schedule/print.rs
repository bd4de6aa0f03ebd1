//! Schedules as text: one line per step, with what it waits for.

use super::{
    Action, Buffer, BufferId, Dependency, Extent, Join, Operand, Point, Range, Schedule, Trigger,
};
use std::fmt;

impl fmt::Display for Schedule {
    /// A heading, a line per buffer that is not the caller's, and a line per step:
    /// ` 3 reduce %2[2/4] + in[2/4] -> out[2/4] finish <- 1~ 2`, where `1~` is met element by
    /// element and `2` in full.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, rank {} of {}{}",
            self.name,
            self.rank,
            self.ranks,
            if self.in_place { ", in place" } else { "" }
        )?;
        for (index, buffer) in self.buffers.iter().enumerate() {
            match buffer {
                Buffer::Input | Buffer::Output => {}
                Buffer::Caller(number) => writeln!(f, "  %{index} caller's buffer {number}")?,
                Buffer::Scratch(extent) => writeln!(f, "  %{index} scratch[{extent}]")?,
                Buffer::Window(extent) => writeln!(f, "  %{index} window[{extent}]")?,
                Buffer::Shared(extent) => writeln!(f, "  %{index} shared[{extent}]")?,
            }
        }
        for (index, step) in self.steps.iter().enumerate() {
            write!(f, "{index:>3} {}", step.action)?;
            if step.trigger == Trigger::Caller {
                f.write_str(" on arrival")?;
            }
            if !step.dependencies.is_empty() {
                f.write_str(match step.join {
                    Join::All => " <-",
                    Join::Any => " <- any of",
                })?;
            }
            write_dependencies(f, &step.dependencies)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Several overlap edges to one step are one mark.
fn write_dependencies(f: &mut fmt::Formatter<'_>, dependencies: &[Dependency]) -> fmt::Result {
    let mut written = Vec::new();
    for dependency in dependencies {
        let mark = (dependency.step, dependency.overlap.is_some());
        if !written.contains(&mark) {
            written.push(mark);
            write!(f, " {}{}", mark.0, if mark.1 { "~" } else { "" })?;
        }
    }
    Ok(())
}

impl fmt::Display for Extent {
    /// `2/4` is block 2 of 4, `1..3/4` two blocks, `2/4 of 4n` of four times the count, `s0+s1`
    /// from slots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Extent::Slots { offset, length } => write!(f, "s{offset}+s{length}"),
            Extent::Blocks {
                first,
                len,
                of,
                times,
            } => {
                match (len, of) {
                    (1, 1) => f.write_str("all")?,
                    (1, _) => write!(f, "{first}/{of}")?,
                    _ => write!(f, "{first}..{}/{of}", first + len)?,
                }
                if times == 1 {
                    Ok(())
                } else {
                    write!(f, " of {times}n")
                }
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffer {
            BufferId::INPUT => write!(f, "in[{}", self.extent)?,
            BufferId::OUTPUT => write!(f, "out[{}", self.extent)?,
            BufferId(other) => write!(f, "%{other}[{}", self.extent)?,
        }
        let Point { index, of, .. } = self.origin;
        if index != 0 {
            write!(f, " - {index}/{of}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Local(range) => write!(f, "{range}"),
            Operand::Peer(peer, range) => write!(f, "@{peer}:{range}"),
            Operand::Mail(peer, lane) => write!(f, "@{peer}:mail{lane}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Send {
                peer,
                message,
                source,
            } => write!(f, "send {source} -> @{peer} #{message}"),
            Action::Recv {
                peer,
                message,
                destination,
            } => write!(f, "recv @{peer} #{message} -> {destination}"),
            Action::Put {
                peer,
                source,
                destination,
            } => write!(f, "put {source} -> @{peer}:{destination}"),
            Action::Get {
                peer,
                source,
                destination,
            } => write!(f, "get @{peer}:{source} -> {destination}"),
            Action::Copy {
                source,
                destination,
                premultiply,
            } => {
                let factor = if *premultiply { " * factor" } else { "" };
                write!(f, "copy {source}{factor} -> {destination}")
            }
            Action::Reduce {
                sources,
                destination,
                finish,
            } => {
                f.write_str("reduce ")?;
                write_list(f, sources, " + ")?;
                write!(f, " -> {destination}{}", finish_mark(*finish))
            }
            Action::ReduceFrom {
                sources,
                destinations,
                finish,
            } => {
                f.write_str("reduce ")?;
                write_list(f, sources, " + ")?;
                f.write_str(" -> ")?;
                write_list(f, destinations, ", ")?;
                f.write_str(finish_mark(*finish))
            }
            Action::Signal {
                peers,
                lane,
                payload,
            } => {
                write!(f, "signal {peers:?} lane {lane}")?;
                payload.map_or(Ok(()), |range| write!(f, " with {range}"))
            }
            Action::WaitCount { peers, lane, count } => {
                write!(f, "wait for {count} of {peers:?} lane {lane}")
            }
            Action::Nop => f.write_str("nop"),
        }
    }
}

fn finish_mark(finish: bool) -> &'static str {
    if finish { " finish" } else { "" }
}

fn write_list<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    separator: &str,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Builder, Operand};
    use super::*;

    #[test]
    fn a_schedule_prints_one_line_per_step() {
        let mut b = Builder::new("example", 0, 2, false);
        let block = |buffer, i| Range::new(buffer, Extent::block(i, 2));
        let scratch = b.scratch(Extent::block(0, 2));
        let received = Range::at_start(scratch, Extent::block(1, 2));
        b.send(1, block(BufferId::INPUT, 0));
        b.recv(1, received);
        b.reduce(
            vec![received, block(BufferId::INPUT, 1)],
            block(BufferId::OUTPUT, 1),
            true,
        );
        b.signal(vec![1], 0);
        b.wait(vec![1], 0);
        b.reduce_from(
            vec![Operand::Peer(1, block(BufferId::OUTPUT, 0))],
            vec![Operand::Local(block(BufferId::OUTPUT, 0))],
            false,
        );
        assert_eq!(
            b.build().to_string(),
            "example, rank 0 of 2\n\
             \x20 %2 scratch[0/2]\n\
             \x20 0 send in[0/2] -> @1 #0\n\
             \x20 1 recv @1 #0 -> %2[1/2 - 1/2]\n\
             \x20 2 reduce %2[1/2 - 1/2] + in[1/2] -> out[1/2] finish <- 1~\n\
             \x20 3 signal [1] lane 0 <- 0 2\n\
             \x20 4 wait for 1 of [1] lane 0 <- 3\n\
             \x20 5 reduce @1:out[0/2] -> out[0/2] <- 4\n"
        );
    }
}
