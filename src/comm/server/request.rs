//! [`Request`]: what a worker asks all shards to do at one place of their order, and
//! [`Failure`]: why a shard could not.
//!
//! A worker puts its request into its place in the memory of every shard. When it is there
//! everywhere, it tells the first shard, which gives the request a place in the order. Each shard
//! answers.

use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Room for a request.
pub const REQUEST_BYTES: usize = 4096;
/// Bytes before a path.
const HEAD_BYTES: usize = 64;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Update with this optimizer and rate, from this version on.
    SetOptimizer(Optimizer, f32, u64),
    /// Write a checkpoint into this folder.
    Save(PathBuf),
    /// Read the newest checkpoint of this folder, to begin with it.
    Load(PathBuf),
    /// Wait for this worker again, which had finished.
    Attach,
}

const SET_OPTIMIZER: u64 = 1;
const SAVE: u64 = 2;
const LOAD: u64 = 3;
const ATTACH: u64 = 4;

impl Request {
    /// A request that names a folder.
    ///
    /// # Errors
    /// Its name is too long, or the current folder is unknown.
    pub fn folder(make: impl Fn(PathBuf) -> Request, folder: &Path) -> Result<Request> {
        let folder = std::path::absolute(folder)
            .map_err(|e| Error::os(format!("the place of folder {}", folder.display()), e))?;
        let (bytes, most) = (folder.as_os_str().len(), REQUEST_BYTES - HEAD_BYTES);
        if bytes > most {
            return Err(Error::invalid(format!(
                "a checkpoint in a folder whose name has {bytes} bytes: {most} at most"
            )));
        }
        Ok(make(folder))
    }

    /// What is put, at most [`REQUEST_BYTES`].
    pub fn emit(&self) -> Vec<u8> {
        let (kind, words, path) = match self {
            Request::SetOptimizer(optimizer, rate, from) => {
                let [a, b, c, d, e] = words_of(optimizer);
                (
                    SET_OPTIMIZER,
                    [a, b, c, d, e, u64::from(rate.to_bits()), *from],
                    None,
                )
            }
            Request::Save(folder) => (SAVE, path_words(folder), Some(folder)),
            Request::Load(folder) => (LOAD, path_words(folder), Some(folder)),
            Request::Attach => (ATTACH, [0; 7], None),
        };
        let all = std::iter::once(kind).chain(words);
        let mut bytes: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
        if let Some(path) = path {
            bytes.extend_from_slice(path.as_os_str().as_bytes());
        }
        bytes
    }

    /// What was put; `None`: no worker puts this.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let head = bytes.get(..HEAD_BYTES)?;
        let words = head.chunks_exact(8).map(|word| word.try_into());
        let words: Vec<u64> = words.flatten().map(u64::from_le_bytes).collect();
        let &[kind, a, b, c, d, e, rate, from] = &words[..] else {
            return None;
        };
        let folder = || {
            let name = bytes[HEAD_BYTES..].get(..a as usize)?;
            Some(PathBuf::from(OsStr::from_bytes(name)))
        };
        match kind {
            SET_OPTIMIZER => {
                let optimizer = optimizer_of([a, b, c, d, e])?;
                let rate = f32::from_bits(u32::try_from(rate).ok()?);
                Some(Request::SetOptimizer(optimizer, rate, from))
            }
            SAVE => folder().map(Request::Save),
            LOAD => folder().map(Request::Load),
            ATTACH => Some(Request::Attach),
            _ => None,
        }
    }
}

fn path_words(path: &Path) -> [u64; 7] {
    [path.as_os_str().len() as u64, 0, 0, 0, 0, 0, 0]
}

const SGD: u64 = 0;
const ADAM: u64 = 1;
const ADAMW: u64 = 2;

/// An optimizer as words: which it is, and its numbers.
pub fn words_of(optimizer: &Optimizer) -> [u64; 5] {
    let (kind, numbers) = match *optimizer {
        Optimizer::Sgd {
            momentum,
            weight_decay,
        } => (SGD, [momentum, weight_decay, 0.0, 0.0]),
        Optimizer::Adam {
            betas,
            epsilon,
            weight_decay,
        } => (ADAM, [betas.0, betas.1, epsilon, weight_decay]),
        Optimizer::AdamW {
            betas,
            epsilon,
            weight_decay,
        } => (ADAMW, [betas.0, betas.1, epsilon, weight_decay]),
    };
    let [a, b, c, d] = numbers.map(|number| u64::from(number.to_bits()));
    [kind, a, b, c, d]
}

/// The optimizer of these words; `None`: there is no such, or a number is out of its range.
pub fn optimizer_of(words: [u64; 5]) -> Option<Optimizer> {
    let number = |word: u64| u32::try_from(word).ok().map(f32::from_bits);
    let [kind, a, b, c, d] = words;
    let [a, b, c, d] = [number(a)?, number(b)?, number(c)?, number(d)?];
    let optimizer = match kind {
        SGD => Optimizer::Sgd {
            momentum: a,
            weight_decay: b,
        },
        ADAM => Optimizer::Adam {
            betas: (a, b),
            epsilon: c,
            weight_decay: d,
        },
        ADAMW => Optimizer::AdamW {
            betas: (a, b),
            epsilon: c,
            weight_decay: d,
        },
        _ => return None,
    };
    optimizer.check().ok().map(|()| optimizer)
}

/// Why a shard could not do what a worker has asked for. 8 bits of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The operating system's number of an error.
    Os(u8),
    /// There is no checkpoint, or none of which all parts are there.
    NoCheckpoint,
    /// A checkpoint of other tensors.
    OtherModel,
    /// A file is shorter than it says, or its checksum is wrong.
    Damaged,
    /// A file of a later version of this library.
    Newer,
}

/// Beyond the numbers of the operating system, of which there are 133.
const OWN: u8 = 250;

impl Failure {
    pub fn of(error: &std::io::Error) -> Failure {
        let number = error.raw_os_error().and_then(|one| u8::try_from(one).ok());
        Failure::Os(number.filter(|&one| (1..OWN).contains(&one)).unwrap_or(5))
    }

    /// From 1 on.
    pub fn code(self) -> u8 {
        match self {
            Failure::Os(number) => number,
            Failure::NoCheckpoint => OWN,
            Failure::OtherModel => OWN + 1,
            Failure::Damaged => OWN + 2,
            Failure::Newer => OWN + 3,
        }
    }

    pub fn from_code(code: u8) -> Option<Failure> {
        match code.checked_sub(OWN) {
            None if code == 0 => None,
            None => Some(Failure::Os(code)),
            Some(0) => Some(Failure::NoCheckpoint),
            Some(1) => Some(Failure::OtherModel),
            Some(2) => Some(Failure::Damaged),
            Some(_) => Some(Failure::Newer),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Failure::Os(number) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(i32::from(number)))
            }
            Failure::NoCheckpoint => f.write_str(
                "there is no checkpoint of which the parts of all shards are there (shard-I-of-M.VERSION.weights)",
            ),
            Failure::OtherModel => f.write_str(
                "the newest checkpoint is of other tensors: their names and numbers of elements are those of the parameter server",
            ),
            Failure::Damaged => f.write_str(
                "a file of the newest checkpoint is damaged: remove it to begin with the one before",
            ),
            Failure::Newer => f.write_str("the newest checkpoint is of a later version of linerate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_way_and_others_are_refused() {
        let folder =
            |make: fn(PathBuf) -> Request| Request::folder(make, Path::new("x/é")).unwrap();
        let rates = [
            Optimizer::momentum(0.9),
            Optimizer::adam(),
            Optimizer::adamw(),
        ];
        let rates = rates.map(|optimizer| Request::SetOptimizer(optimizer, 0.25, 1 << 40));
        for request in [folder(Request::Save), folder(Request::Load)]
            .into_iter()
            .chain(rates)
        {
            let mut bytes = request.emit();
            assert!(bytes.len() <= REQUEST_BYTES);
            bytes.resize(REQUEST_BYTES, 0);
            assert_eq!(Request::parse(&bytes), Some(request));
            bytes[8] = 0xff;
            bytes[15] = 0xff;
            assert_eq!(Request::parse(&bytes), None);
            assert_eq!(Request::parse(&bytes[..63]), None);
        }
        let mut bytes = Request::Attach.emit();
        bytes.resize(REQUEST_BYTES, 0);
        assert_eq!(Request::parse(&bytes), Some(Request::Attach));
        let long = "x".repeat(REQUEST_BYTES);
        assert!(Request::folder(Request::Save, Path::new(&long)).is_err());
    }

    #[test]
    fn failures_survive_the_way() {
        assert_eq!(Failure::from_code(0), None);
        for code in 1..OWN + 4 {
            let failure = Failure::from_code(code).unwrap();
            assert_eq!(failure.code(), code);
        }
        let full = std::io::Error::from_raw_os_error(28);
        assert_eq!(Failure::of(&full), Failure::Os(28));
        assert!(Failure::of(&full).to_string().contains("No space left"));
    }
}
