//! Traces by name, and from files of three formats, which are told apart by how they begin: what
//! `torch.profiler` writes (`profiler.rs`), and two of text (`text.rs`).

use super::trace::Trace;
use super::{profiler, text};
use crate::error::{Error, Result};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of a trace file, at most: fifty times what the largest allowed number of tensors needs.
const FILE_BYTES_MAX: u64 = 64 << 20;

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
                notes: Vec::new(),
            });
        }
        let shown = |cause| {
            let names = BUILT_IN.map(|(name, ..)| name).join(", ");
            Error::invalid(format!("trace '{name}': {cause}; built in are {names}"))
        };
        let wrong = |reason| Error::invalid(format!("trace {name}: {reason}"));
        let stem = Path::new(name).file_name().unwrap_or_default();
        let stem = stem.to_string_lossy().into_owned();
        let mut file = BufReader::new(std::fs::File::open(name).map_err(shown)?);
        let start = file.fill_buf().map_err(shown)?.trim_ascii_start();
        if start.starts_with(b"{") || start.starts_with(b"[") {
            return profiler::parse(&stem, file).map_err(wrong);
        }
        let mut bytes = Vec::new();
        // Devices and pipes do not tell their size.
        let mut start = file.take(FILE_BYTES_MAX + 1);
        start.read_to_end(&mut bytes).map_err(shown)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "trace {name}: more than {FILE_BYTES_MAX} bytes, which is the most that is read"
            )));
        }
        Ok(Trace {
            name: stem,
            gradients: text::parse_bytes(&bytes).map_err(wrong)?,
            steps: 1,
            ..Trace::default()
        })
    }
}
