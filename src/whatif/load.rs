//! Traces by name, and from files, whose formats are told apart by how they begin: Chrome traces of
//! three programs (`chrome.rs`), and two formats of text (`text.rs`). Each may be compressed.

use super::trace::Trace;
use super::{chrome, text};
use crate::error::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of a file of text, at most: fifty times what the largest allowed number of tensors needs.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of all gradients together, at most: far above any model.
const TRACE_BYTES_MAX: u64 = 1 << 48;

/// How what gzip compressed begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The traces in the binary: name, text, and the measured time of a batch on one GPU in ms.
const BUILT_IN: [(&str, &str, f64); 3] = [
    (
        "resnet50",
        include_str!("../../tests/data/training_bottleneck/resnet50.bk.log"),
        128.08580219559176,
    ),
    (
        "resnet101",
        include_str!("../../tests/data/training_bottleneck/resnet101.bk.log"),
        192.00599479476405,
    ),
    (
        "vgg16",
        include_str!("../../tests/data/training_bottleneck/vgg16.bk.log"),
        194.52352295080985,
    ),
];

impl Trace {
    /// The built-in trace of this name, or else the file at this path. Built in are `resnet50`,
    /// `resnet101` and `vgg16` (with batch normalisation) of Zhang et al. (NetAI 2020), measured on
    /// one V100 with a batch of 32 images.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: the file cannot be read, or is no trace; the text names the line
    /// or event, what it has and what was expected.
    pub fn load(name: &str) -> Result<Trace> {
        if let Some((name, lines, batch_ms)) = BUILT_IN.into_iter().find(|(n, ..)| *n == name) {
            return Ok(Trace {
                name: name.into(),
                gradients: text::parse_text(lines).map_err(Error::invalid)?,
                batch_ms: Some(batch_ms),
                steps: 1,
                source: "Zhang et al., NetAI 2020".into(),
                machine: "NVIDIA V100".into(),
                ..Trace::default()
            });
        }
        let unreadable = |cause| {
            let names = BUILT_IN.map(|(name, ..)| name).join(", ");
            Error::invalid(format!("trace '{name}': {cause}; built in are {names}"))
        };
        let mut file = std::fs::File::open(name).map_err(unreadable)?;
        // A folder can be opened, and not be read.
        file.read(&mut []).map_err(unreadable)?;
        let stem = Path::new(name).file_name().unwrap_or_default();
        let trace = read(&stem.to_string_lossy(), file);
        trace.map_err(|reason| Error::invalid(format!("trace {name}: {reason}")))
    }

    /// What [`load`](Trace::load) reads from a file, from anywhere. `name` becomes the trace's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: it cannot be read, or is no trace; the text names the line or
    /// event, what it has and what was expected.
    pub fn read(name: &str, from: impl Read) -> Result<Trace> {
        read(name, from).map_err(|reason| Error::invalid(format!("trace {name}: {reason}")))
    }
}

/// Reads any format; the error is the reason.
fn read(name: &str, from: impl Read) -> std::result::Result<Trace, String> {
    let mut from: Box<dyn BufRead + '_> = Box::new(BufReader::new(from));
    let shown = |cause: std::io::Error| cause.to_string();
    if from.fill_buf().map_err(shown)?.starts_with(&GZIP) {
        from = Box::new(BufReader::new(MultiGzDecoder::new(from)));
    }
    let start = from.fill_buf().map_err(shown)?.trim_ascii_start();
    let trace = if start.starts_with(b"{") || start.starts_with(b"[") {
        chrome::parse(name, from)?
    } else {
        let mut bytes = Vec::new();
        // Devices and pipes do not tell their size.
        let mut limited = from.take(TEXT_BYTES_MAX + 1);
        limited.read_to_end(&mut bytes).map_err(shown)?;
        if bytes.len() as u64 > TEXT_BYTES_MAX {
            return Err(format!(
                "more than {TEXT_BYTES_MAX} bytes, which is the most that is read of text"
            ));
        }
        Trace {
            name: name.into(),
            gradients: text::parse_bytes(&bytes)?,
            steps: 1,
            source: "text".into(),
            ..Trace::default()
        }
    };
    match trace.bytes() {
        bytes if bytes > TRACE_BYTES_MAX => Err(format!("{bytes} bytes together: at most 2^48")),
        _ => Ok(trace),
    }
}
