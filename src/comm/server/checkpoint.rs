//! [`Checkpoint`]: the files in which a parameter server keeps its weights.
//!
//! Each shard writes one file, `shard-I-of-M.VERSION.weights`, under another name first: it is
//! there whole or not at all. A checkpoint is the files of all shards of one version. Since all
//! shards write at one place of their order, they are of one version.
//!
//! A file is words of 8 bytes (little-endian) but for the names of the tensors: [`MAGIC`],
//! [`FORMAT`], the head ([`Head`]), the weights and the states of the optimizer in f32, and the
//! CRC32C of all before it.

use super::request::{Failure, optimizer_of, words_of};
use crate::fusion::TensorSpec;
use crate::optimizer::Optimizer;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

const MAGIC: u64 = u64::from_le_bytes(*b"linerate");
const FORMAT: u64 = 1;
/// What is read or written at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Far more than any file has; a damaged one may say anything.
const COUNT_MAX: u64 = 1 << 32;

/// How weights follow gradients from a version on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    pub optimizer: Optimizer,
    pub rate: f32,
}

/// What all files of a checkpoint say.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// A line for each tensor: its elements and its name.
    pub tensors: String,
    /// Updates of the weights.
    pub version: u64,
    /// Updates before the first one with this kind of optimizer.
    pub began: u64,
    pub rule: Rule,
    /// Rules that hold from later versions on.
    pub later: Vec<(u64, Rule)>,
    /// By worker: its pushes that are in the weights.
    pub pushes: Vec<u64>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub head: Head,
    /// Of a range of the elements of all tensors.
    pub weights: Vec<f32>,
    pub states: Vec<Vec<f32>>,
}

/// The tensors, as a checkpoint tells them.
pub fn text_of(tensors: &[TensorSpec]) -> String {
    let line = |tensor: &TensorSpec| format!("{} {}\n", tensor.count, tensor.name);
    tensors.iter().map(line).collect()
}

struct Sink<W> {
    to: W,
    crc: u32,
}

impl<W: Write> Sink<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.to.write_all(bytes)
    }

    fn words(&mut self, words: &[u64]) -> std::io::Result<()> {
        words
            .iter()
            .try_for_each(|word| self.put(&word.to_le_bytes()))
    }

    fn rule(&mut self, rule: &Rule) -> std::io::Result<()> {
        self.words(&words_of(&rule.optimizer))?;
        self.words(&[u64::from(rule.rate.to_bits())])
    }
}

struct Source<R> {
    from: R,
    crc: u32,
}

type Found<T> = Result<T, Failure>;

impl<R: Read> Source<R> {
    fn take(&mut self, bytes: &mut [u8]) -> Found<()> {
        match self.from.read_exact(bytes) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(Failure::Damaged),
            Err(e) => Err(Failure::of(&e)),
            Ok(()) => {
                self.crc = crc32c::crc32c_append(self.crc, bytes);
                Ok(())
            }
        }
    }

    fn word(&mut self) -> Found<u64> {
        let mut bytes = [0; 8];
        self.take(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn count(&mut self) -> Found<usize> {
        let count = self.word()?;
        (count <= COUNT_MAX)
            .then_some(count as usize)
            .ok_or(Failure::Damaged)
    }

    fn rule(&mut self) -> Found<Rule> {
        let mut words = [0; 5];
        for word in &mut words {
            *word = self.word()?;
        }
        let rate = self.word()?;
        Ok(Rule {
            optimizer: optimizer_of(words).ok_or(Failure::Damaged)?,
            rate: u32::try_from(rate)
                .map(f32::from_bits)
                .map_err(|_| Failure::Damaged)?,
        })
    }

    /// Reads `count` numbers, and keeps those of `kept`. Memory grows with what is there.
    fn floats(&mut self, count: usize, kept: &Range<usize>, to: &mut Vec<f32>) -> Found<()> {
        let mut block = vec![0f32; (BLOCK_BYTES / size_of::<f32>()).min(count)];
        let mut start = 0;
        while start < count {
            let len = block.len().min(count - start);
            self.take(bytemuck::cast_slice_mut(&mut block[..len]))?;
            let (first, end) = (kept.start.max(start), kept.end.min(start + len));
            if first < end {
                to.extend_from_slice(&block[first - start..end - start]);
            }
            start += len;
        }
        Ok(())
    }
}

impl Head {
    /// How many numbers of state each weight has: they are there from the first step on.
    fn states(&self) -> usize {
        match self.version == self.began {
            true => 0,
            false => self.rule.optimizer.states(),
        }
    }

    fn write(&self, sink: &mut Sink<impl Write>) -> std::io::Result<()> {
        sink.words(&[self.tensors.len() as u64])?;
        sink.put(self.tensors.as_bytes())?;
        sink.words(&[self.version, self.began])?;
        sink.rule(&self.rule)?;
        sink.words(&[self.later.len() as u64])?;
        for (from, rule) in &self.later {
            sink.words(&[*from])?;
            sink.rule(rule)?;
        }
        sink.words(&[self.pushes.len() as u64])?;
        sink.words(&self.pushes)
    }

    fn read(source: &mut Source<impl Read>) -> Found<Head> {
        let mut text = Vec::new();
        for _ in 0..source.count()? {
            let mut byte = [0];
            source.take(&mut byte)?;
            text.push(byte[0]);
        }
        let (version, began) = (source.word()?, source.word()?);
        let rule = source.rule()?;
        let mut later = Vec::new();
        for _ in 0..source.count()? {
            later.push((source.word()?, source.rule()?));
        }
        let mut pushes = Vec::new();
        for _ in 0..source.count()? {
            pushes.push(source.word()?);
        }
        Ok(Head {
            tensors: String::from_utf8(text).map_err(|_| Failure::Damaged)?,
            version,
            began,
            rule,
            later,
            pushes,
        })
    }
}

fn name_of(version: u64, (shard, shards): (usize, usize)) -> String {
    format!("shard-{shard}-of-{shards}.{version:012}.weights")
}

/// The version and the shards of a file of this name.
fn parse_name(name: &str) -> Option<(u64, usize, usize)> {
    let rest = name.strip_prefix("shard-")?.strip_suffix(".weights")?;
    let (place, version) = rest.split_once('.')?;
    let (shard, shards) = place.split_once("-of-")?;
    let (shard, shards) = (shard.parse().ok()?, shards.parse().ok()?);
    let version = version.parse().ok()?;
    (name == name_of(version, (shard, shards))).then_some((version, shard, shards))
}

/// Reads numbers of a shard, as bytes: of the weights (0) or of a state (1 or 2), and which.
pub type ReadFn<'a> = dyn Fn(usize, Range<usize>, &mut [u8]) + 'a;

/// The part of a shard. Servers that have the same shard write the same file.
pub struct Part<'a> {
    pub shard: (usize, usize),
    pub server: usize,
    /// Elements of all tensors.
    pub range: Range<usize>,
    pub read: &'a ReadFn<'a>,
}

/// Writes a shard's file into a folder, which is made if it is not there.
pub fn save(folder: &Path, head: &Head, part: &Part) -> Result<(), Failure> {
    write(folder, head, part).map_err(|e| Failure::of(&e))
}

fn write(folder: &Path, head: &Head, part: &Part) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = name_of(head.version, part.shard);
    let path = folder.join(&name);
    let hidden = folder.join(format!(".{name}.{}.{}", part.server, std::process::id()));
    let written = write_file(&hidden, head, part).and_then(|()| {
        std::fs::rename(&hidden, &path)?;
        File::open(folder)?.sync_all()
    });
    if written.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&hidden);
    }
    written
}

fn write_file(path: &Path, head: &Head, part: &Part) -> std::io::Result<()> {
    let mut sink = Sink {
        to: BufWriter::with_capacity(BLOCK_BYTES, File::create(path)?),
        crc: 0,
    };
    sink.words(&[MAGIC, FORMAT])?;
    head.write(&mut sink)?;
    let (Range { start, end }, states) = (part.range.clone(), head.states());
    sink.words(&[start as u64, end as u64])?;
    let count = part.range.len();
    let mut block = vec![0; BLOCK_BYTES];
    let per_block = BLOCK_BYTES / size_of::<f32>();
    for which in 0..=states {
        for start in (0..count).step_by(per_block) {
            let len = per_block.min(count - start);
            let bytes = &mut block[..len * size_of::<f32>()];
            (part.read)(which, start..start + len, bytes);
            sink.put(bytes)?;
        }
    }
    let crc = u64::from(sink.crc);
    sink.words(&[crc])?;
    let file = sink.to.into_inner().map_err(|error| error.into_error())?;
    file.sync_all()
}

/// The files of the newest checkpoint of a folder, in the order of their shards.
fn newest(folder: &Path) -> Found<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::NoCheckpoint,
        _ => Failure::of(&e),
    })?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut all: Vec<(u64, usize, usize)> = names
        .filter_map(|name| parse_name(name.to_str()?))
        .collect();
    all.sort_unstable();
    let mut versions: Vec<(u64, usize)> = all
        .iter()
        .map(|&(version, _, shards)| (version, shards))
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let is_whole = |&&(version, shards): &&(u64, usize)| {
        let mut needed = (0..shards).map(|shard| (version, shard, shards));
        shards > 0 && needed.all(|one| all.binary_search(&one).is_ok())
    };
    let found = versions.iter().rev().find(is_whole);
    let &(version, shards) = found.ok_or(Failure::NoCheckpoint)?;
    let path = |shard| folder.join(name_of(version, (shard, shards)));
    Ok((0..shards).map(path).collect())
}

/// Reads a range of the elements of all tensors, of the newest checkpoint of a folder. It may have
/// been written by another number of shards.
///
/// # Errors
/// It is of other tensors than `tensors` says, or its files are not whole.
pub fn load(folder: &Path, tensors: &str, range: &Range<usize>) -> Result<Checkpoint, Failure> {
    let mut found: Option<Checkpoint> = None;
    for path in newest(folder)? {
        let file = File::open(path).map_err(|e| Failure::of(&e))?;
        let part = read_file(file, tensors, range)?;
        match &mut found {
            None => found = Some(part),
            Some(all) if all.head == part.head => {
                all.weights.extend(part.weights);
                for (all, state) in all.states.iter_mut().zip(part.states) {
                    all.extend(state);
                }
            }
            Some(_) => return Err(Failure::Damaged),
        }
    }
    let is_whole = |one: &Checkpoint| {
        let mut all = one.states.iter().chain([&one.weights]);
        all.all(|numbers| numbers.len() == range.len())
    };
    found.filter(is_whole).ok_or(Failure::Damaged)
}

fn read_file(file: File, tensors: &str, range: &Range<usize>) -> Found<Checkpoint> {
    let mut source = Source {
        from: BufReader::with_capacity(BLOCK_BYTES, file),
        crc: 0,
    };
    if source.word()? != MAGIC {
        return Err(Failure::Damaged);
    }
    if source.word()? != FORMAT {
        return Err(Failure::Newer);
    }
    let head = Head::read(&mut source)?;
    if head.tensors != tensors {
        return Err(Failure::OtherModel);
    }
    let [start, end] = [source.word()?, source.word()?].map(|word| word as usize);
    if start > end {
        return Err(Failure::Damaged);
    }
    // What of the range is in this file, counted from its first element.
    let kept = range.start.clamp(start, end) - start..range.end.clamp(start, end) - start;
    if kept.is_empty() {
        // Another server reads it.
        let states = vec![Vec::new(); head.states()];
        let weights = Vec::new();
        return Ok(Checkpoint {
            head,
            weights,
            states,
        });
    }
    let mut weights = Vec::new();
    source.floats(end - start, &kept, &mut weights)?;
    let mut all = vec![Vec::new(); head.states()];
    for state in &mut all {
        source.floats(end - start, &kept, state)?;
    }
    let crc = u64::from(source.crc);
    if source.word()? != crc {
        return Err(Failure::Damaged);
    }
    Ok(Checkpoint {
        head,
        weights,
        states: all,
    })
}
