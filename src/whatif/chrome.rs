//! Reads Chrome traces event by event, since a file may be far larger than memory, for three
//! readers: `profiler.rs` (`torch.profiler`), `horovod.rs` (Horovod's timeline) and `timeline.rs`
//! (what `linerate replay --trace-out` writes). Each takes the events that it knows; the one that
//! found gradients makes the trace.

use super::event::Event;
use super::horovod::Horovod;
use super::profiler::Profile;
use super::timeline::Timeline;
use super::trace::{Trace, shown};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};

/// Bytes of one event, or of what stands before or after all of them, at most: so a value without
/// an end needs no more memory.
const EVENT_BYTES_MAX: u64 = 16 << 20;

/// Bytes of a file after it was decompressed, at most: some minutes of reading.
const FILE_BYTES_MAX: u64 = 16 << 30;

/// Counts the bytes of an event, and refuses more than are allowed.
struct Bounded<'a, R> {
    from: R,
    of_event: &'a Cell<u64>,
    of_file: u64,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        self.of_file += read as u64;
        self.of_event.set(self.of_event.get() + read as u64);
        if self.of_event.get() > EVENT_BYTES_MAX {
            return Err(io::Error::other(format!(
                "more than {EVENT_BYTES_MAX} bytes without the end of an event"
            )));
        }
        if self.of_file > FILE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "more than {FILE_BYTES_MAX} bytes, which is the most that is read"
            )));
        }
        Ok(read)
    }
}

/// All readers.
#[derive(Default)]
struct Readers {
    /// Events so far.
    seen: u64,
    profile: Profile,
    horovod: Horovod,
    timeline: Timeline,
    /// The first GPU that the file names.
    machine: String,
}

/// Reads a trace; the error says what is wrong with which event or line.
pub fn parse(name: &str, from: impl Read) -> Result<Trace, String> {
    let of_event = Cell::new(0);
    let mut readers = Readers::default();
    let bounded = Bounded {
        from,
        of_event: &of_event,
        of_file: 0,
    };
    let mut json = serde_json::Deserializer::from_reader(bounded);
    let document = Document {
        readers: &mut readers,
        of_event: &of_event,
    };
    let end = document.deserialize(&mut json).and_then(|()| json.end());
    let is_cut = |cause: &serde_json::Error| {
        cause.is_eof() || cause.io_error_kind() == Some(io::ErrorKind::UnexpectedEof)
    };
    let mut notes = Vec::new();
    match end {
        Ok(()) => {}
        Err(cause) if is_cut(&cause) && readers.found() > 0 => notes.push(format!(
            "the file is cut off at line {}; what comes before is used",
            cause.line()
        )),
        Err(cause) => return Err(cause.to_string()),
    }
    let machine = std::mem::take(&mut readers.machine);
    Ok(Trace {
        machine,
        ..readers.trace(name, notes)?
    })
}

impl Readers {
    /// How many readers have gradients.
    fn found(&self) -> usize {
        let found = [
            self.profile.has_gradients(),
            self.horovod.has_gradients(),
            self.timeline.has_gradients(),
        ];
        found.into_iter().filter(|found| *found).count()
    }

    fn add(&mut self, mut event: Event) -> Result<(), String> {
        event.at = self.seen;
        self.seen += 1;
        self.profile.add(&event)?;
        self.horovod.add(&event)?;
        self.timeline.add(&event)
    }

    fn trace(self, name: &str, notes: Vec<String>) -> Result<Trace, String> {
        match self.found() {
            0 => Err(format!(
                "none of its {} events is a gradient: of torch.profiler torch::autograd::AccumulateGrad (profile a backward pass, \
                 and export_chrome_trace), of Horovod's timeline NEGOTIATE_ALLREDUCE, of `linerate replay --trace-out` a mark of the category gradient",
                self.seen
            )),
            1 if self.profile.has_gradients() => self.profile.trace(name, notes),
            1 if self.horovod.has_gradients() => self.horovod.trace(name, notes),
            1 => self.timeline.trace(name, notes),
            _ => Err("gradients of several programs in one file: expected those of torch.profiler, of Horovod or of linerate alone".into()),
        }
    }
}

/// The whole file: a list of events, or an object that has one.
struct Document<'a> {
    readers: &'a mut Readers,
    of_event: &'a Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of events, or an object with the list traceEvents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element()? {
            self.of_event.set(0);
            self.readers.add(event).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => fields.next_value_seed(Document {
                    readers: &mut *self.readers,
                    of_event: self.of_event,
                })?,
                "deviceProperties" => {
                    let devices: serde_json::Value = fields.next_value()?;
                    self.readers.machine = shown(devices[0]["name"].as_str().unwrap_or_default());
                }
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}
